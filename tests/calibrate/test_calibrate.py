"""`choreo calibrate`: the fit finds constants that are there, and what is kept is what is used."""

from __future__ import annotations

import os
import socket
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from choreo.algorithms import build
from choreo.calibrate.calibrate import PROBES, SIZES, Calibration, calibrate
from choreo.calibrate.device.calibrate_cpu import calibrate_cpu
from choreo.calibrate.fit import Sample, fit
from choreo.cli import COMMANDS
from choreo.errors import CalibrationError, UsageError
from choreo.price import CostModel, price
from choreo.run.execute.constants import (
    Band,
    Constants,
    constants_path,
    decode_constants,
    default_constants,
    load_constants,
    save_constants,
)
from tests.helpers.command import run_choreo


@pytest.fixture(autouse=True)
def nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("CHOREO_CONSTANTS", raising=False)
    monkeypatch.setitem(COMMANDS, "calibrate", "Measure.")


def made_up(ranks: int, link: CostModel, cores: int) -> list[Sample]:
    """What probes would take on a machine that is exactly so."""
    return [
        Sample(collective, algorithm, ranks, size, size, price(schedule, size, link, ports="read", cores=cores).total_s)
        for collective, algorithm in PROBES
        for schedule in (build(collective, algorithm, ranks),)
        for size in SIZES
    ]


@pytest.mark.parametrize("cores", [1, 2, 64])
@pytest.mark.parametrize("ranks", [2, 4, 5, 8])
def test_the_fit_finds_the_constants_that_are_there(ranks: int, cores: int) -> None:
    link = CostModel(3e-6, 5e9, 2e-10)
    bands = fit(made_up(ranks, link, cores), cores)
    assert [band.to_bytes for band in bands][-1] == 1 << 62
    assert [band.to_bytes for band in bands] == sorted({band.to_bytes for band in bands})
    for band in bands:
        assert band.residual < 1e-6
        assert band.alpha_s == pytest.approx(link.alpha_s, rel=1e-3)
        assert band.bandwidth_bytes_per_s == pytest.approx(link.bandwidth_bytes_per_s, rel=1e-3)
        assert band.gamma_s_per_byte == pytest.approx(link.gamma_s_per_byte, rel=1e-3)


def test_the_fit_says_how_far_it_is_off() -> None:
    samples = made_up(4, CostModel(3e-6, 5e9, 2e-10), 2)
    twice = {"broadcast": 2.0, "all_gather": 2.0}
    crooked = [replace(one, time_s=one.time_s * twice.get(one.collective, 1.0)) for one in samples]
    assert max(band.residual for band in fit(crooked, 2)) > 0.05


def test_constants_of_a_size_and_number_of_ranks() -> None:
    near = Band(2, 1000, 1e-6, 1e9, 0.0)
    far = Band(2, 1 << 62, 2e-6, 2e9, 0.0)
    eight = Band(8, 1 << 62, 3e-6, 3e9, 0.0)
    apart = Band(2, 1 << 62, 4e-6, 4e9, 0.0, "registered")
    constants = Constants((far, near, eight, apart))
    assert constants.cost_model_for(1000, 2) == near.cost_model
    assert constants.cost_model_for(1001, 2) == far.cost_model
    assert constants.cost_model_for(1e30, 3) == far.cost_model
    assert constants.cost_model_for(8, 5) == constants.cost_model_for(8, 100) == eight.cost_model
    assert constants.cost_model_for(8, 2, buffers="registered") == apart.cost_model
    assert constants.cost_model_for(8, 1) == near.cost_model


@given(size=st.floats(0, 1e18), ranks=st.integers(1, 5000))
def test_defaults_answer_everything(size: float, ranks: int) -> None:
    link = default_constants().cost_model_for(size, ranks)
    assert link.alpha_s > 0 and link.bandwidth_bytes_per_s > 0 and link.gamma_s_per_byte > 0


