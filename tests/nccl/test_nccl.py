"""What NCCL would do: its known choices, what must hold always, and how words for machines are read."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from choreo.errors import RefusedError, UnknownNameError, UsageError
from choreo.nccl import (
    GPUS,
    NETWORKS,
    NcclSystem,
    estimates,
    find_gpu,
    nccl_choice,
    read_collective,
    read_forced,
    read_system,
)
from choreo.nccl.names import COLLECTIVES
from choreo.topology import get_topology

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
SWITCHED = ("V100", "A100", "H100", "B200")


def system(gpu: str = "H100", gpus: int = 8, nodes: int = 1, **figures: object) -> NcclSystem:
    return NcclSystem.from_figures(gpu, gpus, nodes, **figures)  # type: ignore[arg-type]


def bus_gb_per_s(collective: str, size_bytes: int, where: NcclSystem, forced: str | None = None) -> float:
    factor = (2 if collective == "all_reduce" else 1) * (where.ranks - 1) / where.ranks
    return size_bytes * factor / nccl_choice(collective, size_bytes, where, forced).time_s / 1e9


# What NCCL chooses, where its log or its authors say so.


@pytest.mark.parametrize("size_bytes", [8, 32 * KIB, MIB])
def test_eight_h100_use_ll_rings_up_to_a_mebibyte(size_bytes: int) -> None:
    choice = nccl_choice("all_reduce", size_bytes, system())
    assert (choice.algorithm, choice.protocol) == ("Ring", "LL")


@pytest.mark.parametrize("size_bytes", [2 * MIB, GIB, 16 * GIB])
def test_eight_h100_reduce_in_the_switch_from_two_mebibytes(size_bytes: int) -> None:
    choice = nccl_choice("all_reduce", size_bytes, system())
    assert (choice.algorithm, choice.protocol, choice.channels) == ("NVLS", "Simple", 16)


@pytest.mark.parametrize(("gpus", "algorithm"), [(4, "Ring"), (5, "NVLS"), (8, "NVLS")])
def test_four_h200_are_too_few_for_the_switch(gpus: int, algorithm: str) -> None:
    assert nccl_choice("all_reduce", 8 * GIB, system("H200", gpus)).algorithm == algorithm


@pytest.mark.parametrize(
    ("where", "collective", "algorithm"),
    [
        (system("A100"), "all_reduce", "Ring"),
        (system("A100", nodes=2, network="efa", network_bandwidth_bytes_per_node=50e9), "all_reduce", "Tree"),
        (system("H100", nodes=2), "all_reduce", "NVLSTree"),
        (system("H100", nodes=4, network="efa"), "all_reduce", "Ring"),
        (system("H100", nodes=8, sharp=True), "all_reduce", "NVLS"),
        (system("A100", nodes=8, sharp=True), "all_reduce", "CollNetDirect"),
        (system("H100"), "broadcast", "Ring"),
        (system("H100", nodes=4), "all_gather", "Ring"),
        (system("H100", nodes=4), "all_to_all", "P2P"),
        (system("H100"), "sendrecv", "P2P"),
        (system("L40S"), "all_reduce", "Ring"),
    ],
)
def test_a_gibibyte_goes_by(where: NcclSystem, collective: str, algorithm: str) -> None:
    assert nccl_choice(collective, GIB, where).algorithm == algorithm


def test_one_gpu_a_node_gathers_by_parallel_trees_when_latency_counts() -> None:
    where = system("H100", 1, 64)
    assert nccl_choice("all_gather", 4 * MIB, where).algorithm == "PAT"
    assert nccl_choice("all_gather", 16 * GIB, where).algorithm == "Ring"


def test_small_messages_over_many_nodes_climb_a_tree() -> None:
    times = [nccl_choice("all_reduce", 8, system(nodes=nodes)).time_s for nodes in (2, 4, 8, 16, 32)]
    steps = [later - earlier for earlier, later in pairwise(times)]
    assert steps == pytest.approx([steps[0]] * 4, rel=1e-3)  # each doubling costs one more level


@pytest.mark.parametrize(
    ("where", "forced", "low", "high"),
    [
        # Figures that NVIDIA's engineers and many users give for large all_reduces.
        (system("V100"), None, 120, 140),
        (system("A100"), None, 228, 236),
        (system("A800"), None, 150, 160),
        (system("H100"), None, 470, 490),
        (system("H100"), "Ring", 355, 375),
        (system("H800"), None, 205, 235),
        (system("B200"), None, 800, 860),
        (system("B200"), "Ring", 660, 720),
        (system("A100", nodes=16), None, 180, 195),
        (system("H100", nodes=2), None, 455, 500),
        (system("H100", nodes=4), None, 350, 390),
        (system("GB200", 4, 18), None, 800, 880),
        (system("MI300X"), None, 300, 350),
    ],
)
def test_peak_bus_bandwidth(where: NcclSystem, forced: str | None, low: float, high: float) -> None:
    assert low < bus_gb_per_s("all_reduce", 16 * GIB, where, forced) < high


# What must hold always.

systems = st.builds(
    lambda gpu, gpus, nodes, network, sharp: system(gpu, gpus, nodes, network=network, sharp=sharp),
    st.sampled_from(sorted(GPUS)),
    st.integers(1, 8),
    st.integers(1, 200),
    st.sampled_from(sorted(NETWORKS)),
    st.booleans(),
)


@settings(max_examples=150, deadline=None)
@given(systems, st.sampled_from(COLLECTIVES), st.integers(0, 34))
def test_twice_the_bytes_never_take_much_less_time(where: NcclSystem, collective: str, power: int) -> None:
    first, second = (nccl_choice(collective, 1 << p, where) for p in (power, power + 1))
    assert 0 < first.time_s < math.inf
    # A further channel comes in whole. Where the choice changes NCCL's own guess may be off, and the next size be
    # faster: published tables show it too.
    slack = 0.9 if (first.algorithm, first.protocol) == (second.algorithm, second.protocol) else 0.4
    assert second.time_s >= slack * first.time_s


@settings(max_examples=150, deadline=None)
@given(systems, st.integers(20, 34))
def test_an_all_reduce_never_beats_its_wires(where: NcclSystem, power: int) -> None:
    size_bytes, ranks, domains = 1 << power, where.ranks, where.domains
    if ranks == 1:
        return
    time_s = nccl_choice("all_reduce", size_bytes, where).time_s
    # A rank has to send its data at least once, a domain all of it, to whatever reduces.
    assert time_s >= size_bytes * (ranks - 1) / ranks / where.intra_bytes_per_s or where.ranks_per_domain == 1
    if domains > 1:
        crossings = 1.0 if where.sharp else 2 * (domains - 1) / domains
        assert time_s >= size_bytes * crossings / where.network_bytes_per_s


@settings(max_examples=15, deadline=None)
@given(systems)
def test_the_topology_can_be_typed(where: NcclSystem) -> None:
    # Every domain is drawn as large as the fullest.
    assert 0 <= get_topology(where.topology).num_devices - where.ranks < where.domains


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_one_rank_copies(collective: str) -> None:
    alone = nccl_choice(collective, GIB, system("H100", 1))
    assert 1e-6 < alone.time_s < 5e-3


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_nothing_to_move_returns_at_once(collective: str) -> None:
    assert nccl_choice(collective, 0, system(nodes=2)).time_s < 1e-6


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_twenty_racks(collective: str) -> None:
    where = system("GB200", 4, 360)
    assert (where.ranks, where.domains, where.ranks_per_domain) == (1440, 20, 72)
    assert 20e-6 < nccl_choice(collective, 8, where).time_s < 5e-3
    assert 1e-3 < nccl_choice(collective, 16 * GIB, where).time_s < 2


def test_fewer_bytes_than_none_are_refused() -> None:
    with pytest.raises(UsageError, match=r"size_bytes must be a number of at least 0, .* not -1"):
        nccl_choice("all_reduce", -1, system())


# Forcing the choice.


@pytest.mark.parametrize(
    ("forced", "algorithm", "protocol"),
    [
        ("Ring", "Ring", None),
        ("ring,simple", "Ring", "Simple"),
        ("NCCL_ALGO=Tree", "Tree", None),
        ("NCCL_ALGO=Ring NCCL_PROTO=LL128", "Ring", "LL128"),
        ("^NVLS", "Ring", None),
        ("auto", "NVLS", "Simple"),
    ],
)
def test_forced(forced: str, algorithm: str, protocol: str | None) -> None:
    choice = nccl_choice("all_reduce", 64 * MIB, system(), forced)
    assert choice.algorithm == algorithm
    assert protocol is None or choice.protocol == protocol


def test_what_does_not_exist_is_refused_with_what_does() -> None:
    with pytest.raises(RefusedError, match=r"no NVLS for all_reduce of 8 ranks.*A100; it has Tree with LL"):
        nccl_choice("all_reduce", MIB, system("A100"), "NVLS")
    with pytest.raises(UsageError, match="'quick' names neither an algorithm nor a protocol"):
        nccl_choice("all_reduce", MIB, system(), "quick")


@pytest.mark.parametrize(
    ("text", "algorithms", "protocols", "nvls"),
    [
        ("", None, None, None),
        ("auto", None, None, None),
        ("auto (NVLS>=2MiB)", None, None, None),
        ("auto (mpirun -np 8)", None, None, None),
        ("auto (NCCL_NVLS_ENABLE=0)", None, None, False),
        ("Ring (NCCL_NVLS_ENABLE=0)", {"Ring"}, None, False),
        ("NVLS", {"NVLS"}, None, None),
        ("NVLSTree", {"NVLSTree"}, None, None),
        ("NVLS_TREE/SIMPLE", {"NVLSTree"}, {"Simple"}, None),
        ("forced Tree, LL", {"Tree"}, {"LL"}, None),
        ('NCCL_ALGO="ring,tree"', {"Ring", "Tree"}, None, None),
        ("default (NCCL_ALGO=Ring)", {"Ring"}, None, None),
        ("SHARP", {"CollNetDirect", "CollNetChain"}, None, None),
    ],
)
def test_forced_is_read(text: str, algorithms: set[str] | None, protocols: set[str] | None, nvls: bool | None) -> None:
    found = read_forced(text)
    assert (found.algorithms, found.protocols, found.nvls) == (algorithms, protocols, nvls)


# Words.


@pytest.mark.parametrize(
    ("text", "collective"),
    [
        ("all_reduce", "all_reduce"),
        ("AllReduce", "all_reduce"),
        ("all_reduce_perf", "all_reduce"),
        ("./build/all_reduce_perf_mpi", "all_reduce"),
        ("ncclAllReduce", "all_reduce"),
        ("torch.distributed.all_gather_into_tensor", "all_gather"),
        ("AllGather", "all_gather"),
        ("reduce-scatter", "reduce_scatter"),
        ("ReduceScatter", "reduce_scatter"),
        ("reduce_scatter_tensor", "reduce_scatter"),
        ("Broadcast", "broadcast"),
        ("bcast", "broadcast"),
        ("reduce_perf", "reduce"),
        ("alltoall", "all_to_all"),
        ("all_to_all_single", "all_to_all"),
        ("alltoall_perf", "all_to_all"),
        ("sendrecv", "sendrecv"),
        ("sendrecv_perf", "sendrecv"),
        ("send/recv", "sendrecv"),
        ("gather", "gather"),
        ("scatter_perf", "scatter"),
    ],
)
def test_collectives_are_read(text: str, collective: str) -> None:
    assert read_collective(text) == collective


def test_an_unknown_collective_names_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match=r"all_redcue.*'all_reduce'"):
        read_collective("all_redcue")


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("HGX A100-SXM4-80GB (8xNVLink3 NVSwitch)", "A100"),
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("8xB200 node", "B200"),
        ("p6-b200.48xlarge", "B200"),
        ("GB200 NVL72", "GB200"),
        ("GB300 NVL72", "GB300"),
        ("AWS p5.48xlarge", "H100"),
        ("AWS p5en.48xlarge", "H200"),
        ("p4d.24xlarge", "A100"),
        ("p3dn.24xlarge", "V100"),
        ("Tesla V100-SXM2-32GB", "V100"),
        ("H800", "H800"),
        ("H20 node", "H20"),
        ("A100 PCIe 80GB", "A100-PCIE"),
        ("AMD Instinct MI300X", "MI300X"),
        ("8x L40S", "L40S"),
        ("H100 nodes (compare A100)", "H100"),
    ],
)
def test_gpus_are_found(text: str, name: str) -> None:
    found = find_gpu(text)
    assert found is not None
    assert found.name == name


def test_no_gpu_is_found_where_none_is_named() -> None:
    assert find_gpu("a machine with 8 cards in rack T41") is None


A100_NODE, H100_NODE, NVL72 = (f"switch({gpus}, {rate}GB/s, 500ns)" for gpus, rate in ((8, 300), (8, 450), (72, 900)))


@pytest.mark.parametrize(
    ("machine", "interconnect", "ranks", "nodes", "topology", "network"),
    [
        ("HGX A100", "NVSwitch 300GB/s/dir", 8, 1, A100_NODE, "ib"),
        ("H100 SXM", "NVLink 4.0 (900 GB/s bidirectional)", 8, 1, H100_NODE, "ib"),
        ("H800", "NVLink 400GB/s", 8, 1, "switch(8, 200GB/s, 500ns)", "ib"),
        ("B200", "NVLink5 1.8TB/s", 8, 1, "switch(8, 900GB/s, 500ns)", "ib"),
        ("4 of 8 H200", "NVSwitch", 4, 1, "switch(4, 450GB/s, 500ns)", "ib"),
        ("2x p4de (A100)", "EFA 400Gbps/node", 16, 2, f"{A100_NODE} x switch(2, 6.25GB/s, 32.5us)", "efa1"),
        ("2x p5 (H100)", "EFA", 16, 2, f"{H100_NODE} x switch(2, 50GB/s, 13us)", "efa"),
        ("DGX H100", "NVLink4 900 GB/s, 8x NDR", 32, 4, f"{H100_NODE} x switch(4, 50GB/s, 2.25us)", "ib"),
        ("A100", "IB HDR 200Gbps per GPU", 16, 2, f"{A100_NODE} x switch(2, 25GB/s, 2.25us)", "ib"),
        ("H100", "RoCEv2 16x200Gbps", 16, 2, f"{H100_NODE} x switch(2, 50GB/s, 3us)", "roce"),
        ("H100", "8x400G IB", 8, 2, "switch(4, 450GB/s, 500ns) x switch(2, 50GB/s, 2.25us)", "ib"),
        ("A100 4/node", "Slingshot 4x200G", 8, 2, "switch(4, 300GB/s, 500ns) x switch(2, 25GB/s, 4.5us)", "slingshot"),
        ("V100", "10GbE", 4, 4, "switch(4, 1.25GB/s, 20us)", "tcp"),
        ("GB200 NVL72", "MNNVL", 72, 18, NVL72, "ib"),
        ("GB200 NVL72", "NVL72 + IB NDR", 144, 2, f"{NVL72} x switch(2, 50GB/s, 2.25us)", "ib"),
        ("GB300 NVL72", "XDR 800Gb/s per GPU", 144, 36, f"{NVL72} x switch(2, 100GB/s, 2.25us)", "ib"),
        ("4x L40S", "PCIe Gen4", 4, 1, "switch(4, 24GB/s, 1us)", "ib"),
        ("2x A100-PCIe", "NVLink bridge", 2, 1, "fully_connected(2, 300GB/s, 500ns)", "ib"),
        ("2x RTX 3090", "NVLink", 2, 1, "fully_connected(2, 56.25GB/s, 500ns)", "ib"),
        ("2x A40", "NVLink 50GB/s/dir", 2, 1, "fully_connected(2, 50GB/s, 500ns)", "ib"),
        ("2x RTX 4090", "no NVLink", 2, 1, "switch(2, 24GB/s, 1us)", "ib"),
        ("who knows", "", 8, 1, H100_NODE, "ib"),
        ("A100", "2xHDR", 16, 2, f"{A100_NODE} x switch(2, 6.25GB/s, 2.25us)", "ib"),
        ("A100", "NDR200 x4", 16, 2, f"{A100_NODE} x switch(2, 12.5GB/s, 2.25us)", "ib"),
        ("A100", f"HDR x{'9' * 400}", 16, 2, f"{A100_NODE} x switch(2, 25GB/s, 2.25us)", "ib"),
        ("H100", f"{'9' * 400}x400G IB", 16, 2, f"{H100_NODE} x switch(2, 50GB/s, 2.25us)", "ib"),
        ("H100", "4 NICs x 400 Gb/s IB", 16, 2, f"{H100_NODE} x switch(2, 25GB/s, 2.25us)", "ib"),
        ("H100", "25 Gb Ethernet", 16, 2, f"{H100_NODE} x switch(2, 0.390625GB/s, 20us)", "tcp"),
        ("8x A100-80G, two nodes", "IB", 16, 2, f"{A100_NODE} x switch(2, 25GB/s, 2.25us)", "ib"),
        ("Azure ND96asr_v4", "", 16, 2, f"{A100_NODE} x switch(2, 25GB/s, 2.25us)", "ib"),
        ("H200 NVL", "NVLink bridge", 2, 1, "fully_connected(2, 300GB/s, 500ns)", "ib"),
    ],
)
def test_systems_are_read(machine: str, interconnect: str, ranks: int, nodes: int, topology: str, network: str) -> None:
    found = read_system(machine, interconnect, ranks, nodes)
    assert found.topology == topology
    assert found.network.name == network


def test_what_a_benchmark_adds_is_read_from_its_words() -> None:
    plain = read_system("H100", "", 8, 1).host_overhead_s
    torch = read_system("H100", "", 8, 1, how="torch all_reduce_bench.py").host_overhead_s
    alone = read_system("H100", "", 8, 1, how="nccl-tests -g 8").host_overhead_s
    assert plain == 0 < alone < torch < 30e-6


def test_figures_that_make_no_sense_are_refused() -> None:
    with pytest.raises(UsageError, match="no GPU is known by the name 'abacus'"):
        system("abacus")
    with pytest.raises(UsageError, match="no kind of network 'pigeon'"):
        system(nodes=2, network="pigeon")
    with pytest.raises(UsageError, match="no medium 'string'"):
        system(medium="string")
    with pytest.raises(UsageError, match="must be more than zero"):
        system(intra_bandwidth_bytes_per_s=-1.0)


def test_without_a_gpu_the_links_tell_which() -> None:
    found = NcclSystem.from_figures(None, 8, 4, intra_bandwidth_bytes_per_s=300e9, network_bandwidth_bytes_per_gpu=25e9)
    assert found.gpu.name == "A100"
    assert found.topology == "switch(8, 300GB/s, 500ns) x switch(4, 25GB/s, 2.25us)"
    assert not found.nvls
    assert NcclSystem.from_figures(None, 8, intra_bandwidth_bytes_per_s=450e9).nvls
    assert not NcclSystem.from_figures(None, 8, intra_bandwidth_bytes_per_s=450e9, nvls=False).nvls


def test_lines_of_128_bytes_lose_no_more_than_their_flags_on_a_network() -> None:
    """Threads handle LL128's lines twice inside a node; a NIC sends them as they are."""
    narrow = NcclSystem.from_figures("A100", 8, 2, network_bandwidth_bytes_per_gpu=12.5e9)
    size = 1 << 30
    rates = [size / nccl_choice("all_reduce", size, narrow, f"Ring,{name}").time_s for name in ("LL128", "Simple")]
    assert 0.9 < rates[0] / rates[1] < 0.97


def test_of_estimates_near_each_other_the_one_that_runs_fastest_is_taken() -> None:
    where = system("A100", 8, 2)
    size = 8 << 20
    expected = estimates("all_reduce", size, where)
    found = nccl_choice("all_reduce", size, where)
    assert min(expected, key=lambda option: expected[option]) == ("Tree", "LL128")
    assert (found.algorithm, found.protocol) == ("Ring", "LL128")
    assert found.time_s < nccl_choice("all_reduce", size, where, "Tree,LL128").time_s


def test_a_message_too_short_for_all_ranks_takes_a_ring_less() -> None:
    where = system("H100")
    shortest, short, longer = (nccl_choice("all_reduce", size, where, "Ring,LL").time_s for size in (8, 64, 128))
    assert shortest < short < longer
    assert longer == pytest.approx(nccl_choice("all_reduce", 256, where, "Ring,LL").time_s, rel=0.01)


def test_the_link_of_a_pair_is_not_all_that_a_gpu_has() -> None:
    read = [read_system("8x MI300X", words, 8, 1) for words in ("xGMI 128GB/s", "Infinity Fabric 64 GB/s per link", "")]
    assert {one.intra_bytes_per_s for one in read} == {448e9}
