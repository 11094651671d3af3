"""Devices by the names that users, papers and drivers give them.

A text names a chip, and perhaps a capacity, a form, a kind of memory and a power: "H100-80G-SXM", "TPU v4",
"Ampere(A100)-80G-SXM", "NVIDIA A100-SXM4-80GB", "H100-96G-HBM2e-500W". The entry of that chip that agrees best is
taken. If the text gives a different power or capacity, the device gets that.
"""

from __future__ import annotations

import re
from dataclasses import replace

from choreo.errors import DeviceError, UnknownNameError, shown
from choreo.hardware.device import Device, Source
from choreo.hardware.files import list_devices, read_device

__all__ = ["CHIP", "get_device"]

CHIP = re.compile(
    r"(?<![A-Z0-9])(GB300|GB200|GH200|B300|B200|H200|H20|H800|H100|A800|A100|V100|P100|L40S?|L4|A40|A30|A10G?|T4|"
    r"MI210|MI250X?|MI300[AX]|MI325X|MI35[05]X)(?=$|[^A-Z0-9]|SXM|PCI|NVL|HBM|X[0-9])"
)
# Names of two words, or of another word.
OTHERS = {
    r"(?:RTX|^)[ -]*([345]090)(?![0-9])": r"RTX\1",
    r"RTX[ -]*PRO[ -]*6000": "RTXPRO6000",
    r"(?:RTX[ -]*)?6000[ -]*ADA": "RTX6000ADA",
    r"(?:RTX[ -]*)?A6000": "A6000",
    r"GAUDI[ -]*([23])(?![0-9])": r"GAUDI\1",
    r"HL-?2[02]": "GAUDI2",
    r"HL-?3[02-8]": "GAUDI3",
    r"(?:TRAINIUM|TRN)[ -]*([12])(?![0-9])": r"TRAINIUM\1",
    r"TRAINIUM$": "TRAINIUM1",
    r"TRILLIUM": "TPU-v6e",
    r"IRONWOOD|TPU[ -]*7X": "TPU-v7",
    r"(?:TPU[ -]*)?V5[ -]*LITE": "TPU-v5e",
}
# Machines, and instances of the clouds, with what is in them.
MACHINES = {
    r"\bDGX-?2H?\b|\bP3DN\b": "V100-32G-SXM3",
    r"\bDGX-?1V?\b|\bP3\.\d+XLARGE": "V100-16G-SXM2",
    r"\bP4D\b|\bA2[ -](?:HIGH|MEGA)GPU": "A100-40G-SXM",
    r"\bP4DE\b|\bA2[ -]ULTRAGPU": "A100-80G-SXM",
    r"\bP5\b|\bA3[ -](?:HIGH|MEGA|EDGE)(?:GPU)?\b": "H100-80G-SXM",
    r"\bP5EN?\b|\bA3[ -]ULTRA(?:GPU)?\b": "H200-141G-SXM",
    r"\bP6-B200|\bA4[ -]HIGH(?:GPU)?\b": "B200-192G-SXM",
    r"\bP6E-GB200|\bA4X(?:[ -]HIGHGPU)?\b|^NVL72\b": "GB200-192G",
    r"\bG5\.\d*XLARGE": "A10G-24G",
    r"\bG6\.\d*XLARGE|\bG2[ -]STANDARD": "L4-24G-PCIe",
    r"\bG6E\.\d*XLARGE": "L40S-48G-PCIe",
    r"\bND96ASR|\bBM\.GPU(?:4|\.B4)\b": "A100-40G-SXM",
    r"\bND40RS": "V100-32G-SXM2",
    r"\bSELENE\b": "A100-80G-SXM",
    r"\bPERLMUTTER\b|\bPOLARIS\b|\bJUWELS\b": "A100-40G-SXM",
    r"\bSUMMIT\b": "V100-16G-SXM2",
    r"\bFRONTIER\b|\bLUMI\b": "MI250X-64G",
    r"\bALPS\b|\bISAMBARD\b": "GH200-96G",
}
TPUS = {
    "2": "TPU-v2", "3": "TPU-v3", "4": "TPU-v4", "5P": "TPU-v5p", "5E": "TPU-v5e", "6E": "TPU-v6e", "7": "TPU-v7",
    "7X": "TPU-v7",
}  # fmt: skip
TPU = re.compile(r"(?:TPU[ _-]*V?|^V)([0-9])(P|E|X)?(?![0-9A-Z]|[ -]LITE)")
CAPACITY = re.compile(r"(?<![0-9.])([0-9]{2,3}) ?G(?:I?B)?(?![A-Z0-9])")
# What joins the nodes ("8x400G NDR", "HDR 200G", "100Gb/s"), and what the processor of a superchip has (GH200 480GB).
BESIDE = re.compile(
    r"(?:(?<![A-Z0-9.])|(?<![A-Z0-9.])[0-9]+ ?[X*×] ?)"
    r"(?:(?:10|25|50|56|100|200|400|800) ?G(?:BE?|BITS?)?(?: ?/ ?S|PS)?|(?:480|624) ?GB?)(?![A-Z0-9])"
)
POWER = re.compile(r"(?<![A-Z0-9.])([0-9]{3,4}) ?W(?:ATTS?)?(?![A-Z0-9/])")
FORM = re.compile(r"SXM|PCI-?E|NVL(?![A-Z0-9])")
MEMORY_KIND = re.compile(r"HBM(?:2E|3E|[23])(?![0-9])")
# The most common chip of a generation, if the text names no chip.
GENERATIONS = {
    "VOLTA": "V100-32G-SXM2",
    "AMPERE": "A100-80G-SXM",
    "HOPPER": "H100-80G-SXM",
    "BLACKWELL": "B200-192G-SXM",
}
# The usual variant, if the text names only the chip.
USUAL = {
    "V100": "V100-32G-SXM2", "A100": "A100-80G-SXM", "A800": "A800-80G-SXM", "H100": "H100-80G-SXM",
    "H200": "H200-141G-SXM",
}  # fmt: skip
# How many devices a server has, if a text gives the memory of all of them together.
OF_A_SERVER = (8, 16, 4)


