"""`choreo calibrate --device`: what is said where there is nothing to measure, and what is printed where there is."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from choreo.calibrate import device
from choreo.calibrate.device.calibrate import DeviceCalibration
from choreo.calibrate.device.fit import FitErrors
from choreo.cli.commands.calibrate import measure_device
from choreo.errors import DeviceError
from choreo.hardware import get_device


def test_without_pytorch_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(
        DeviceError, match=r"^measuring a CUDA device needs PyTorch, .*: pip install 'choreo\[torch\]'$"
    ):
        measure_device("cuda", None, as_json=False)


def test_without_a_device_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    absent = SimpleNamespace(__version__="9.9", cuda=SimpleNamespace(is_available=lambda: False))
    monkeypatch.setitem(sys.modules, "torch", absent)
    with pytest.raises(DeviceError, match=r"^PyTorch 9\.9 sees no CUDA device here; run this where the device is$"):
        measure_device("cuda", None, as_json=False)


def test_other_kinds_and_folders_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(DeviceError, match="only devices of kind 'cuda' can be measured, not 'rocm'"):
        measure_device("rocm", None, as_json=False)
    with pytest.raises(DeviceError, match="there is no folder"):
        measure_device("cuda", tmp_path / "none" / "mine.toml", as_json=False)


@pytest.mark.parametrize("as_json", [False, True])
def test_what_is_left_of_the_fit_is_printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, as_json: bool
) -> None:
    # The measurement is a stand-in: there is no device here.
    def measured(*_: object, **__: object) -> DeviceCalibration:
        return DeviceCalibration(get_device("H100"), (), FitErrors(470, 0.017, 0.061, 0.001))

    monkeypatch.setattr(device, "calibrate_device", measured)
    measure_device("cuda", tmp_path / "mine", as_json=as_json)
    printed = capsys.readouterr().out
    if as_json:
        told = json.loads(printed)
        assert (told["device"], told["kernels"], told["median_error"]) == ("H100-80G-SXM", 470, 0.017)
        assert told == {**measured().to_dict(), "file": str(tmp_path / "mine.toml")}
        assert len(repr(measured())) < 200
    else:
        assert "470 kernels, predicted within 1.7% in the median" in printed
        assert "mine.toml" in printed
