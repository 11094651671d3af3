"""NCCL's topology files that are damaged or hostile: each is refused in one sentence that names its element."""

from __future__ import annotations

import re
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from choreo.errors import ChoreoError, TopologyError, UsageError
from choreo.topology.nccl_xml import read_nccl_xml
from tests.helpers.nccl_xml import FILES, PCI, gpu, nvlink, read, system, xgmi
from tests.oracles.topology import is_one_sentence

WRONG = [
    # no XML, or other XML
    (b"", "topo.xml is not XML: no element found"),
    (b"hello", "topo.xml is not XML: syntax error"),
    (b"<system", "topo.xml is not XML: unclosed token"),
    (b"<system version='1'>", "topo.xml is not XML: no element found"),
    (b"<system version='1'><cpu></system>", "topo.xml is not XML: mismatched tag"),
    (b"<system version='1'/><system version='1'/>", "topo.xml is not XML: junk after document element"),
    (b"\xff\xfe<\x00s\x00", "topo.xml is not text in UTF-8"),
    ("<system version='1'/>".encode("utf-16-le"), "topo.xml is not text in UTF-8"),
    ("<!DOCTYPE s [<!ENTITY a 'b'>]><s>&a;</s>".encode("utf-16-be"), "topo.xml is not text in UTF-8"),
    (b"\x00", "topo.xml is not text in UTF-8"),
    (b"<system version='1'>&nbsp;</system>", "topo.xml is not XML: undefined entity"),
    (b"<topology version='2.0'/>", "topo.xml: <topology> is not <system>; that is no topology of NCCL's"),
    (b"<system/>", "topo.xml: <system> has no version"),
    (b"<system version='3'/>", "<system> has version 3, which is not known; NCCL writes version 1, RCCL 2"),
    (system(gpu(0, gcn="gfx942", inside=xgmi(0))), "<xgmi> in <gpu> in <pci busid=0000:01:00.0> goes from a GPU to"),
    (b"<system version='one'/>", "<system> has version 'one', which is not a whole number"),
    # entities
    (b'<!DOCTYPE system SYSTEM "x.dtd"><system version="1"/>', "topo.xml has a DTD, which"),
    (b'<!doctype system [<!ENTITY a "b">]><system version="1"/>', "topo.xml has a DTD"),
    (b'<?xml version="1.0" encoding="utf-16"?><!DOCTYPE s []><s/>', "topo.xml has a DTD"),
    (b'<?xml version="1.0" encoding="utf-7"?>+ADwAIQ-DOCTYPE s []+AD4-<s/>', "topo.xml is not XML"),
    (b'<?xml version="1.0"?>\n<!DOCTYPE s [<!ENTITY a SYSTEM "file:///etc/passwd">]><s>&a;</s>', "topo.xml has a DTD"),
    # no GPUs: files that tell NCCL where GPUs are, as clouds ship them
    (b"<system version='1'/>", "<system> has no <gpu> below its CPUs"),
    (system('<pci busid="0000:10:1c.0" class="0x030200" link_speed="8 GT/s" link_width="16"/>'), "NCCL_TOPO_DUMP_FILE"),
    # CPUs
    (system(gpu(0), "arch='x86_64'"), "<cpu numaid=''> has no numaid"),
    (system(gpu(0), "numaid='first'"), "<cpu numaid=first> has numaid 'first', which is not a whole number"),
    (system(gpu(0), "numaid='0' modelid='?'"), "<cpu numaid=0> has modelid '?', which is not a whole number"),
    (f"<system version='1'><cpu numaid='0'>{gpu(0)}</cpu><cpu numaid='0'/></system>", "<cpu numaid=0> is there twice"),
    # PCI
    (system(f"<pci {PCI}/>"), "<pci busid=''> has no busid"),
    (system(f'<pci busid="1b:00.0" {PCI}/>'), "has busid '1b:00.0', which is not like 0000:1b:00.0"),
    (system(gpu(0) + gpu(0)), "<pci busid=0000:01:00.0> is there twice"),
    (system('<pci busid="0000:01:00.0" link_speed="" link_width="0"/>'), "<pci busid=0000:01:00.0> has no class"),
    (system(gpu(0).replace('link_width="16"', "")), "<pci busid=0000:01:00.0> has no link_width"),
    (
        system(gpu(0).replace('link_width="16"', 'link_width="x16"')),
        "has link_width 'x16', which is not a whole number",
    ),
    (system(gpu(0).replace('link_width="16"', 'link_width="-1"')), "has a link_width of -1; PCI has 1 to 64 lanes"),
    (system(gpu(0).replace('link_width="16"', f'link_width="{"9" * 15}"')), "has a link_width of 999999999999999"),
    (system(gpu(0).replace('link_speed="16.0 GT/s PCIe"', "")), "<pci busid=0000:01:00.0> has no link_speed"),
    (system(gpu(0).replace("<gpu", "<gpu/><gpu")), "<pci busid=0000:01:00.0> has 2 <gpu>; several ranks on one GPU"),
    # GPUs
    (system(gpu(0, dev=None)), "<gpu> in <pci busid=0000:01:00.0> has no dev"),
    (system(gpu(0, dev="zero")), "has dev 'zero', which is not a whole number"),
    (system(gpu(0, rank="")), "has rank '', which is not a whole number"),
    (system(gpu(0, sm=None)), "<gpu> in <pci busid=0000:01:00.0> has no sm"),
    (system(gpu(0, sm="8.0")), "has sm '8.0', which is not a whole number"),
    (
        system(gpu(0) + gpu(1, rank="0")),
        "<gpu> in <pci busid=0000:02:00.0> has rank 0, and so has <gpu> in <pci busid=0",
    ),
    (system(gpu(0, rank=None) + gpu(1, rank=None, dev="0")), "has dev 0, and so has <gpu>"),
    # NVLinks
    (system(gpu(0, "<nvlink/>")), "<nvlink> in <gpu> in <pci busid=0000:01:00.0> has no count"),
    (system(gpu(0, nvlink(count="0"))), "has a count of 0 links"),
    (system(gpu(0, nvlink(count="-1"))), "has a count of -1 links"),
    (system(gpu(0, nvlink(count="9" * 12))), "has a count of 999999999999 links"),
    (system(gpu(0, nvlink(count="many"))), "has count 'many', which is not a whole number"),
    (system(gpu(0, '<nvlink target="0000:02:00.0" count="4"/>')), "has no tclass"),
    (system(gpu(0, '<nvlink count="4" tclass="0x030200"/>')), "has no target"),
    (system(gpu(0, nvlink("1"))), "has target '1', which is not like 0000:1b:00.0"),
    (system(gpu(0, nvlink("0000:01:00.0"))), "goes from a GPU to itself"),
    (system(gpu(0, '<c2c count="4"/>')), "<c2c> in <gpu> in <pci busid=0000:01:00.0> has no bw"),
    (system(gpu(0, '<c2c count="4" bw="0"/>')), "has a bw of 0 MB/s"),
    # NICs
    (system(gpu(0) + '<nic><net name="a" dev="x"/></nic>'), "<net name=a> has dev 'x', which is not a whole number"),
    (system(gpu(0) + '<nic><net name="a" dev="0" speed="fast"/></nic>'), "<net name=a> has speed 'fast'"),
    (
        system(gpu(0) + '<nic><net dev="0" latency="nan"/></nic>'),
        "<net name=''> has latency 'nan', which is not a number",
    ),
    (system(gpu(0) + '<nic><net name="a&#10;b" dev="x"/></nic>'), "<net name='a\\nb'> has dev 'x'"),
]


