"""Measured kernels: their files, the constants fitted to them, what is left, and calibration around a device."""

from __future__ import annotations

import csv
import runpy
import sys
import types
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from choreo.calibrate.device import (
    MeasuredKernel,
    calibrate,
    calibrate_device,
    cross_validate,
    errors,
    fit_device,
    predict,
    read_kernels,
    shapes,
    write_kernels,
)
from choreo.errors import DeviceError
from choreo.hardware import Device, get_device, read_device
from choreo.plan.layer.framework_kernels import TOP_K_MOVED
from choreo.plan.layer.kernels import ROW_EXPERTS

DATA = Path(calibrate.__file__).parent / "data"
H200 = get_device("H200-141G-SXM")


@pytest.fixture(scope="module")
def measured() -> tuple[MeasuredKernel, ...]:
    return read_kernels(DATA / "h200_calibrated.csv")


def part(kernels: tuple[MeasuredKernel, ...], start: str) -> list[MeasuredKernel]:
    return [one for one in kernels if one.kind.startswith(start)]


def test_the_curves_are_near_what_was_measured(measured: tuple[MeasuredKernel, ...]) -> None:
    for start, median, ninetieth in (
        ("gemm", 0.02, 0.07),
        ("bmm", 0.03, 0.10),
        ("attn", 0.02, 0.06),
        ("flash2", 0.02, 0.06),
    ):
        found = errors(H200, part(measured, start))
        assert found.median < median
        assert found.ninetieth < ninetieth
        assert abs(found.bias) < 0.02


def test_kernels_left_out_of_the_fit_are_predicted_as_well(measured: tuple[MeasuredKernel, ...]) -> None:
    products = part(measured, "gemm")[::2]
    found = errors(H200, products, cross_validate(H200, products))
    assert found.median < 0.025
    assert found.ninetieth < 0.08


def test_the_published_kernels_lie_where_bursts_and_steady_work_do() -> None:
    kernels = read_kernels(DATA / "h200_kernels.csv")
    assert len(kernels) == 106
    later = [one for one in kernels if one.is_matmul and one.m > 1024 and one.time_s > 100e-6]
    found = errors(H200, later)
    assert found.median < 0.06


def test_products_of_experts_are_near_what_was_measured() -> None:
    kernels = read_kernels(DATA / "h200_experts.csv")
    for kind, dtype, median in (
        ("gemm", "bf16", 0.04),
        ("gemm_nt", "bf16", 0.05),
        ("gemm", "fp8", 0.03),
        ("gemm_split", "fp8", 0.05),
    ):
        found = errors(H200, [one for one in kernels if (one.kind, one.dtype) == (kind, dtype)])
        assert found.kernels > 50
        assert found.median < median
    split = [one for one in kernels if one.kind == "gemm_split"]
    assert fit_device(H200, split).curves.precision["fp8-split"] == pytest.approx(0.842, abs=0.002)
    assert errors(without_split(H200), split).bias < -0.05  # without that constant they are too fast


def without_split(device: Device) -> Device:
    precision = {name: value for name, value in device.curves.precision.items() if "split" not in name}
    return replace(device, curves=replace(device.curves, precision=precision))


def test_torch_multiplies_experts_with_a_scale_a_row_more_slowly() -> None:
    """The factor of such products in `plan.layer.kernels`, and that of top-k, are those of the table."""
    kernels = read_kernels(DATA / "h200_experts.csv")
    grouped = [one for one in kernels if one.kind == "grouped_row" and one.m >= 1024]
    alone = np.array([one.batch * float(H200.matmul_time(one.m, one.n, one.k, "fp8")) for one in grouped])
    assert np.median([one.time_s for one in grouped] / alone) == pytest.approx(ROW_EXPERTS, abs=0.05)
    for one in kernels:
        if one.kind == "topk" and one.n > 8:
            moved = 2 * one.m * one.n + 8 * one.m * one.k
            assert H200.memory_time(TOP_K_MOVED * moved, "reduction") == pytest.approx(one.time_s, rel=0.25)


def test_heads_of_many_features_take_longer_for_their_flops() -> None:
    """Factors `wide` and `widest` are those of the table; latent attention has 192 features and 128 of values."""
    with (DATA / "h200_wide_heads.csv").open() as lines:
        rows = list(csv.DictReader(line for line in lines if not line.startswith("#")))
    assert {row["value_features"] for row in rows} == {"64", "128", "192", "256"}
    for row in rows:
        batch, heads, seq, keys, values = (
            float(row[name]) for name in ("batch", "heads", "seq", "features", "value_features")
        )
        for backward, measured in ((False, row["forward_s"]), (True, row["backward_s"])):
            flash = 3 if row["kernel"] == "cudnn" else 2
            mean = (keys + values) / 2
            time_s = H200.attention_time(batch, heads, seq, seq, mean, backward=backward, flash=flash)
            assert time_s == pytest.approx(float(measured), rel=0.12), row


