"""The catalogue of devices: every one loads, every figure has a source, and names are read as people write them."""

from __future__ import annotations

import pickle
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from choreo.errors import DeviceError
from choreo.hardware import Device, get_device, list_devices, read_device, write_device
from choreo.topology import list_topologies

NAMES = [device.name for device in list_devices()]
FIGURES = {
    *("peak_flops", "memory_bytes", "memory_bandwidth_bytes_per_s", "sms", "clock_hz", "max_clock_hz"),
    *("power_w", "l2_bytes", "launch_s"),
}
# What people, papers, drivers and the topology catalogue write, and what they mean by it.
WRITTEN = {
    "A100-40": "A100-40G-SXM",
    "H100/80": "H100-80G-SXM",
    "H100 w/ RoCE": "H100-80G-SXM",
    "HL-325L": "Gaudi-3-128G",
    "H100 (8-way NVLink)": "H100-80G-SXM",
    "dgxh100": "H100-80G-SXM",
    "Perlmutter A100-80GB": "A100-80G-SXM",
    "Perlmutter": "A100-40G-SXM",
    "Frontier": "MI250X-64G",
    "A3 Mega": "H100-80G-SXM",
    "H100-80G-SXM": "H100-80G-SXM",
    "h100-80g-sxm": "H100-80G-SXM",
    "H100-80G-SXM (8/node, EFA p5)": "H100-80G-SXM",
    "H100-SXM5-80GB": "H100-80G-SXM",
    "NVIDIA H100 80GB HBM3": "H100-80G-SXM",
    "NVIDIA H100 PCIe": "H100-80G-PCIe",
    "H100": "H100-80G-SXM",
    "H100-96G-HBM2e-500W": "H100-96G-HBM2e-500W",
    "H100 96GB HBM2e": "H100-96G-HBM2e-500W",
    "H800-SXM5-80GB": "H800-80G-SXM",
    "H200-141G-SXM": "H200-141G-SXM",
    "NVIDIA H200": "H200-141G-SXM",
    "Ampere(A100)-80G-SXM": "A100-80G-SXM",
    "NVIDIA A100-SXM4-40GB": "A100-40G-SXM",
    "NVIDIA A100 80GB PCIe": "A100-80G-PCIe",
    "A100 40 GB": "A100-40G-SXM",
    "a800": "A800-80G-SXM",
    "V100-32G-SXM3 (DGX-2)": "V100-32G-SXM3",
    "Tesla V100-SXM2-16GB": "V100-16G-SXM2",
    "V100": "V100-32G-SXM2",
    "B200-192G-SXM": "B200-192G-SXM",
    "B200-SXM-180GB": "B200-192G-SXM",
    "NVIDIA GB200": "GB200-192G",
    "GB200-186G": "GB200-192G",
    "GB300 NVL72": "GB300-288G",
    "B300-SXM-270GB": "B300-288G-SXM",
    "TPU v4": "TPU-v4",
    "TPUv3": "TPU-v3",
    "tpu-v5p": "TPU-v5p",
    "Hopper": "H100-80G-SXM",
    "NVIDIA H20": "H20-96G-SXM",
    "NVIDIA L40S": "L40S-48G-PCIe",
    "A10": "A10-24G-PCIe",
    "8xA10G": "A10G-24G",
    "g5.48xlarge": "A10G-24G",
    "NVIDIA RTX A6000": "RTX-A6000-48G-PCIe",
    "RTX 6000 Ada": "RTX-6000-Ada-48G",
    "GeForce RTX 5090": "RTX-5090-32G",
    "NVIDIA L4": "L4-24G-PCIe",
    "AMD Instinct MI250X": "MI250X-64G",
    "Gaudi2": "Gaudi-2-96G",
    "trn1.32xlarge": "Trainium-1-32G",
    "TPU v5 lite": "TPU-v5e",
    "v5litepod-256": "TPU-v5e",
    "Ironwood": "TPU-v7",
    "p4d.24xlarge (EFA)": "A100-40G-SXM",
    "p4d (400 Gbps EFA)": "A100-40G-SXM",
    "AWS p5, EFA": "H100-80G-SXM",
    "DGX-1V EDR x4": "V100-16G-SXM2",
    "P100 (DGX-1)": "P100-16G-SXM2",
    "p5.48xlarge": "H100-80G-SXM",
    "Standard_ND96isr_H100_v5": "H100-80G-SXM",
    "H100x8": "H100-80G-SXM",
    "H100 (8/node, 8x400G NDR)": "H100-80G-SXM",
    "A100 (8/node, 8x200Gb/s IB)": "A100-80G-SXM",
    "H100 8x80GB, 400G": "H100-80G-SXM",
    "GH200 480GB": "GH200-96G",
    "A3 Mega H100": "H100-80G-SXM",
    "NVIDIA GeForce RTX 4090": "RTX-4090-24G-PCIe",
    "AMD Instinct MI300X": "MI300X-192G",
    "MI325X": "MI325X-256G",
    "mi355x": "MI355X-288G",
    "TPU v5e": "TPU-v5e",
    "Trillium": "TPU-v6e",
    "Intel Gaudi 3": "Gaudi-3-128G",
    "trn2": "Trainium-2-96G",
    "DGX A100 640GB": "A100-80G-SXM",
    "DGX A100 320GB": "A100-40G-SXM",
    "HGX H100 640GB": "H100-80G-SXM",
    "8x V100 256GB": "V100-32G-SXM2",
    "H100 NVL 94GB": "H100-94G-NVL",
    "NVIDIA H200 NVL": "H200-141G-NVL",
    "A100-40GB PCIe": "A100-40G-PCIe",
    "V100 PCIe 16GB": "V100-16G-PCIe",
    "NVIDIA L40": "L40-48G-PCIe",
    "Tesla T4": "T4-16G-PCIe",
    "A30": "A30-24G-PCIe",
    "MI350X": "MI350X-288G",
    "4090": "RTX-4090-24G-PCIe",
    "a4x-highgpu-4g": "GB200-192G",
    "NVL72": "GB200-192G",
    "g6e.48xlarge": "L40S-48G-PCIe",
    "g2-standard-96": "L4-24G-PCIe",
    "ND96asr_v4": "A100-40G-SXM",
    "BM.GPU4.8": "A100-40G-SXM",
}


