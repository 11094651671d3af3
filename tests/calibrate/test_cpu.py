"""`choreo calibrate --device cpu`: the fit, what is kept and what is refused, and one real probe of each kind."""

from __future__ import annotations

import importlib.util
import io
import json
import os
import sys
from pathlib import Path

import numpy as np
import pytest

from choreo.calibrate import device
from choreo.calibrate.device import cpu_rank
from choreo.calibrate.device.calibrate_cpu import CpuCalibration, calibrate_cpu
from choreo.calibrate.device.cpu_layer import COLLECTIVES, FEATURES, HEADS, OPERATORS, TOKENS
from choreo.calibrate.device.fit_cpu import collective_s, cpu_errors, fit_shared
from choreo.calibrate.device.measure_cpu import PROBES, CpuProbe, CpuRanks, measure_cpu, request
from choreo.cli.commands.calibrate import measure_processor
from choreo.errors import CalibrationError, DeviceError
from choreo.hardware import read_device
from choreo.hardware.cpu import Cpu
from choreo.hardware.cpu_file import cpu_from
from choreo.plan import get_software
from choreo.plan.layer.work import layer_work
from choreo.workload import Model, Plan
from tests.helpers.broken_torch import break_torch
from tests.helpers.processor import processor
from tests.helpers.ranks.forks import forked_function, import_torch

AMONG_OTHERS = 2.0  # how much longer an operator takes among others


class Truth:
    """Processes that know how long everything takes, and are disturbed in one round."""

    def __init__(self, cpu: Cpu, noise: float = 0.0) -> None:
        self.cpu, self.calls, self.noise = cpu, 0, np.random.default_rng(0).normal(0, noise, 10000)

    def time(self, probe: CpuProbe, ranks: int, window_s: float) -> float:
        one = self.cpu.for_ranks(ranks)
        self.calls += 1
        busy = 10.0 if self.calls <= 3 * len(PROBES) else 1.0
        return busy * float(np.exp(self.noise[self.calls])) * self.seconds(one, probe) / one.sharing

    def seconds(self, one: Cpu, probe: CpuProbe) -> float:
        among_others_s = one.launch_s * (1 - 1 / AMONG_OTHERS)  # probes run one kernel again and again
        if probe.kind.startswith("gemm"):
            return float(one.matmul_time(probe.m, probe.n, probe.k, probe.dtype)) - among_others_s
        if probe.kind.startswith("attn_"):
            causal, shape = probe.kind.endswith("causal"), (probe.m, probe.n, probe.k, probe.k, probe.head_dim)
            forward = float(one.attention_time(*shape, causal, probe.dtype))
            back = float(one.attention_time(*shape, causal, probe.dtype, True)) if "fwdbwd" in probe.kind else 0.0
            return forward + back - among_others_s * (2 if back else 1)
        if probe.bytes_moved:
            return float(one.memory_time(probe.bytes_moved, probe.kind)) - among_others_s
        alone_s = one.launch_s / AMONG_OTHERS
        hollow_s = 2 * OPERATORS / COLLECTIVES * one.launch_s
        cut_s = hollow_s + one.collective_s
        return {"operator": alone_s, "whole": one.launch_s, "hollow": hollow_s, "cut": cut_s}[probe.kind]


def calibrated(noise: float = 0.0) -> CpuCalibration:
    truth = processor()
    times = measure_cpu(Truth(truth, noise), (1, 2, 4), 2, rounds=3)
    shared = [fit_shared(found, ranks) for ranks, found in times.items()]
    call_s = collective_s(times[1])
    cpu = cpu_from(name="p", host="h", cores=2, memory_bytes=1 << 30, collective_s=call_s, shared=shared)
    return CpuCalibration(cpu, times, cpu_errors(cpu, times), 1.5)


