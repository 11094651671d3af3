"""`python -m choreo.calibrate.device.cpu_rank`: one of the processes that compute at once in a measurement.

It reads requests from standard input, one JSON object per line, and answers each with a line: how long one kernel took.
A memory-bound kernel runs as training runs it: a chain of operators forward, whose results are kept, and backward over
them through autograd. A rank has one thread, and its time is that thread's own, so that other processes do not count.
"""

from __future__ import annotations

import json
import math
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from choreo.calibrate.device.cpu_layer import COLLECTIVES, LAYERS, OPERATORS, layer_passes
from choreo.errors import UsageError
from choreo.heap import keep_freed_memory
from choreo.pytorch import import_torch

__all__ = ["main"]

HELD_BYTES = 64 << 20  # operands of one probe, so that they push each other out of the caches
LONGEST, SHORTEST = 16, 2  # operators of a chain
SETS = 12
COLUMNS = 512
Call = Callable[[], object]


def main() -> int:
    """Answer requests until standard input ends."""
    try:
        torch = import_torch("measuring a processor")
    except UsageError as error:
        _answer({"error": str(error)})
        return 2
    torch.set_num_threads(1)
    keep_freed_memory()
    torch.manual_seed(0)
    operands = Operands(torch)
    _answer({"ready": 1.0})
    for line in sys.stdin:
        request = json.loads(line)
        call, kernels = _prepared(torch, operands, request)
        _answer({"time_s": _timed(call, float(request["window_s"])) / kernels})
    return 0


def _answer(document: dict[str, float | str]) -> None:
    print(json.dumps(document), flush=True)


def _timed(call: Call, window_s: float) -> float:
    """Seconds of the median call: one that was interrupted finds its operands gone from the caches."""
    call()
    took: list[float] = []
    end = time.perf_counter() + window_s
    while not took or time.perf_counter() < end:
        start = time.thread_time()
        call()
        took.append(time.thread_time() - start)
    return statistics.median(took)


