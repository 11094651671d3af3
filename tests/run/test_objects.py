"""Calls of objects: by pickle, by a codec of one's own, or not at all."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import pytest

import choreo
from choreo.errors import PeerFailure, UsageError
from choreo.run.communicator import Communicator
from choreo.run.engine import Engine
from tests.helpers.ranks import faults
from tests.helpers.ranks.faults import Pipe, values
from tests.helpers.ranks.run import Job

TIMEOUT_S = 2.0


class Json:
    """A codec that runs nobody's code."""

    def encode(self, given: Any, /) -> bytes:
        return json.dumps(given).encode()

    def decode(self, data: bytes, /) -> Any:
        return json.loads(data)


def by_codec(comm: Communicator) -> list[Any]:
    group, mesh = comm.new_group([1, 0]), comm.mesh((2,), ("all",))
    found = [one.all_gather_object((one.rank,)) for one in (comm, group, mesh["all"])]
    assert comm.broadcast_object({"step": 3} if comm.rank else None, root=1) == {"step": 3}
    found.append(comm.scatter_object([[1], [2]] if comm.rank == 0 else None))
    group.close()
    mesh.close()
    shrunk = comm.shrink()
    found.append(shrunk.all_gather_object((shrunk.rank,)))
    return found


def test_a_codec_is_kept_by_groups_meshes_and_shrink() -> None:
    """A tuple comes back as a list, which no pickle would do."""
    with Job(2, settings={"codec": Json()}) as job:
        for rank, found in enumerate(job.run(by_codec)):
            assert found == [[[0], [1]]] * 3 + [[rank + 1], [[0], [1]]]


class JsonText(Json):
    """As it is easily forgotten: JSON is a text."""

    def encode(self, given: Any, /) -> bytes:
        return json.dumps(given)  # type: ignore[return-value]


def test_a_codec_that_makes_no_bytes_is_refused_before_anything_is_sent() -> None:
    with choreo.init(codec=JsonText()) as comm:
        for call in (comm.broadcast_object, comm.all_gather_object, lambda given: comm.scatter_object([given])):
            with pytest.raises(UsageError, match=r"the codec's encode must return bytes, and returned '\[1, 2\]'"):
                call([1, 2])
        comm.barrier()


def refused(comm: Communicator) -> list[str]:
    shrunk = comm.shrink()
    told = []
    for call in (lambda: shrunk.broadcast_object(1), lambda: shrunk.all_gather_object(1)):
        with pytest.raises(UsageError) as caught:
            call()
        told.append(str(caught.value))
    with pytest.raises(UsageError, match="scatter_object pickles objects"):
        shrunk.scatter_object([1, 2])
    return told


def test_without_pickle_objects_are_refused_on_every_rank() -> None:
    with Job(2, settings={"codec": None}) as job:
        for told in job.run(refused):
            assert told[0] == (
                "broadcast_object pickles objects, and this communicator was made with allow_pickle=False; give "
                "choreo.init() a codec="
            )


def test_what_init_is_given() -> None:
    with choreo.init(allow_pickle=False) as comm, pytest.raises(UsageError, match="allow_pickle=False"):
        comm.broadcast_object(1)
    with choreo.init(codec=Json(), allow_pickle=False) as comm:
        assert comm.all_gather_object((1,)) == [[1]]
    with pytest.raises(UsageError, match="encode and decode; object has no encode"):
        choreo.init(codec=object())  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="allow_pickle must be True or False, not 'false'"):
        choreo.init(allow_pickle="false")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="network is open; it is sealed, or plain on a network that you trust"):
        choreo.init(network="open")


def test_a_network_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHOREO_NETWORK", "Plain")
    with pytest.raises(UsageError, match="CHOREO_NETWORK is Plain; it is sealed, or plain"):
        choreo.init()


def stalls_between_steps(comm: Communicator, talk: Pipe, call: str) -> float:
    """Rank 1 comes late to the first step of a call, and does not come to the second. How long rank 0 waits."""
    calls: dict[str, Callable[[], object]] = {
        "broadcast_object": lambda: comm.broadcast_object("a", root=1, timeout=TIMEOUT_S),
        "all_gather_object": lambda: comm.all_gather_object("a", timeout=TIMEOUT_S),
    }
    if comm.rank == 1:
        real = Engine.run

        def stall(engine: Engine, *args: Any) -> Any:
            time.sleep(0.7 * TIMEOUT_S)
            found = real(engine, *args)
            talk.recv()
            return found

        pytest.MonkeyPatch().setattr(Engine, "run", stall)
    began = time.monotonic()
    with pytest.raises(PeerFailure):
        calls[call]()
    return time.monotonic() - began


@pytest.mark.parametrize("call", ["broadcast_object", "all_gather_object"])
def test_all_steps_of_a_call_have_one_deadline(call: str) -> None:
    with faults.Job(2, stalls_between_steps, call) as job:
        waited = values(job.ended(0))[0]
        job.talks[1].send("go on")
    assert TIMEOUT_S <= waited < 1.5 * TIMEOUT_S