def test_the_fit_finds_the_processor_again_though_a_round_was_disturbed() -> None:
    found, truth = calibrated(), processor()
    assert found.median_error < 0.02
    assert (found.operator_s, found.collective_s) == pytest.approx((truth.launch_s, truth.collective_s))
    for ranks in (1, 2, 4):
        one, other = found.cpu.for_ranks(ranks), truth.for_ranks(ranks)
        assert float(one.matmul_time(300, 700, 300, "fp32")) == pytest.approx(
            float(other.matmul_time(300, 700, 300, "fp32")), rel=0.03
        )
        for kind, size in (("norm", 3e5), ("optimizer", 2e7)):
            assert float(one.memory_time(size, kind)) == pytest.approx(float(other.memory_time(size, kind)), rel=0.1)
        for way in (("fp32", False), ("bf16", False), ("bf16", True)):
            shape = (4, 4, 200, 200, 64, True, *way)
            assert float(one.attention_time(*shape)) == pytest.approx(float(other.attention_time(*shape)), rel=0.05)


def test_a_small_layer_has_as_many_operators_and_collectives_as_the_planner_counts() -> None:
    model = Model("small", 4, FEATURES, HEADS, vocab=64, norm="layer", bias=True, learned_positions=TOKENS)
    style = get_software("choreo-train").style
    alone, cut = (layer_work("dense", model, Plan(tp=tp, precision="fp32"), TOKENS, style) for tp in (1, 2))
    assert sum(len(one.kernels) + one.extra_launches for one in alone.passes) == OPERATORS
    assert sum(len(one.collectives) for one in cut.passes) == COLLECTIVES


def test_garbage_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CHOREO_CONSTANTS", str(tmp_path / "new" / "constants.json"))
    bad = calibrated(noise=1.5)
    with pytest.raises(CalibrationError, match=r"not kept: the error of the fit is \d+ % .* load average is 1.5 on 2"):
        bad.save()
    monkeypatch.setattr(device, "calibrate_cpu", lambda **_: bad)
    assert measure_processor(None, 3, False, keep=True, force=False) == 1
    assert "choreo: not kept" in capsys.readouterr().err
    assert measure_processor(None, 3, True, keep=True, force=True) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["file"] == str(tmp_path / "new" / "constants.cpu.toml")
    assert read_device(told["file"]) == bad.cpu
    monkeypatch.setattr(device, "calibrate_cpu", lambda **_: calibrated())
    assert measure_processor(tmp_path / "mine.toml", 3, False, keep=True, force=False) == 0
    printed = capsys.readouterr().out
    assert "matmuls, fp32" in printed and "mine.toml" in printed


def test_without_pytorch_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(
        DeviceError,
        match=r"needs PyTorch, which is not installed: pip install 'choreo\[torch\]'$",
    ):
        calibrate_cpu()


def test_broken_pytorch_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    break_torch(tmp_path, monkeypatch)
    with pytest.raises(DeviceError, match=r"PyTorch, which is installed but cannot be imported: OSError: no libtorch"):
        CpuRanks(1)
    assert not capfd.readouterr().err


def test_every_kind_of_kernel_is_timed() -> None:
    import_torch()
    kinds: dict[str, CpuProbe] = {}
    for probe in PROBES:
        kinds.setdefault(probe.kind, probe)  # the first of a kind is small

    def rank() -> int:
        sys.stdin = io.StringIO("".join(request(probe, 1e-4) for probe in kinds.values()))
        return cpu_rank.main()

    ran = forked_function(rank)
    ready, *answers = map(json.loads, ran.out.splitlines())
    assert ran.code == 0 and "ready" in ready and len(answers) == len(kinds)
    assert all(0 < answer["time_s"] < 10 for answer in answers)


def test_processes_time_a_kernel_and_their_end_is_noticed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    monkeypatch.setenv("CHOREO_CONSTANTS", str(tmp_path / "yet to come.json"))
    collective = next(probe for probe in PROBES if probe.kind == "cut")
    with CpuRanks(1) as ranks:
        assert 0 < ranks.time(PROBES[0], 1, 1e-4) < 10
        assert 0 < ranks.time(collective, 1, 1e-4) < 10
        os.kill(ranks._started[0].pid, 9)
        with pytest.raises(DeviceError, match="ended with status -9"):
            ranks.time(PROBES[0], 1, 1e-4)


def test_a_process_that_cannot_start_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(DeviceError, match="ended with status 1"):
        CpuRanks(1)