def _prepared(torch: Any, operands: Operands, request: dict[str, Any]) -> tuple[Call, int]:
    """A call, and how many kernels it runs; the direction is part of the kind."""
    kind, m, n, k = str(request["kind"]), *(int(request[name]) for name in ("m", "n", "k"))
    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[request["dtype"]]
    if kind.startswith("gemm"):
        return _product(operands, kind, (m, n, k), dtype)
    if kind.startswith("attn_"):
        return _attention(torch, operands, kind, (m, n, k), int(request["head_dim"]), dtype)
    if kind in ("whole", "hollow", "cut"):
        return _layers(torch, kind)
    if kind == "optimizer":
        return _optimizer(torch, operands, m)
    if kind == "operator":
        return _chain(torch, operands, lambda x: x * 1.5, (1, 8), 32)
    return _memory_bound(torch, operands, kind, (m // COLUMNS, COLUMNS))


class Operands:
    """Tensors out of one block of random numbers, because filling each of them would take longer than the probe."""

    def __init__(self, torch: Any) -> None:
        self._block, self._next = torch.randn(HELD_BYTES // 4), 0

    def take(self, *shape: int, gradient: bool = False) -> Any:
        """The next tensor of that shape."""
        size = math.prod(shape)
        if self._next + size > len(self._block):
            self._next = 0
        found = self._block[self._next : self._next + size].view(*shape)
        self._next += size
        return found.detach().requires_grad_() if gradient else found


def _sets(bytes_of_one: float) -> range:
    return range(min(SETS, max(1, round(HELD_BYTES / bytes_of_one))))


def _product(operands: Operands, kind: str, shape: tuple[int, int, int], dtype: Any) -> tuple[Call, int]:
    m, n, k = shape
    pairs = []
    for _ in _sets(dtype.itemsize * (m * k + k * n + m * n)):
        # As a linear layer has them forward, and in both products of its backward pass.
        left = operands.take(k, m).to(dtype).t() if kind == "gemm_nt" else operands.take(m, k).to(dtype)
        right = operands.take(n, k).to(dtype).t() if kind == "gemm" else operands.take(k, n).to(dtype)
        pairs.append((left, right))

    def call() -> None:
        kept = [left @ right for left, right in pairs]
        del kept

    return call, len(pairs)


def _attention(  # noqa: PLR0917 -- all that a probe of it has
    torch: Any, operands: Operands, kind: str, shape: tuple[int, int, int], head_dim: int, dtype: Any
) -> tuple[Call, int]:
    batch, heads, sequence = shape
    attend = torch.nn.functional.scaled_dot_product_attention
    causal = kind.endswith("causal")
    *given, gradient = (operands.take(batch, sequence, heads, head_dim).to(dtype).transpose(1, 2) for _ in range(4))
    if "fwdbwd" not in kind:
        return partial(attend, *given, is_causal=causal), 1
    given = [tensor.detach().requires_grad_() for tensor in given]
    return (lambda: torch.autograd.grad(attend(*given, is_causal=causal), given, gradient)), 1


def _chain(
    torch: Any, operands: Operands, operator: Callable[[Any], Any], shape: tuple[int, int], length: int
) -> tuple[Call, int]:
    """Operators one after the other, forward and backward: each pass is a kernel."""
    first, gradient = operands.take(*shape, gradient=True), operands.take(*shape)

    def call() -> object:
        result = first
        for _ in range(length):
            result = operator(result)
        return torch.autograd.grad(result, first, gradient)

    return call, 2 * length


def _memory_bound(torch: Any, operands: Operands, kind: str, shape: tuple[int, int]) -> tuple[Call, int]:
    functional, size = torch.nn.functional, 4 * shape[0] * shape[1]
    length = max(SHORTEST, min(LONGEST, HELD_BYTES // size))
    weight, bias = (torch.randn(COLUMNS, requires_grad=True) for _ in range(2))
    chained: dict[str, Callable[[Any], Any]] = {
        "activation": partial(functional.gelu, approximate="tanh"),
        "norm": lambda x: functional.layer_norm(x, (COLUMNS,), weight, bias),
        "softmax": lambda x: torch.softmax(x, -1),
        "dropout": lambda x: functional.dropout(x, 0.1),
    }
    if kind in chained:
        return _chain(torch, operands, chained[kind], shape, length)
    if kind == "elementwise":
        return _sum(operands, shape, length)
    values = [operands.take(*shape, gradient=kind == "cross_entropy") for _ in range(length)]
    if kind == "cross_entropy":
        labels = torch.randint(0, COLUMNS, (shape[0],))
        return (
            lambda: [torch.autograd.grad(functional.cross_entropy(value, labels), value) for value in values]
        ), 2 * length
    if kind == "gather":
        table, indices = operands.take(*shape, gradient=True), torch.randint(0, shape[0], (shape[0],))
        gradient = operands.take(*shape)
        return (lambda: torch.autograd.grad(functional.embedding(indices, table), table, gradient)), 2
    narrow = [value.bfloat16() for value in values] if kind == "upcast" else values
    plain: dict[str, Callable[[Any], Any]] = {
        "copy": lambda x: x.clone(),
        "reduction": lambda x: x.sum(0),
        "cast": lambda x: x.bfloat16(),
        "upcast": lambda x: x.float(),
    }
    return (lambda: [plain[kind](value) for value in narrow]), length


def _sum(operands: Operands, shape: tuple[int, int], length: int) -> tuple[Call, int]:
    """Residual sums: what was made just now is added to what was made a while ago, forward and backward alike."""
    first, *earlier = (operands.take(*shape) for _ in range(length + 1))

    def call() -> object:
        kept = [first]
        for step in earlier:
            kept.append(kept[-1] + step)
        return kept

    return call, length


def _layers(torch: Any, how: str) -> tuple[Call, int]:
    """Layers by operator or, where they are cut, by collective in a group of one rank."""
    import torch.distributed as dist

    if how == "cut" and not dist.is_initialized():
        backend = "choreo" if "choreo" in dist.Backend.backend_list else "gloo"
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    return layer_passes(torch, how), LAYERS * (OPERATORS if how == "whole" else COLLECTIVES)


def _optimizer(torch: Any, operands: Operands, elements: int) -> tuple[Call, int]:
    parameter = torch.nn.Parameter(operands.take(elements).clone())
    parameter.grad = operands.take(elements)
    optimizer = torch.optim.AdamW([parameter], fused=True)
    return optimizer.step, 1


if __name__ == "__main__":
    raise SystemExit(main())