def test_the_architecture_holds_what_the_fit_gives(measured: tuple[MeasuredKernel, ...]) -> None:
    """The constants in the catalogue are those fitted to the data beside them."""
    fitted = fit_device(H200, measured)
    shape = (np.array([512, 4096, 16384]), 4096, np.array([1024, 4096, 16384]))
    np.testing.assert_allclose(fitted.matmul_time(*shape), H200.matmul_time(*shape), rtol=0.02)
    attention = (2, 32, np.array([1024, 8192]), np.array([1024, 8192]), 128)
    np.testing.assert_allclose(fitted.attention_time(*attention), H200.attention_time(*attention), rtol=0.03)
    np.testing.assert_allclose(fitted.memory_time(1e9, "norm"), H200.memory_time(1e9, "norm"), rtol=0.02)


def changed(device: Device) -> Device:
    curves = device.curves
    return replace(
        device,
        curves=replace(
            curves,
            matmul=replace(curves.matmul, issue=0.66, k_ramp=200.0),
            power=replace(curves.power, sm_w=4.5),
            memory={**curves.memory, "norm": replace(curves.memory["norm"], bytes_per_clock=7.0)},
        ),
    )


def test_a_fit_finds_the_constants_that_made_the_times(measured: tuple[MeasuredKernel, ...]) -> None:
    truth = changed(H200)
    times = predict(truth, measured)
    made = [replace(one, time_s=float(time), rate=one.rate * one.time_s / float(time))
            for one, time in zip(measured, times, strict=True) if not np.isnan(time)]  # fmt: skip
    assert errors(H200, made).median > 0.02
    fitted = fit_device(H200, made)
    assert errors(fitted, made).median < 0.005
    assert fitted.curves.matmul.issue == pytest.approx(0.66, rel=0.02)
    assert fitted.curves.power.sm_w == pytest.approx(4.5, rel=0.03)
    assert fitted.curves.memory["norm"].bytes_per_clock == pytest.approx(7.0, rel=0.02)


def test_kernels_that_no_curve_describes_are_left_out() -> None:
    odd = MeasuredKernel("sorting", 1, 1, 1, "bf16", 1.0, 1.0)
    assert np.isnan(predict(H200, [odd])).all()
    assert fit_device(H200, [odd]) == H200


def test_kernels_read_back_as_written(measured: tuple[MeasuredKernel, ...], tmp_path: Path) -> None:
    write_kernels(tmp_path / "k.csv", measured, ["where from"])
    assert (tmp_path / "k.csv").read_text().startswith("# where from\nkind,m,n,k,")
    assert read_kernels(tmp_path / "k.csv") == measured
    assert part(measured, "bmm")[0].batch == 64
    assert part(measured, "gemm")[0].batch == 1
    assert part(measured, "copy")[0].bytes_moved == pytest.approx(4 * 1024 * 1024, rel=1e-4)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "first line must be kind,m,n,k"),
        ("a,b\n", "first line must be kind,m,n,k"),
        ("kind,m,n,k,dtype,time_s,tflops\ngemm,1,2,3,bf16,0.1\n", "kernel 1 is not kind,m,n,k"),
        ("kind,m,n,k,dtype,time_s,tflops\ngemm,1,2,3,bf16,0.1,x\n", "kernel 1 is not kind,m,n,k"),
        (f"kind,m,n,k,dtype,time_s,tflops\nbmm,1,2,3,bf16x{'9' * 5000},0.1,1\n", "kernel 1 is not kind,m,n,k"),
        ("kind,m,n,k,dtype,time_s,tflops\ngemm,1,2,3,bf16,-1,5\n", "takes -1 s at 5"),
        ("kind,m,n,k,dtype,time_s,tflops\n" + "g" * 200_000, "no table of kernels: field larger than"),
    ],
)
def test_a_broken_table_says_where(text: str, told: str, tmp_path: Path) -> None:
    (tmp_path / "k.csv").write_text(text)
    with pytest.raises(DeviceError, match=told):
        read_kernels(tmp_path / "k.csv")
    with pytest.raises(DeviceError, match="cannot be read"):
        read_kernels(tmp_path / "nothing.csv")