def test_what_is_kept_is_what_is_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert load_constants() == default_constants()
    measured = Constants((Band(2, 1 << 62, 1e-6, 1e9, 1e-10),), host=socket.gethostname(), date="2026-01-01")
    assert save_constants(measured) == constants_path() == tmp_path / "choreo" / "constants.json"
    assert load_constants() == measured
    assert os.listdir(tmp_path / "choreo") == ["constants.json"]  # noqa: PTH208 - names are all that is asked for
    elsewhere = msgspec.structs.replace(measured, host="elsewhere")
    save_constants(elsewhere)
    assert load_constants() == default_constants()
    monkeypatch.setenv("CHOREO_CONSTANTS", str(tmp_path / "choreo" / "constants.json"))
    assert load_constants() == elsewhere
    monkeypatch.setenv("CHOREO_CONSTANTS", str(tmp_path / "nowhere.json"))
    with pytest.raises(UsageError, match=r"there is no .*nowhere\.json; make it with choreo calibrate"):
        load_constants()


def test_what_is_no_file_stays_what_it_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    monkeypatch.setenv("CHOREO_CONSTANTS", str(pipe))
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    save_constants(default_constants())
    assert os.read(reader, 1 << 20).startswith(b"{") and pipe.is_fifo()
    os.close(reader)


def test_a_user_without_a_home_folder_has_the_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 54321)  # of whom the system knows nothing, as in many containers
    assert load_constants() == default_constants()
    with pytest.raises(UsageError, match=r"no home folder .* set CHOREO_CONSTANTS"):
        save_constants(default_constants())


def band_with(ranks: int, alpha_s: float) -> bytes:
    rest = {"to_bytes": 8, "bandwidth_bytes_per_s": 1, "gamma_s_per_byte": 0}
    return msgspec.json.encode({"bands": [{"ranks": ranks, "alpha_s": alpha_s, **rest}]})


@pytest.mark.parametrize(
    ("document", "said"),
    [
        (b"{", "Input data was truncated"),
        (b'{"bands": []}', "bands is empty"),
        (b'{"bands": [], "format": "x"}', "its format is x"),
        (b'{"bands": [{"ranks": 2}]}', r"missing required field `to_bytes` - at `\$.bands"),
        (band_with(ranks=2, alpha_s=-1), r"bands\[0\]: alpha_s"),
        (band_with(ranks=0, alpha_s=1), r"bands\[0\] is of 0 ranks"),
    ],
)
def test_a_damaged_file_is_reported(document: bytes, said: str) -> None:
    constants_path().parent.mkdir()
    constants_path().write_bytes(document)
    with pytest.raises(UsageError, match=said):
        load_constants()


def test_they_travel() -> None:
    assert decode_constants(default_constants().encoded()) == default_constants()


