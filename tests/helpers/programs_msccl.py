"""Small programs in MSCCL's XML, written in a line or two."""

from __future__ import annotations

import re


def step(kind: str, source: str = "i-1", target: str = "", *, count: int = 1, after: tuple[int, int] = (-1, -1),
         needed: bool = False) -> str:  # fmt: skip
    """A step: `step("rrc", "i0", "o0", after=(2, 1))` waits for step 1 of thread block 2."""
    (a, x), (b, y) = (re.fullmatch(r"(\w)(-?\d+)", cell).groups() for cell in (source, target or source))  # type: ignore[union-attr]
    return (
        f'type="{kind}" srcbuf="{a}" srcoff="{x}" dstbuf="{b}" dstoff="{y}" cnt="{count if kind != "nop" else 0}" '
        f'depid="{after[0]}" deps="{after[1]}" hasdep="{int(needed)}"'
    )


def tb(*steps: str, send: int = -1, recv: int = -1, chan: int = 0) -> str:
    """A thread block of steps."""
    lines = [f'      <step s="{number}" {one}/>' for number, one in enumerate(steps)]
    return "\n".join([f'send="{send}" recv="{recv}" chan="{chan}">', *lines])


def gpu(*blocks: str, scratch: int = 0) -> tuple[int, list[str]]:
    """A GPU of thread blocks."""
    return scratch, [f'    <tb id="{number}" {block}\n    </tb>' for number, block in enumerate(blocks)]


def algo(*gpus: tuple[int, list[str]], coll: str = "allreduce", chunks: int = 1, inplace: int = 1) -> bytes:
    """A file."""
    lines = [
        f'<algo name="mine" proto="Simple" nchannels="2" nchunksperloop="{chunks}" ngpus="{len(gpus)}" coll="{coll}" '
        f'inplace="{inplace}">'
    ]
    for rank, (scratch, blocks) in enumerate(gpus):
        lines += [
            f'  <gpu id="{rank}" i_chunks="{chunks}" o_chunks="{chunks}" s_chunks="{scratch}">',
            *blocks,
            "  </gpu>",
        ]
    return "\n".join([*lines, "</algo>"]).encode()
