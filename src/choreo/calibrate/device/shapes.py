"""The shapes that calibration measures: layers of models from 350M to 400B parameters, and parts of them."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any

from choreo.calibrate.device.kernels import MeasuredKernel
from choreo.calibrate.device.measure_cuda import KernelTimer, cuda_device

__all__ = ["measure_cuda"]

TOKENS = (256, 1024, 2048, 4096, 8192, 16384)
# Columns and inner length: whole layers, then their tensor-parallel parts, then output layers.
LAYERS = (
    *((1024, 1024), (4096, 1024), (1024, 4096), (2048, 2048), (8192, 2048), (2048, 8192), (4096, 4096), (16384, 4096)),
    *((4096, 16384), (8192, 8192), (28672, 8192), (8192, 28672), (12288, 12288), (2304, 2304), (9216, 2304)),
    *((1536, 12288), (4608, 12288), (12288, 1536), (6144, 12288), (12288, 6144), (1536, 4096), (4096, 1792)),
    *((3584, 4096), (1280, 8192), (8192, 1024), (7168, 8192), (8192, 3584)),
    *((32000, 4096), (50304, 2048), (16032, 4096)),
)
FEWER = (
    *((4096, 4096), (6144, 4096), (14336, 4096), (4096, 14336), (8192, 8192), (28672, 8192), (8192, 28672)),
    *((12288, 12288), (4608, 12288), (2048, 2048)),
)
# m, n, k of weight gradients, whose inner length is the tokens.
GRADIENTS = (
    *((4096, 4096, 8192), (14336, 4096, 8192), (4096, 14336, 8192), (12288, 12288, 4096), (12288, 4608, 2048)),
    *((49152, 12288, 4096), (2048, 8192, 16384), (8192, 8192, 16384), (1024, 4096, 4096)),
)
BURSTS = (
    *((1024, 1024, 1024), (2048, 2048, 2048), (1024, 4096, 4096), (4096, 4096, 4096), (8192, 8192, 8192)),
    *((1024, 12288, 12288), (2048, 8192, 4096), (4096, 12288, 1536), (4096, 1536, 12288), (1024, 8192, 28672)),
    *((1024, 28672, 8192), (2048, 32000, 4096)),
)
# Batch, sequence and head size of attention that is not fused.
BATCHED = (
    *((64, 1024, 64), (64, 2048, 64), (24, 2048, 96), (48, 2048, 128), (96, 2048, 128), (16, 4096, 128)),
    *((12, 2048, 128),),
)
HEADS = ((16, 64), (32, 128), (64, 128), (12, 128))
SEQUENCES = (1024, 2048, 4096, 8192, 16384)
ROWS_AND_COLUMNS = ((1024, 1024), (4096, 2048), (8192, 4096), (16384, 4096), (16384, 8192), (16384, 16384))


def measure_cuda(progress: Callable[[str], None] | None = None) -> list[MeasuredKernel]:
    """Measure the first CUDA device; takes a few minutes."""
    torch, properties = cuda_device()
    timer = KernelTimer(torch, properties.L2_cache_size)
    parts: dict[str, Iterator[MeasuredKernel]] = {"matrix products": _matmuls(timer)}
    if (properties.major, properties.minor) >= (8, 9):
        parts["8-bit products"] = _eight_bit(timer)
    parts["batched products"] = _batched(timer)
    parts["memory-bound kernels"] = _memory_bound(timer)
    parts["attention"] = _attention(timer)
    kernels: list[MeasuredKernel] = []
    for name, part in parts.items():
        if progress is not None:
            progress(name)
        with torch.no_grad():
            kernels.extend(part)
        torch.cuda.empty_cache()
    return kernels


def _product(kind: str, shape: tuple[int, int, int], dtype: str, time_s: float, *, batch: int = 1) -> MeasuredKernel:
    m, n, k = shape
    return MeasuredKernel(kind, m, n, k, dtype, time_s, 2e-12 * batch * m * n * k / time_s)


def _matmuls(timer: KernelTimer) -> Iterator[MeasuredKernel]:
    torch = timer.torch
    sixteen, name = _sixteen_bits(torch)
    for n, k in LAYERS:
        for m in TOKENS:
            yield _matmul(timer, "gemm", (m, n, k), sixteen, name)
    for n, k in FEWER:
        for m in (2048, 8192):
            yield _matmul(timer, "gemm_nn", (m, n, k), sixteen, name)
    for shape in GRADIENTS:
        yield _matmul(timer, "gemm_nt", shape, sixteen, name)
    for shape in BURSTS:
        yield _matmul(timer, "gemm_burst", shape, sixteen, name)
    for precision, setting in (("fp32", "highest"), ("tf32", "high")):
        torch.set_float32_matmul_precision(setting)
        for size in (2048, 4096) if precision == "fp32" or name == "bf16" else ():
            yield _matmul(timer, "gemm", (size, size, size), torch.float32, precision)
    torch.set_float32_matmul_precision("highest")


def _sixteen_bits(torch: Any) -> tuple[Any, str]:
    """The type of sixteen bits that the device's tensor cores know, and its name."""
    return (torch.bfloat16, "bf16") if torch.cuda.get_device_capability()[0] >= 8 else (torch.float16, "fp16")


