"""How much switch buffer each all_reduce needs: the runs, the table and the pictures of docs/explanation/buffers.md.

    python tools/buffers.py run RESULTS.jsonl [--ranks 64,128] [--part 0/2]     adds the runs that are missing
    python tools/buffers.py write RESULTS.jsonl                                 writes the table and the pictures

Ranks hang on a fat tree of 400 Gb/s links, eight to a leaf, eight spines, 500 ns a link; each has a gradient of 4 MiB.
Hierarchical sums within a leaf first, all pairs at once, then along rings of ranks that have the same place at their
leaves. Runs with up to 256 ranks are repeated with three seeds. All of it takes about 20 minutes of one core.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Iterator
from math import log
from pathlib import Path
from typing import Any

from choreo.units import format_time

DOCS = Path(__file__).parent.parent / "docs"
SIZE = 4 << 20
MIB = 1 << 20
BUFFERS = [0.25, 1.0, 4.0, 16.0, 64.0]
RANKS = [64, 128, 256, 512]
ALGORITHMS = ["ring", "direct", "halving_doubling", "hierarchical"]
NETWORKS = [(lossless, routing) for lossless in (True, False) for routing in ("ecmp", "spray")]
COLOURS = {  # on white, and on black
    "ring": ("#1d62ad", "#6fb1f5"),
    "direct": ("#c75b00", "#ff9d4d"),
    "halving_doubling": ("#a3174f", "#f27aa8"),
    "hierarchical": ("#3c7a3c", "#7fce7f"),
}
CASE = ("ranks", "seed", "lossless", "routing", "buffer_mib", "algorithm")
Run = dict[str, Any]


def cases(ranks: list[int]) -> Iterator[Run]:
    """What is to be run, the smaller worlds first."""
    for world in ranks:
        for seed in range(3 if world <= 256 else 1):
            for lossless, routing in NETWORKS:
                for buffer in BUFFERS:
                    for algorithm in ALGORITHMS:
                        yield dict(zip(CASE, (world, seed, lossless, routing, buffer, algorithm), strict=True))


def run(case: Run) -> Run:
    """One run."""
    from choreo import Packets, build, simulate

    world = case["ranks"]
    axes = f"8x{world // 8}:direct,ring" if case["algorithm"] == "hierarchical" else None
    schedule = build("all_reduce", case["algorithm"], world, **({} if axes is None else {"axes": axes}))  # type: ignore[arg-type]
    network = f"fat_tree(8x{world // 8}, 50GB/s, 500ns, spines=8)"
    packets = Packets(
        buffer_bytes=int(case["buffer_mib"] * MIB),
        lossless=case["lossless"],
        routing=case["routing"],
        seed=case["seed"],
    )
    found = simulate(schedule, network, SIZE, packets=packets)
    report = found.packets
    assert report is not None
    figures = ("peak_queue_bytes", "peak_buffer_bytes", "pauses", "paused_s", "drops", "retransmissions", "timeouts")
    return {**case, "time_s": found.time_s, **{name: getattr(report, name) for name in figures}}


def key(one: Run) -> tuple[Any, ...]:
    """What makes a run another run."""
    return tuple(one[name] for name in CASE)


def median(runs: list[Run], value: str, **wanted: object) -> float | None:
    """The median over seeds."""
    found = [one[value] for one in runs if all(one[name] == want for name, want in wanted.items())]
    return statistics.median(found) if found else None


def table(runs: list[Run]) -> str:
    """The memory that each algorithm takes where there is plenty, and what it costs to have less."""
    heads = ["ranks", "algorithm", "memory, ecmp", "memory, spray", "time, ecmp", "time, spray"]
    heads += ["0.25 MiB lossless", "0.25 MiB lossy", "4 MiB lossy"]
    lines = [f"| {' | '.join(heads)} |", "| --- " * len(heads) + "|"]
    for world in sorted({one["ranks"] for one in runs}):
        for algorithm in ALGORITHMS:
            plenty = {"ranks": world, "algorithm": algorithm, "lossless": True, "buffer_mib": 64.0}
            most = [median(runs, "peak_buffer_bytes", **plenty, routing=routing) for routing in ("ecmp", "spray")]
            times = [median(runs, "time_s", **plenty, routing=routing) for routing in ("ecmp", "spray")]
            less = [
                median(runs, "time_s", **plenty | {"lossless": lossless, "buffer_mib": buffer}, routing="ecmp")
                for lossless, buffer in ((True, 0.25), (False, 0.25), (False, 4.0))
            ]
            cells = [f"{value / MIB:.2f} MiB" if value is not None else "" for value in most]
            cells += [f"{value * 1e6:.0f} us" if value else "" for value in times]
            cells += [f"{value / times[0]:.2f} x" if value and times[0] else "" for value in less]
            lines.append(f"| {world} | {algorithm} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def panel(runs: list[Run], world: int, network: tuple[bool, str], left: int, span: tuple[float, float]) -> list[str]:
    """Time against buffer, one line an algorithm; both axes are logarithms."""
    (lossless, routing), (low, high) = network, span
    width, height, top = 190, 220, 40

    def x(buffer: float) -> float:
        return left + width * log(buffer / BUFFERS[0]) / log(BUFFERS[-1] / BUFFERS[0])

    def y(time: float) -> float:
        return top + height * (1 - log(time / low) / log(high / low))

    title = f"{'lossless' if lossless else 'lossy'}, {routing}"
    made = [f'<text x="{left}" y="{top - 14}" font-weight="600">{title}</text>']
    below = f'y="{top + height + 18}" text-anchor="middle"'
    made += [f'<text x="{x(buffer):.0f}" {below}>{buffer:g}</text>' for buffer in BUFFERS]
    ticks = [10**power * part for power in range(-5, 1) for part in (1, 2, 5)]
    shown = [tick for tick in ticks if low < tick < high]
    shown = shown if len(shown) <= 8 else [tick for tick in shown if f"{tick:e}"[0] == "1"]
    for tick in shown:
        made.append(f'<path class="grid" d="M{left} {y(tick):.1f}h{width}"/>')
        if left < 100:
            made.append(f'<text x="{left - 6}" y="{y(tick) + 4:.1f}" text-anchor="end">{format_time(tick)}</text>')
    for algorithm in ALGORITHMS:
        here = {"ranks": world, "algorithm": algorithm, "lossless": lossless, "routing": routing}
        points = [(buffer, median(runs, "time_s", **here, buffer_mib=buffer)) for buffer in BUFFERS]
        known = [(x(buffer), y(time)) for buffer, time in points if time is not None]
        made.append(f'<polyline class="{algorithm}" points="{" ".join(f"{a:.1f},{b:.1f}" for a, b in known)}"/>')
        made += [marker(algorithm, a, b) for a, b in known]
    return made


def marker(algorithm: str, x: float, y: float) -> str:
    """A point of an algorithm, with a shape of its own for colour-blind readers."""
    shapes = {
        "ring": f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5"/>',
        "direct": f'<path d="M{x:.1f} {y - 5:.1f}l4.5 8h-9z"/>',
        "halving_doubling": f'<path d="M{x - 3.2:.1f} {y - 3.2:.1f}h6.4v6.4h-6.4z"/>',
        "hierarchical": f'<path d="M{x:.1f} {y - 4.8:.1f}l4.8 4.8l-4.8 4.8l-4.8 -4.8z"/>',
    }
    return shapes[algorithm].replace("<", f'<g class="{algorithm} point"><', 1) + "</g>"


def picture(runs: list[Run], world: int) -> str:
    """Four panels side by side."""
    medians = [
        median(runs, "time_s", **{name: one[name] for name in CASE if name != "seed"})
        for one in runs
        if one["ranks"] == world
    ]
    times = [time for time in medians if time is not None]
    span = min(times) / 1.15, max(times) * 1.15
    parts: list[str] = []
    for number, network in enumerate(NETWORKS):
        parts += panel(runs, world, network, 70 + number * 230, span)
    for number, algorithm in enumerate(ALGORITHMS):
        at = 70 + number * 170
        parts.append(f'<path class="{algorithm}" d="M{at} 318h24"/>{marker(algorithm, at + 12, 318)}')
        parts.append(f'<text x="{at + 31}" y="322">{algorithm}</text>')
    parts.append('<text x="950" y="322" text-anchor="end" class="faint">time, by MiB of buffer a switch</text>')
    title = f"<title>Time of an all_reduce over {world} ranks against the buffer of a switch</title>"
    head = '<svg xmlns="http://www.w3.org/2000/svg" width="990" height="335" viewBox="0 0 990 335" role="img">'
    return "\n".join([head, title, style(), '<rect width="990" height="335" class="page"/>', *parts, "</svg>"]) + "\n"


def style() -> str:
    """Colours on white, and on black in dark mode."""

    def rules(at: int, page: str, text: str, faint: str, grid: str) -> str:
        lines = "".join(
            f".{name}{{stroke:{colours[at]}}}.{name}.point{{fill:{colours[at]}}}" for name, colours in COLOURS.items()
        )
        return f".page{{fill:{page}}}text{{fill:{text}}}.faint{{fill:{faint}}}.grid{{stroke:{grid}}}{lines}"

    light, dark = (
        rules(0, "#fff", "#1c2530", "#5b6773", "#dfe4e9"),
        rules(1, "#14181d", "#e3e8ed", "#98a4b0", "#2c343d"),
    )
    fixed = (
        "text{font:12px Inter,Helvetica,Arial,sans-serif}polyline,path{fill:none;stroke-width:2}.grid{stroke-width:1}"
    )
    fixed += ".point,.point *{stroke:none;fill:inherit}"
    return f"<style>{fixed}{light}@media (prefers-color-scheme:dark){{{dark}}}</style>"


def main() -> None:
    """Run, or write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["run", "write"])
    parser.add_argument("results", type=Path)
    parser.add_argument("--ranks", default=",".join(map(str, RANKS)))
    parser.add_argument("--part", default="0/1", help="which of how many parts of the cases, to run several at once")
    asked = parser.parse_args()
    there = asked.results.read_text().splitlines() if asked.results.exists() else []
    runs = [json.loads(line) for line in there]
    if asked.what == "run":
        part, parts = map(int, asked.part.split("/"))
        done = {key(one) for one in runs}
        left = [one for one in cases([int(world) for world in asked.ranks.split(",")]) if key(one) not in done]
        for case in left[part::parts]:
            with asked.results.open("a") as file:
                file.write(json.dumps(run(case)) + "\n")
        return
    for world in RANKS:
        (DOCS / "pictures" / f"buffers-{world}.svg").write_text(picture(runs, world))
    page = DOCS / "explanation" / "buffers.md"
    before, _, rest = page.read_text().partition("<!-- table -->\n")
    _, _, after = rest.partition("<!-- end of table -->")
    page.write_text(f"{before}<!-- table -->\n{table(runs)}\n<!-- end of table -->{after}")


if __name__ == "__main__":
    main()