@pytest.mark.parametrize(("content", "said"), WRONG)
def test_a_damaged_file_is_reported_in_one_sentence_with_its_element(
    tmp_path: Path, content: str | bytes, said: str
) -> None:
    with pytest.raises(TopologyError) as caught:
        read(tmp_path, content)
    assert said in str(caught.value)
    assert "topo.xml" in str(caught.value)
    assert is_one_sentence(str(caught.value))


def test_files_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun = time.process_time()
    deep = 100_000
    opened = [
        f'<pci busid="0000:{n % 256:02x}:{n // 256:02x}.0" class="0x060400" link_speed="" link_width="0">'
        for n in range(200)
    ]
    cpus = "".join(f"<cpu numaid='{n}'/>" for n in range(1000))
    switches = "".join(
        f'<pci busid="{n:x}:00:00.0" class="0x060400" link_speed="" link_width="0"/>' for n in range(9000)
    )
    for content, said in [
        ("<a>" * deep + "</a>" * deep, "<a> is not <system>"),
        ("<a>" * deep, "is not XML"),
        (system("".join(opened) + "</pci>" * len(opened)), "is more than 64 <pci> deep"),
        (f"<system version='1'>{cpus}</system>", "is one too many; a host has at most 256 of them"),
        (system(switches), "is one too many; a machine has at most 8192 CPUs, PCI switches and NICs"),
    ]:
        with pytest.raises(TopologyError, match=re.escape(said)):
            read(tmp_path, content)
    monkeypatch.setattr("choreo.topology.nccl_xml.MAX_FILE_BYTES", 100)
    with pytest.raises(TopologyError, match=r"topo\.xml is larger than 100 B, the most a topology of NCCL's can be"):
        read(tmp_path, system(gpu(0)))
    with pytest.raises(UsageError, match=r"none\.xml cannot be read: No such file or directory"):
        read_nccl_xml(tmp_path / "none.xml")
    assert time.process_time() - begun < 10


@settings(max_examples=80)
@given(st.sampled_from(FILES), st.data())
def test_any_damage_makes_another_machine_or_one_sentence(
    tmp_path_factory: pytest.TempPathFactory, path: Path, data: st.DataObject
) -> None:
    text = path.read_text()
    kind = data.draw(st.sampled_from(["cut", "value", "name", "line"]))
    if kind == "cut":
        at = data.draw(st.integers(0, len(text)))
        text = text[:at] + text[at + data.draw(st.integers(1, 200)) :]
    elif kind == "line":
        lines = text.splitlines()
        del lines[data.draw(st.integers(0, len(lines) - 1))]
        text = "\n".join(lines)
    else:
        found = list(re.finditer(r'(\w+)="([^"]*)"', text))
        match = found[data.draw(st.integers(0, len(found) - 1))]
        group = 2 if kind == "value" else 1
        new = data.draw(st.sampled_from(["", "0", "-1", "x", "99999999999999999999", "0x030200", "0000:07:00.0"]))
        text = text[: match.start(group)] + new + text[match.end(group) :]
    try:
        topology = read(tmp_path_factory.getbasetemp(), text)
    except ChoreoError as error:
        assert is_one_sentence(str(error))
        assert "topo.xml" in str(error)
    else:
        assert topology.num_devices >= 1
        assert (topology.links.bandwidth_bytes_per_s > 0).all()
        assert np.isfinite(topology.links.latency_s).all()