def _matmul(timer: KernelTimer, kind: str, shape: tuple[int, int, int], dtype: Any, name: str) -> MeasuredKernel:
    torch = timer.torch
    m, n, k = shape
    calls = []
    for _ in timer.sets(dtype.itemsize * (m * k + k * n + m * n)):
        # As layers keep them: an input of m x k by a weight of n x k; the other orders are those of backward.
        left = timer.random(k, m, dtype=dtype).t() if kind == "gemm_nt" else timer.random(m, k, dtype=dtype)
        weight_first = kind in ("gemm", "gemm_burst")
        right = timer.random(n, k, dtype=dtype).t() if weight_first else timer.random(k, n, dtype=dtype)
        calls.append(partial(torch.mm, left, right, out=torch.empty(m, n, device="cuda", dtype=dtype)))
    return _product(kind, shape, name, timer.graphed(calls, burst=kind == "gemm_burst"))


def _eight_bit(timer: KernelTimer) -> Iterator[MeasuredKernel]:
    torch = timer.torch
    multiply, eight = torch._scaled_mm, torch.float8_e4m3fn
    unit = torch.ones((), device="cuda", dtype=torch.float32)
    options = {"scale_a": unit, "scale_b": unit, "out_dtype": torch.bfloat16}
    for kind, fast in (("gemm", True), ("gemm_split", False)):
        for n, k in FEWER:
            for m in (1024, 4096, 8192, 16384) if fast else (1024, 8192):
                calls = [
                    partial(
                        multiply,
                        timer.random(m, k).to(eight),
                        timer.random(n, k).to(eight).t(),
                        use_fast_accum=fast,
                        **options,
                    )
                    for _ in timer.sets(m * k + k * n + 2 * m * n)
                ]
                yield _product(kind, (m, n, k), "fp8", timer.graphed(calls))


def _batched(timer: KernelTimer) -> Iterator[MeasuredKernel]:
    torch = timer.torch
    sixteen, name = _sixteen_bits(torch)
    for batch, sequence, head in BATCHED:
        for m, n, k in ((sequence, sequence, head), (sequence, head, sequence)):
            calls = [
                partial(
                    torch.bmm,
                    timer.random(batch, m, k, dtype=sixteen),
                    timer.random(batch, k, n, dtype=sixteen),
                    out=torch.empty(batch, m, n, device="cuda", dtype=sixteen),
                )
                for _ in timer.sets(2 * batch * (m * k + k * n + m * n))
            ]
            yield _product("bmm", (m, n, k), f"{name}x{batch}", timer.graphed(calls), batch=batch)


def _attention(timer: KernelTimer) -> Iterator[MeasuredKernel]:
    module = importlib.import_module("torch.nn.attention")
    backends = {"attn": module.SDPBackend.CUDNN_ATTENTION, "flash2": module.SDPBackend.FLASH_ATTENTION}
    for name, backend in backends.items():
        # A device may not have a kernel of one library; those of the other are measured all the same.
        with suppress(RuntimeError), module.sdpa_kernel(backend), timer.torch.enable_grad():
            yield from _attention_by(timer, name)


