"""A sweep on a Ray cluster of several nodes, all on this machine, one of which is removed in the middle."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import choreo
from choreo.record.store.place import DATABASE
from choreo.sweep.tasks import Task
from choreo.sweep.workers import on_ray
from tests.helpers.command import run_choreo
from tests.helpers.ranks.ray_cluster import ray_cluster, ray_node

pytestmark = [
    pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed"),
    pytest.mark.filterwarnings("ignore"),  # Ray's own, about what it will do in its next release
]
SLOW = """
import time
import choreo

@choreo.algorithm("all_gather")
def all_gather(ranks):
    time.sleep(0.1)
    return choreo.build("all_gather", "ring", ranks)
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    with ray_cluster(cpus=1, nodes=1) as one:
        yield one


@pytest.mark.usefixtures("registry")
def test_a_node_is_removed_in_the_middle(cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is lost, and nothing is there twice. The algorithm is in a file of this machine, which is sent."""
    (tmp_path / "slow.py").write_text(SLOW)
    store = tmp_path / "store"
    node = cluster.add_node(**ray_node(1))
    cluster.wait_for_nodes()
    first = threading.Event()

    def remove() -> None:
        first.wait(60)
        time.sleep(0.5)
        cluster.remove_node(node, allow_graceful=False)

    monkeypatch.setattr(on_ray, "CHUNK_S", 0.2)
    remover = threading.Thread(target=remove)
    remover.start()
    choreo.load_algorithms(tmp_path / "slow.py")

    def progress(done: int, total: int, left_s: float) -> None:
        first.set()

    table = choreo.sweep(
        "price",
        collective="all_gather",
        algorithm="slow",
        ranks="2..41",
        size="1KiB",
        on="ray",
        store=store,
        progress=progress,
    )
    remover.join()
    assert table["ranks"] == list(range(2, 42))
    assert "error" not in table
    connection = sqlite3.connect(store / DATABASE)
    assert connection.execute("select count(*), count(distinct hash) from task").fetchall() == [(40, 40)]
    assert connection.execute("select count(*) from prediction").fetchall() == [(40,)]
    connection.close()
    expected = choreo.price(choreo.build("all_gather", "ring", 41), 1024, choreo.CostModel("5us", "50GB/s"))
    assert table["total_s"][-1] == expected.total_s


@pytest.mark.grid
def test_the_rows_are_those_of_this_machine(cluster: Any, tmp_path: Path) -> None:
    words = [
        "sweep",
        "simulate",
        "all_reduce",
        "-a",
        "ring,swing",
        "-t",
        "ring(8,50GB/s,1us)",
        "--size",
        "8:1MiB:16",
        "--json",
    ]
    there = run_choreo(*words, "--on", "ray", "--store", str(tmp_path / "there"))
    assert (there.code, there.err) == (0, "")
    assert there.out == run_choreo(*words, "--store", str(tmp_path / "here")).out


@pytest.mark.grid
def test_a_cluster_without_the_package_is_sent_it(
    cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import ray

    monkeypatch.setattr(on_ray, "code_hash", lambda: "another")
    axes: dict[str, Any] = {"collective": "all_reduce", "algorithm": "ring", "ranks": "2..5", "size": 8}
    with pytest.raises(choreo.UsageError, match="this process is connected already"):
        choreo.sweep("price", on="ray", store=tmp_path, **axes)
    ray.shutdown()
    table = choreo.sweep("price", on="ray", address=cluster.address, store=tmp_path, **axes)
    assert table["ranks"] == [2, 3, 4, 5]


def test_a_file_that_changed_is_another_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process of the cluster serves several sweeps of a driver; here it is this one."""
    monkeypatch.setattr(on_ray, "_HERE", {})
    bounds = []
    for bandwidth in ("50GB/s", "25GB/s"):
        content = f'name = "pod"\ntopology = "ring(4, {bandwidth}, 1us)"\n'
        needs = (Task("topology", (("text", "pod.toml"), ("content", bandwidth))),)
        case = Task("bound", (("collective", "all_reduce"), ("size", 1 << 30)), needs)
        (done,) = on_ray.compute([(0, case)], {"pod.toml": content.encode()})
        assert "error" not in done.row
        bounds.append(done.row["bound_s"])
    assert bounds[1] > 1.9 * bounds[0]


def test_the_files_of_cases_go_along(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    kinds = ("ring.py", "pod.toml", "pod.json", "topo.xml", "network.yml", "network.yaml")
    for name in kinds:
        Path(name).write_text(name)
    needs = tuple(Task("topology", (("text", name),)) for name in (*kinds, "hgx-h100:4", "missing.yml"))
    case = Task("bound", (("collective", "all_reduce"),), needs)
    assert on_ray._files([(0, case)]) == {name: name.encode() for name in kinds}