def test_calibration_says_what_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(DeviceError, match="only devices of kind 'cuda'"):
        calibrate_device("rocm")
    with pytest.raises(DeviceError, match="there is no folder"):
        calibrate_device(path=tmp_path / "none" / "mine")
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(DeviceError, match="needs PyTorch"):
        calibrate_device()
    blind = types.SimpleNamespace(__version__="2.0", cuda=types.SimpleNamespace(is_available=lambda: False))
    monkeypatch.setitem(sys.modules, "torch", blind)
    with pytest.raises(DeviceError, match=r"PyTorch 2\.0 sees no CUDA device"):
        calibrate_device()


def properties(name: str, major: int, minor: int = 0) -> types.SimpleNamespace:
    return types.SimpleNamespace(
        name=name, major=major, minor=minor, total_memory=64 << 30, multi_processor_count=120, L2_cache_size=40 << 20,
        clock_rate=1_700_000, memory_clock_rate=1_600_000, memory_bus_width=5120,
    )  # fmt: skip


@pytest.mark.parametrize(("name", "architecture"), [("NVIDIA H200", "hopper"), ("NVIDIA Q1", "ampere")])
def test_a_calibrated_device_is_written_and_read_back(
    name: str, architecture: str, monkeypatch: pytest.MonkeyPatch, measured: tuple[MeasuredKernel, ...], tmp_path: Path
) -> None:
    """The device is mocked: what PyTorch says of it, and the kernels measured on it."""
    some = list(measured[::4])
    torch = types.SimpleNamespace(__version__="2.0")
    monkeypatch.setattr(
        calibrate, "cuda_device", lambda: (torch, properties(name, 9 if architecture == "hopper" else 8))
    )
    monkeypatch.setattr(calibrate, "measure_cuda", lambda progress: some)
    monkeypatch.setattr("shutil.which", lambda command: None)
    found = calibrate_device(path=tmp_path / "mine")
    device = read_device(tmp_path / "mine.toml")
    assert device == found.device
    assert (device.architecture, device.memory_bytes, device.sms) == (architecture, 64 << 30, 120)
    assert read_kernels(tmp_path / "mine.csv") == tuple(some)
    assert f"on one {name}, PyTorch 2.0" in device.curves.sources[0].source
    if architecture == "ampere":
        assert device.memory_bandwidth_bytes_per_s == pytest.approx(2.048e12)
        assert device.peak("bf16") == pytest.approx(2048 * 120 * 1.7e9)


@pytest.mark.parametrize(("minor", "fp8"), [(6, None), (9, 2048)])
def test_workstation_cards_have_more_fp32_and_ada_has_fp8(
    minor: int, fp8: int | None, monkeypatch: pytest.MonkeyPatch, measured: tuple[MeasuredKernel, ...]
) -> None:
    """By the datasheets of A40 and L40S: fp32 is a quarter of bf16, and Ada's fp8 twice that."""
    torch, card = types.SimpleNamespace(__version__="2.0"), properties("NVIDIA Q5", 8, minor)
    monkeypatch.setattr(calibrate, "cuda_device", lambda: (torch, card))
    monkeypatch.setattr(calibrate, "measure_cuda", lambda progress: list(measured[::8]))
    monkeypatch.setattr("shutil.which", lambda command: None)
    peak = calibrate_device().device.peak_flops
    per_clock = {name: round(flops / (120 * 1.7e9)) for name, flops in peak.items()}
    assert (per_clock["bf16"], per_clock["fp32"], per_clock.get("fp8")) == (1024, 256, fp8)


def test_attention_of_one_library_is_measured_where_the_other_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")

    def one(timer: object, name: str, shape: object, causal: bool) -> Iterator[MeasuredKernel]:
        if name == "attn":
            raise RuntimeError("no available kernel")
        yield MeasuredKernel(f"{name}_fwd_causal", 1, 1, 1, "d64", 1.0, 1.0)

    monkeypatch.setattr(shapes, "_one_attention", one)
    found = list(shapes._attention(types.SimpleNamespace(torch=torch)))  # type: ignore[arg-type]  # nothing is timed
    assert [kernel.kind for kernel in found] == ["flash2_fwd_causal"] * 25


def test_a_chip_of_unknown_architecture_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibrate, "cuda_device", lambda: (types.SimpleNamespace(), properties("NVIDIA Q2", 3)))
    monkeypatch.setattr("shutil.which", lambda command: None)
    with pytest.raises(DeviceError, match=r"compute capability 3\.0"):
        calibrate_device()


def test_the_report_names_every_device_and_part(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_module("choreo.calibrate.device", run_name="__main__")
    told = capsys.readouterr().out
    assert "H100-80G-SXM " in told
    for name in ("matmuls, bf16", "attention, flash-2", "memory-bound", "h200_kernels.csv"):
        assert name in told