def _attention_by(timer: KernelTimer, name: str) -> Iterator[MeasuredKernel]:
    """Attention of one library, which has been chosen."""
    for heads, head in HEADS:
        for sequence in SEQUENCES:
            shape = (max(1, 16384 // sequence), heads, sequence, head)
            for causal in (True, False) if heads == 32 else (True,):
                yield from _one_attention(timer, name, shape, causal)


def _one_attention(
    timer: KernelTimer, name: str, shape: tuple[int, int, int, int], causal: bool
) -> Iterator[MeasuredKernel]:
    torch = timer.torch
    batch, heads, sequence, head = shape
    operands = [timer.random(*shape).requires_grad_() for _ in range(3)]
    gradient = timer.random(*shape)
    attend = torch.nn.functional.scaled_dot_product_attention

    def forward() -> object:
        with torch.no_grad():
            return attend(*operands, is_causal=causal)

    def both() -> object:
        return torch.autograd.grad(attend(*operands, is_causal=causal), operands, gradient)

    flops = 4e-12 * batch * heads * sequence**2 * head * (0.5 if causal else 1)
    mask = "causal" if causal else "full"
    for direction, call, times in (("fwd", forward, 1.0), ("fwdbwd", both, 3.5)):
        time_s = timer.eager(call)
        yield MeasuredKernel(
            f"{name}_{direction}_{mask}", batch, heads, sequence, f"d{head}", time_s, flops * times / time_s
        )


def _memory_bound(timer: KernelTimer) -> Iterator[MeasuredKernel]:
    torch = timer.torch
    functional = torch.nn.functional
    for rows, columns in ROWS_AND_COLUMNS:
        size = 2.0 * rows * columns  # bytes of a matrix
        weight, bias = timer.random(columns), timer.random(columns)
        indices = torch.randint(0, rows, (rows,), device="cuda")
        # How many times that a kernel reads and writes, and how it is called on two matrices.
        kernels: dict[str, tuple[float, Callable[[Any, Any], Callable[[], object]]]] = {
            "copy": (2.0, lambda x, y: partial(y.copy_, x)),
            "add": (3.0, lambda x, y: partial(torch.add, x, y, out=y)),
            "swiglu": (5.0, lambda x, y: lambda: functional.silu(x) * y),
            "gelu": (2.0, lambda x, y: partial(functional.gelu, x)),
            "dropout": (2.5, lambda x, y: partial(torch.native_dropout, x, 0.1, True)),
            "layernorm": (2.0, partial(_norm, functional.layer_norm, columns, (weight, bias))),
            "rmsnorm": (2.0, partial(_norm, functional.rms_norm, columns, (weight,))),
            "softmax": (2.0, lambda x, y: partial(torch.softmax, x, -1)),
            "log_softmax": (2.0, lambda x, y: partial(torch.log_softmax, x, -1)),
            "reduction": (1.0, lambda x, y: partial(torch.sum, x, -1)),
            "amax": (1.0, lambda x, y: partial(torch.aminmax, x)),
            "cast_fp32": (3.0, lambda x, y: x.float),
            "cast_fp8": (1.5, lambda x, y: partial(x.to, torch.float8_e4m3fn)),
            "embedding": (2.0, partial(_embedding, functional.embedding, indices)),
        }
        pairs = [(timer.random(rows, columns), timer.random(rows, columns)) for _ in timer.sets(2 * size)]
        for kind, (times, call) in kernels.items():
            time_s = timer.graphed([call(x, y) for x, y in pairs])
            yield MeasuredKernel(kind, rows, columns, 0, "bf16", time_s, 1e-12 * times * size / time_s)
    for elements in (1 << 22, 1 << 26, 1 << 28):
        yield _adam(timer, elements)


def _norm(norm: Callable[..., object], columns: int, weights: tuple[Any, ...], x: Any, y: Any) -> Callable[[], object]:
    return partial(norm, x, (columns,), *weights)


def _embedding(look_up: Callable[..., object], indices: Any, x: Any, y: Any) -> Callable[[], object]:
    return partial(look_up, indices, x)


def _adam(timer: KernelTimer, elements: int) -> MeasuredKernel:
    torch = timer.torch
    parameter, gradient, first, second = (torch.randn(elements, device="cuda") for _ in range(4))
    step = torch.ones((), device="cuda")
    options = {"lr": 1e-4, "beta1": 0.9, "beta2": 0.95, "weight_decay": 0.1, "eps": 1e-8}
    call = partial(
        torch._fused_adam_,
        *([parameter], [gradient], [first], [second.abs_()], [], [step]),
        **options,
        amsgrad=False,
        maximize=False,
    )
    time_s = timer.graphed([call])
    return MeasuredKernel("adam", elements, 0, 0, "fp32", time_s, 1e-12 * 28 * elements / time_s)