def is_one_sentence(text: str) -> bool:
    return bool(text) and "\n" not in text and not text.endswith(".")


@pytest.mark.parametrize("name", NAMES)
def test_every_figure_has_a_source(name: str) -> None:
    device = get_device(name)
    named = {figure.strip() for source in device.sources for figure in source.figure.split(",")}
    own = {"host_pace": device.host_pace, "tensor_rate": device.curves.power.products}
    assert named == FIGURES | {figure for figure, value in own.items() if value != 1}
    assert all(len(source.source) > 10 for source in (*device.sources, *device.curves.sources))
    assert device.curves.sources


@pytest.mark.parametrize("name", NAMES)
def test_every_device_is_physical(name: str) -> None:
    device = get_device(name)
    assert device.memory_bytes > 15e9
    assert 0 < device.launch_s < 1e-5
    assert device.clock_hz <= device.max_clock_hz
    assert device.peak("bf16") >= device.peak("fp32")
    assert device.peak("fp8") >= device.peak("bf16")
    assert device.cluster in {machine.name for machine in list_topologies()}
    least = 0.5 if device.power_w > 70 else 0.3  # T4's 70 W are not enough for its rate
    assert least < float(device.clock()) <= device.max_clock_hz / device.clock_hz
    steady = float(2 * 8192**3 / device.matmul_time(8192, 8192, 8192))
    assert least < steady / device.peak() < 0.95


@pytest.mark.parametrize(("text", "name"), WRITTEN.items())
def test_names_are_read_as_they_are_written(text: str, name: str) -> None:
    assert get_device(text).name == name


def test_the_devices_of_the_topology_catalogue_are_known() -> None:
    known = {machine.name: machine.device for machine in list_topologies()}
    for device in list_devices():
        if device.form != "PCIe" and device.chip in known[device.cluster].upper():
            assert get_device(known[device.cluster]).chip == device.chip


@pytest.mark.parametrize(
    "device", [one for one in list_devices() if one.family == "nvidia" and one.form in ("PCIe", "NVL")]
)
def test_cards_for_pcie_are_in_servers_without_nvlink(device: Device) -> None:
    assert device.cluster.startswith("pcie-gen")


def test_a_power_or_capacity_of_its_own_is_honoured() -> None:
    full, capped = get_device("H100-80G-SXM"), get_device("H100-80G-SXM-500W")
    assert (capped.power_w, capped.name) == (500, "H100-80G-SXM-500W")
    assert capped.matmul_time(8192, 8192, 8192) > 1.1 * full.matmul_time(8192, 8192, 8192)
    assert get_device("H100-96G-HBM2e-500W").power_w == 500
    small = get_device("H100-64G-SXM")
    assert small.memory_bytes == pytest.approx(0.8 * full.memory_bytes)
    assert small.sources[-1].source == "as asked for"