def get_device(text: str | Device) -> Device:
    """A device from its name, however it is written, or from the path of a file that ends in .toml.

    >>> get_device("h100").name
    'H100-80G-SXM'
    """
    if isinstance(text, Device):
        return text
    if not isinstance(text, str):
        raise DeviceError(f"a device is a text or a Device, not {type(text).__name__}")
    if text.lower().endswith(".toml"):
        return read_device(text)
    devices = {device.name.upper(): device for device in list_devices()}
    # "8xH100_80GB" are eight of them.
    wanted = re.sub(r"^\d+ ?[X*×] ?(?=[A-Z])", "", " ".join(text.upper().replace("_", "-").split()))
    wanted = re.sub(r"\b([DH]GX)(?=[A-Z])", r"\1 ", wanted)
    if wanted in devices:
        return devices[wanted]
    wanted = BESIDE.sub("", wanted)
    chip = _chip(wanted)
    machine = next((devices[name.upper()] for words, name in MACHINES.items() if re.search(words, wanted)), None)
    if machine is not None and chip in (None, machine.chip) and not CAPACITY.search(wanted):
        return machine
    if machine is not None:
        chip = chip or machine.chip
    if chip is None:
        named = next((name for generation, name in GENERATIONS.items() if generation in wanted), None)
        if named is None:
            raise _unknown(text)
        chip = devices[named.upper()].chip
    entries = [device for device in list_devices() if device.chip == chip]
    wanted = _of_each(entries, _with_unit(entries, chip, wanted))
    return _honoured(_nearest(entries, wanted), wanted)


def _chip(wanted: str) -> str | None:
    if found := CHIP.search(wanted):
        return found[1]
    if found := TPU.search(wanted):
        return TPUS.get(found[1] + (found[2] or ""))
    matches = ((re.search(name, wanted), chip) for name, chip in OTHERS.items())
    return next((found.expand(chip) for found, chip in matches if found), None)


def _with_unit(entries: list[Device], chip: str, wanted: str) -> str:
    """The text with a unit behind a capacity that follows the chip without one: "A100-40", "H100/80"."""
    found = re.search(rf"{chip}[ /-](\d{{2,3}})(?![\dA-Z])", wanted)
    if CAPACITY.search(wanted) or found is None or int(found[1]) not in {_capacity(device) for device in entries}:
        return wanted
    return f"{wanted[: found.end()]}G{wanted[found.end() :]}"


def _of_each(entries: list[Device], wanted: str) -> str:
    """The text with the memory of one device, where it gives that of a whole server: "DGX A100 640GB" has 8 of 80."""
    capacity, known = CAPACITY.search(wanted), {_capacity(device) for device in entries}
    if capacity is None or int(capacity[1]) < min(OF_A_SERVER) * min(known):
        return wanted
    each = next((size for size in (int(capacity[1]) // count for count in OF_A_SERVER) if size in known), None)
    return wanted if each is None else wanted.replace(capacity[1], str(each), 1)


def _capacity(device: Device) -> int:
    """The gigabytes in the device's name; the usable memory is a little less."""
    found = CAPACITY.search(device.name.upper())
    return int(found[1]) if found else round(device.memory_bytes / (1 << 30))


def _nearest(entries: list[Device], wanted: str) -> Device:
    """The entry that agrees with most of what the text says."""
    capacity, power = CAPACITY.search(wanted), POWER.search(wanted)
    form, kind = FORM.search(wanted), MEMORY_KIND.search(wanted)

    def disagreement(device: Device) -> tuple[float, ...]:
        usual = device.name == USUAL.get(device.chip, device.name)
        name = device.name.upper()
        return (
            abs(_capacity(device) - int(capacity[1])) if capacity else 0,
            form is not None and form[0].replace("-", "")[:3] not in name,
            kind is not None and kind[0] != device.memory_kind.upper(),
            # SXM2 against SXM3: as much of the board's name as the text has
            (board := re.search(r"SXM[0-9]", wanted)) is not None and board[0] not in name,
            # The power nearest to the one in the text.
            abs(device.power_w - float(power[1])) if power else 0,
            not usual,
            "PCIE" in name,
        )

    return min(entries, key=disagreement)


def _honoured(device: Device, wanted: str) -> Device:
    """The device with the capacity and power in the text, where they differ from the entry's."""
    suffixes = []
    capacity, power = CAPACITY.search(wanted), POWER.search(wanted)
    for given in (capacity, power):
        if given and float(given[1]) == 0:
            raise DeviceError(f"{shown(wanted)} has {given[0]}, which no device has; change it, or leave it out")
    if capacity and abs(int(capacity[1]) - _capacity(device)) > 0.1 * _capacity(device):
        scaled = int(device.memory_bytes * int(capacity[1]) / _capacity(device))
        suffixes.append(f"{capacity[1]}G")
        device = replace(device, memory_bytes=scaled, sources=(*device.sources, Source("memory_bytes", "as asked for")))
    if power and float(power[1]) != device.power_w:
        suffixes.append(f"{power[1]}W")
        device = replace(device, power_w=float(power[1]), sources=(*device.sources, Source("power_w", "as asked for")))
    return replace(device, name="-".join([device.name, *suffixes])) if suffixes else device


def _unknown(text: str) -> DeviceError:
    return DeviceError(str(UnknownNameError("device", shown(text)[:80], [device.name for device in list_devices()])))