def test_calibrating_this_machine(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    found = calibrate(
        [2], most_bytes="512", rounds=1, round_s="2ms", progress=lambda done, total: seen.append((done, total))
    )
    assert seen == [(1, 3), (2, 3), (3, 3)]
    constants = found.constants
    assert {(one.collective, one.algorithm) for one in found.samples} == set(PROBES)
    assert found.error == max(band.residual for band in constants.bands)
    assert found.to_dict()["bands"] == [msgspec.to_builtins(band) for band in constants.bands]
    assert [band.ranks for band in constants.bands] == [2, 2, 2]
    assert constants.host == socket.gethostname() and constants.cores >= 1
    assert constants.rates_bytes_per_s["copy in cache, 2 ranks"] > 1e8
    assert all(band.alpha_s > 0 for band in constants.bands)
    with pytest.raises(UsageError, match="at least 2 ranks"):
        calibrate([1])
    with pytest.raises(UsageError, match="at least 8"):
        calibrate([2], most_bytes=4)


def fitted(*residuals: float) -> Calibration:
    """A calibration whose bands are this far off."""
    bands = [Band(2 << at, 1 << 62, 1e-6, 1e9, 0.0, residual=residual) for at, residual in enumerate(residuals)]
    return Calibration(Constants(tuple(bands), host="here", cores=2), (), 15.25)


def test_rounds_that_are_none_are_refused_before_anything_starts() -> None:
    for measure in (lambda: calibrate([2], most_bytes=8, rounds=0), lambda: calibrate_cpu(rounds=0)):
        with pytest.raises(UsageError, match="rounds must be a whole number of at least 1, not 0"):
            measure()


def test_a_bad_fit_is_not_kept() -> None:
    good, bad = fitted(0.1, 0.5), fitted(0.51, 0.94)
    assert repr(bad) == "<Calibration here, 2, 4 ranks, error 94 %>" and good.left_out == []
    assert good.save() == constants_path() and load_constants() == default_constants()  # of another host
    constants_path().unlink()
    told = r"the error of the fit is 94 % at 4 ranks, where at most 50 % is kept; the load average is 15.2 on 2 cores: "
    with pytest.raises(CalibrationError, match=told + "measure again on an idle machine"):
        bad.save()
    assert not constants_path().exists()
    assert bad.save(force=True).exists()


def test_numbers_of_ranks_that_do_not_fit_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    found = fitted(0.1, 0.3, 0.86, 0.2)
    assert found.to_dict()["left_out"] == [8]
    monkeypatch.setattr(import_module("choreo.calibrate"), "calibrate", lambda *_, **__: found)
    ran = run_choreo("calibrate", "--ranks", "2,4,8,16")
    assert ran.code == 0 and "kept in" in ran.out
    assert "choreo: left out, since the error of the fit is above 50 %: 8 ranks. They take" in ran.err
    kept = decode_constants(constants_path().read_bytes())
    assert kept.bands == tuple(band for band in found.constants.bands if band.ranks != 8)
    forced = run_choreo("calibrate", "--ranks", "2,4,8,16", "--force")
    assert forced.code == 0 and "left out" not in forced.err
    assert decode_constants(constants_path().read_bytes()) == found.constants


def test_sizes_that_do_not_fit_take_the_constants_of_the_next_larger(monkeypatch: pytest.MonkeyPatch) -> None:
    about = ((23, 1, 0.7), (1448, 2, 0.3), (1 << 62, 3, 0.1))
    bands = [Band(4, to_bytes, alpha_s, 1e9, 0.0, residual=off) for to_bytes, alpha_s, off in about]
    found = Calibration(Constants(tuple(bands), host=socket.gethostname(), cores=2), (), 0.5)
    assert found.left_out == []
    monkeypatch.setattr(import_module("choreo.calibrate"), "calibrate", lambda *_, **__: found)
    ran = run_choreo("calibrate", "--ranks", "4")
    assert ran.code == 0 and "error of the fit is above 50 %: 4 ranks up to 23 B. They take" in ran.err
    assert load_constants().cost_model_for(8, 4).alpha_s == 2


def test_the_last_sizes_that_do_not_fit_are_left_out_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    bands = [
        Band(4, to_bytes, 1e-6, 1e9, 0.0, residual=off) for to_bytes, off in ((23, 0.1), (1448, 0.2), (1 << 62, 0.9))
    ]
    found = Calibration(Constants(tuple(bands), host="here", cores=2), (), 0.5)
    monkeypatch.setattr(import_module("choreo.calibrate"), "calibrate", lambda *_, **__: found)
    assert "above 50 %: 4 ranks at larger sizes. They" in run_choreo("calibrate", "--ranks", "4").err


@pytest.mark.usefixtures("forked")
def test_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = run_choreo("calibrate", "--show")
    assert shown.code == 0 and "never calibrated" in shown.out
    words = ["calibrate", "--ranks", "2", "--most", "8", "--rounds", "1"]
    dry = run_choreo(*words, "--dry-run", "--json")
    assert dry.code == 0 and not constants_path().exists()
    ran = run_choreo(*words, "--force")  # this machine may be busy
    assert ran.code == 0, ran.err
    assert "kept in" in ran.out and "error" in ran.out
    assert load_constants().host == socket.gethostname()
    assert run_choreo("calibrate", "--rounds", "0").code == 2
    constants_path().unlink()
    monkeypatch.setattr(import_module("choreo.calibrate.calibrate"), "MAX_ERROR", -1.0)
    refused = run_choreo(*words)
    assert refused.code == 1 and "error" in refused.out and "not kept: the error of the fit is" in refused.err
    assert not constants_path().exists()
    assert run_choreo("calibrate", "--ranks", "1").code == 2