def test_a_device_passes_through() -> None:
    device = get_device("A100-80G-SXM")
    assert get_device(device) is device
    assert pickle.loads(pickle.dumps(device)) == device
    assert len({device, replace(device), get_device("A100-40G-SXM")}) == 2


@pytest.mark.parametrize("text", ["MI100", "", "RTX 2080", "TPU v9", "H10"])
def test_an_unknown_device_is_a_sentence_with_the_nearest(text: str) -> None:
    with pytest.raises(DeviceError) as caught:
        get_device(text)
    assert is_one_sentence(str(caught.value).rstrip("?"))
    assert any(name in str(caught.value) for name in NAMES)


@pytest.mark.parametrize("text", ["A100-00G-SXM", "H100 000GB", "H100 000W"])
def test_a_device_without_memory_or_power_is_a_sentence(text: str) -> None:
    with pytest.raises(DeviceError, match="which no device has; change it, or leave it out"):
        get_device(text)


def test_a_misspelt_device_is_told_the_nearest_names() -> None:
    with pytest.raises(DeviceError, match="did you mean"):
        get_device("A1-80G-SXM")
    with pytest.raises(DeviceError, match="there is no device 'H200x'"):
        get_device("H200x")


def test_only_text_names_a_device() -> None:
    with pytest.raises(DeviceError, match="not int"):
        get_device(100)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["H200-141G-SXM", "V100-16G-SXM2", "TPU-v4"])
def test_a_written_device_reads_back_the_same(name: str, tmp_path: Path) -> None:
    device = get_device(name)
    write_device(tmp_path / "mine.toml", device)
    assert read_device(tmp_path / "mine.toml") == device
    assert get_device(str(tmp_path / "mine.toml")) == device


def broken(text: str) -> dict[str, str]:
    return {
        "is not TOML": text + "\nname = ",
        "a device's file lacks the field `sms`": text.replace("sms = 132\n", ""),
        "power_w must be above 0, not -5": text.replace("power_w = 700.0", "power_w = -5.0"),
        "not ['fp12']": text.replace("fp16 =", "fp12 ="),
        "there is no architecture 'hoper'; did you mean 'hopper'": _without_curves(text).replace(
            'architecture = "hopper"', 'architecture = "hoper"'
        ),
        "a device's file has no field `colour`": 'colour = "green"\n' + text,
        "matmul.smooth must be from 1 to 16, not 40": text.replace("smooth = 4", "smooth = 40"),
        "memory_bandwidth_bytes_per_s must be above 0": text.replace("per_s = 4", "per_s = -4"),
        "matmul.issue must be above 0": text.replace("issue = ", "issue = -"),
        "memory lacks norm": text.replace("[curves.memory.norm]", "[curves.memory.normal]"),
        "attention needs 'flash-2 forward'": text.replace('"flash-3 forward"', '"flash-3 sideways"'),
        "at least one tile": re.sub(r"tiles = .*", "tiles = []", text),
    }


def _without_curves(text: str) -> str:
    blocks = text.split("\n\n")
    return "\n\n".join(block for block in blocks if not block.startswith(("[curves", "[[curves")))


def test_a_broken_file_says_where(tmp_path: Path) -> None:
    write_device(tmp_path / "whole.toml", get_device("H200-141G-SXM"))
    whole = (tmp_path / "whole.toml").read_text()
    for told, text in broken(whole).items():
        assert text != whole, told
        path = tmp_path / "broken.toml"
        path.write_text(text)
        with pytest.raises(DeviceError) as caught:
            read_device(path)
        assert told in str(caught.value)
        assert "broken.toml" in str(caught.value)


def test_a_file_without_curves_takes_its_architectures(tmp_path: Path) -> None:
    device = get_device("H200-141G-SXM")
    write_device(tmp_path / "whole.toml", device)
    (tmp_path / "bare.toml").write_text(_without_curves((tmp_path / "whole.toml").read_text()))
    assert read_device(tmp_path / "bare.toml") == device


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DeviceError, match=r"nothing\.toml"):
        get_device(str(tmp_path / "nothing.toml"))
    with pytest.raises(DeviceError, match="none"):
        write_device(tmp_path / "none" / "x.toml", get_device("H100"))


def test_importing_stays_light() -> None:
    code = (
        "import sys, choreo.hardware as h; h.get_device('A100'); print('scipy' in sys.modules, 'torch' in sys.modules)"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout.split() == ["False", "False"]


def test_the_type_is_frozen() -> None:
    device: Device = get_device("A100")
    with pytest.raises(AttributeError):
        device.sms = 1  # type: ignore[misc]
