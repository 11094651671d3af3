"""Somebody on the path between two hosts changes bytes: every rank is told, and nobody gets a wrong result."""

from __future__ import annotations

import os
import pickle
import struct
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import choreo
from choreo.errors import CollectiveMismatch, PeerFailure, RendezvousError
from choreo.run.communicator import Communicator
from choreo.run.transport.frames import FrameKind
from tests.helpers.network.hosts import PORT, Hosts, NetworkJob, hosts, why_no_hosts
from tests.helpers.network.man_in_the_middle import CHANGES, DOWN, UP, Plan, Relay
from tests.helpers.ranks.faults import Pipe, values
from tests.run.transport.test_lost_hosts import go

pytestmark = pytest.mark.skipif(bool(why_no_hosts()), reason=why_no_hosts() or "they can")
COUNT, TIMEOUT_S = 300_000, 20.0
relay = Relay(PORT)


@pytest.fixture(scope="module")
def two_hosts() -> Iterator[Hosts]:
    with hosts(2) as made:
        yield made


def in_the_middle() -> None:
    """Rank 1 dials rank 0 through the relay."""
    if os.environ["RANK"] == "1":
        relay.install()


def failure_of(call: Callable[..., Any], *arguments: Any) -> tuple[str, list[int], str]:
    """What a call raises, which ranks it names, and its sentence."""
    try:
        found = call(*arguments, timeout=TIMEOUT_S)
    except (PeerFailure, RendezvousError) as error:
        return type(error).__name__, sorted(error.ranks), str(error)
    return "", [], repr(found)[:100]


def arm(talk: Pipe, plan: Plan) -> None:
    """Both ranks have returned from their last call before the plan begins, and both know it before the next call."""
    talk.send("ready")
    talk.recv()
    relay.begin(plan)
    talk.send("ready")
    talk.recv()


def go_when_armed(job: NetworkJob) -> None:
    go(job, 0, 1)
    go(job, 0, 1)


def right_sums(comm: Communicator, x: Any, timeout: float) -> None:
    """Bytes that come after the end of a call are noticed in the next."""
    for _ in range(3):
        assert (comm.all_reduce(x.copy(), timeout=timeout) == 2 * x).all()


def sums(comm: Communicator, talk: Pipe, ways: list[tuple[str, str]]) -> list[Any]:
    """One sum after the other, each spoilt once; they connect anew in between."""
    found = []
    x = np.arange(COUNT, dtype=np.float32)
    for name, way in ways:
        assert (comm.all_reduce(x.copy()) == 2 * x).all()
        arm(talk, Plan(("streams",), way, CHANGES[name]))
        found.append(failure_of(right_sums, comm, x))
        arm(talk, Plan())
        comm = comm.shrink()
        assert comm.world_size == 2, found
    assert (comm.all_reduce(x.copy()) == 2 * x).all()
    comm.close()
    return found


@pytest.mark.parametrize("pure", ["", "1"])
def test_a_sum_that_is_changed_on_the_way(two_hosts: Hosts, pure: str) -> None:
    names = ["flipped", "truncated"] if pure else [*CHANGES]
    ways = [(name, way) for name in names for way in (UP, DOWN)]
    with NetworkJob(two_hosts, (0, 1), sums, ways, before=in_the_middle, CHOREO_PURE_PYTHON=pure) as job:
        for _ in 2 * ways:
            go_when_armed(job)
        ranks = values(job.ended())
    for number, (name, way) in enumerate(ways):
        for found in ranks:
            kind, named, text = found[number]
            assert kind == "PeerFailure", (name, way, found)
            assert not named
            told = "a connection to it was cut" if name == "truncated" else "arrived altered"
            assert told in text and "shrink() reconnects them" in text, (name, way, text)


OBJECTS = {"weights": list(range(5000))}, {"heights": list(range(5000))}
OBJECT_BYTES = len(pickle.dumps(OBJECTS[0], pickle.HIGHEST_PROTOCOL)) + 32  # with its tag


class Evil:
    """Unpickling it runs code."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("/proc/choreo-was-here",)  # would raise


def objects(comm: Communicator, talk: Pipe, network: str) -> list[Any]:
    """The pickle of an object is replaced by another of the same length, which passed before or was made up."""
    found = []
    given, other = OBJECTS
    for change in (forged, replayed_object, CHANGES["flipped"]):
        relay.begin(Plan())
        with choreo.init(network=network) as fresh:
            assert fresh.broadcast_object(given, root=1) == given
            arm(talk, Plan(("streams",), UP, change, at_least_bytes=5000))
            found.append(failure_of(everywhere, fresh, other))
            relay.begin(Plan())
            found.append(failure_of(fresh.all_gather_object, "sealed") if network == "plain" else ("", [], ""))
    comm.close()
    return found


def everywhere(comm: Communicator, given: Any, timeout: float) -> None:
    """The root of a sealed broadcast only sends: it is told in its next call."""
    comm.broadcast_object(given, 1, timeout=timeout)
    comm.barrier(timeout=timeout)


def forged(data: bytes, _: bytes) -> bytes:
    evil = pickle.dumps(Evil()) + b"."
    at = data.find(pickle.PROTO + bytes([pickle.HIGHEST_PROTOCOL]))
    at = len(data) // 2 if at < 0 else at
    return data[:at] + evil + data[at + len(evil) :]


def replayed_object(data: bytes, before: bytes) -> bytes:
    """The object of the call before takes this one's place, with its tag, where it can be read."""
    mark = pickle.PROTO + bytes([pickle.HIGHEST_PROTOCOL])
    old, at = before.rfind(mark), data.find(mark)
    if old < 0 or at < 0:
        return CHANGES["replayed"](data, before)
    changed = data[:at] + before[old : old + OBJECT_BYTES][: len(data) - at]
    return changed + data[len(changed) :]


@pytest.mark.parametrize("network", ["sealed", "plain"])
def test_an_object_that_is_replaced_on_the_way(two_hosts: Hosts, network: str) -> None:
    with NetworkJob(two_hosts, (0, 1), objects, network, before=in_the_middle) as job:
        for _ in range(3):
            go_when_armed(job)
        ranks = values(job.ended())
    for found in ranks:
        for spoilt, after in zip(found[::2], found[1::2], strict=True):
            assert spoilt[0] == "PeerFailure", found
            assert "what rank 1 " in spoilt[2] and "sent arrived altered" in spoilt[2], spoilt
            # On a plain network only the object is refused: the next call works.
            assert after[0] == "", after


def told(comm: Communicator, talk: Pipe) -> list[Any]:
    """On a plain network a length is changed, and what the ranks of a group tell each other."""
    found = []
    comm.close()
    relay.begin(Plan())
    with choreo.init(network="plain") as fresh:
        for call in (fresh.all_gather_object, fresh.new_group):
            arm(talk, Plan(("streams",), UP, CHANGES["flipped"], at_least_bytes=40))
            found.append(failure_of(call, [0, 1]))
            relay.begin(Plan())
            assert fresh.all_gather_object(fresh.rank) == [0, 1]
    return found


def test_what_ranks_tell_each_other_is_authenticated_on_a_plain_network(two_hosts: Hosts) -> None:
    with NetworkJob(two_hosts, (0, 1), told, before=in_the_middle) as job:
        for _ in range(2):
            go_when_armed(job)
        ranks = values(job.ended())
    for found in ranks:
        assert [kind for kind, _, _ in found] == ["PeerFailure"] * 2, found
        assert all("what rank 1 " in text and "sent arrived altered" in text for _, _, text in found), found


def control(comm: Communicator, talk: Pipe, names: list[str]) -> list[Any]:
    """Progress frames, the only ones while all is well, are changed; and a connection is cut."""
    found = []
    comm.close()
    for name in names:
        relay.begin(Plan())
        with choreo.init() as fresh:
            x = np.ones(10)
            arm(talk, Plan(("control",), UP, CHANGES[name]))
            fresh._engine.connection.detector.publish(reduced=1)
            time.sleep(0.1)
            found.append(failure_of(again, fresh.all_reduce, x))
            relay.begin(Plan())
    return found


def again(call: Callable[..., Any], x: Any, timeout: float) -> None:
    """Until it fails; ranks look at their peers 50 times a second."""
    for _ in range(200):
        call(x, timeout=timeout)
        time.sleep(0.005)


def test_control_messages_that_are_changed_on_the_way(two_hosts: Hosts) -> None:
    names = ["flipped", "repeated", "swapped", "truncated", "inserted"]
    with NetworkJob(two_hosts, (0, 1), control, names, before=in_the_middle) as job:
        for _ in names:
            go_when_armed(job)
        ranks = values(job.ended())
    for number, name in enumerate(names):
        (first, named, text), (other, _, _) = (found[number] for found in ranks)
        assert (first, other) == ("PeerFailure", "PeerFailure"), (name, ranks)
        assert named == [1]
        assert ("died" if name == "truncated" else "what rank 1 ") in text, (name, text)
        assert ("arrived altered" in text) == (name != "truncated"), (name, text)


def everything_passes(comm: Communicator, talk: Pipe) -> tuple[bytes, list[Any], list[bytes]]:
    """A job from its rendezvous to a failed call and its end; what passed, the frames, and what must not be read."""
    comm.close()
    relay.passed = []
    relay.frames.clear()
    with choreo.init() as fresh:
        x = np.frombuffer(b"numbers!" * 1000)
        fresh.all_gather(x)
        send_or_receive(fresh, x, 5, timeout=TIMEOUT_S)
        assert fresh.broadcast_object("an object", root=1) == "an object"
        fresh._engine.connection.detector.publish(reduced=1)
        with pytest.raises(CollectiveMismatch):
            (fresh.all_reduce if fresh.rank else fresh.all_gather)(np.ones(3))
        fresh.shrink().close()
    time.sleep(0.1)
    names = [os.uname().nodename.encode(), str(os.getpid()).encode(), b"all_reduce", b"all_gather", b"10.77.0."]
    return b"".join(relay.passed), [(int(kind), payload) for kind, payload in relay.frames], names


def test_nothing_can_be_read_on_the_way(two_hosts: Hosts) -> None:
    with NetworkJob(two_hosts, (0, 1), everything_passes, before=in_the_middle) as job:
        _, (passed, frames, names) = values(job.ended())
    kinds = {FrameKind(kind) for kind, _ in frames}
    assert {FrameKind.JOIN, FrameKind.BLOB, FrameKind.GOODBYE, FrameKind.PROGRESS, FrameKind.LEAVE} <= kinds, kinds
    assert len(passed) > 20_000
    for text in (*names, b"numbers!", b"an object", b'"rank"', b'"host'):
        assert len(text) < 5 or text not in passed, text  # a shorter one is there by chance
    for kind, payload in frames:
        assert struct.pack(">IB", len(payload), kind) + payload not in passed
        assert len(payload) < 8 or payload not in passed, (kind, payload)


def mail(comm: Communicator, talk: Pipe, names: list[str]) -> list[Any]:
    """Messages from rank 1 to rank 0."""
    found = []
    comm.close()
    for name in names:
        relay.begin(Plan())
        with choreo.init() as fresh:
            x = np.arange(COUNT, dtype=np.float64)
            send_or_receive(fresh, x, 5, timeout=TIMEOUT_S)
            fresh.barrier()
            arm(talk, Plan(("messages",), UP, CHANGES[name]))
            found.append(failure_of(send_or_receive, fresh, x, 6))
            talk.send("ready")
            talk.recv()
            relay.begin(Plan())
    return found


def send_or_receive(comm: Communicator, x: Any, tag: int, timeout: float) -> None:
    if comm.rank == 1:
        comm.send(x, 0, tag=tag, timeout=timeout)
        return
    got = np.zeros_like(x)
    comm.recv(got, 1, tag=tag, timeout=timeout)
    assert (got == x).all()


def test_messages_that_are_changed_on_the_way(two_hosts: Hosts) -> None:
    names = ["flipped", "dropped", "replayed", "swapped", "truncated"]
    with NetworkJob(two_hosts, (0, 1), mail, names, before=in_the_middle) as job:
        for _ in names:
            go_when_armed(job)
            go(job, 0, 1)
        receiver, sender = values(job.ended())
    for name, (kind, named, text), (other, *_) in zip(names, receiver, sender, strict=True):
        assert kind == "PeerFailure" and named == [1], (name, receiver, sender)
        # Whether the beginning of what is cut off comes first, or the end of the connection, is up to the machine.
        cut = text.endswith("or the connection to it was cut")
        assert cut if name == "truncated" else "rank 1 sent what arrived altered" in text, (name, text)
        assert other in ("", "PeerFailure")  # it may have handed over all of it before


def meet(comm: Communicator, talk: Pipe, cases: list[tuple[str, str]]) -> list[Any]:
    """A rendezvous, and the handshakes after it, are changed."""
    found = []
    comm.close()
    for kind, name in cases:
        arm(talk, Plan((kind,), UP, CHANGES[name], skip_bytes=100 if kind == "rendezvous" else 0))
        found.append(failure_of(meet_once))
        relay.begin(Plan())
        talk.send("ready")
        talk.recv()
    with choreo.init() as fresh:
        assert fresh.all_reduce(np.ones(1))[0] == 2
    return found


def meet_once(timeout: float) -> None:
    choreo.init(timeout=3.0).close()


def test_a_rendezvous_that_is_changed_on_the_way(two_hosts: Hosts) -> None:
    cases = [
        ("rendezvous", "flipped"),
        ("rendezvous", "repeated"),
        ("rendezvous", "truncated"),
        ("connection", "flipped"),
    ]
    with NetworkJob(two_hosts, (0, 1), meet, cases, before=in_the_middle) as job:
        for _ in cases:
            go_when_armed(job)
            go(job, 0, 1)
        ranks = values(job.ended())
    for (what, _), both in zip(cases, zip(*ranks, strict=True), strict=True):
        for kind, _, text in both:
            if what == "rendezvous":
                assert kind in ("RendezvousError", "AbortError"), both
                assert text
            else:  # a handshake that was spoilt is made again
                assert kind in ("", "RendezvousError", "AbortError", "PeerFailure"), both


def differ(comm: Communicator, _: Pipe) -> str:
    comm.close()
    with pytest.raises(RendezvousError) as caught:
        choreo.init(network="plain" if comm.rank else "sealed")
    return str(caught.value)


def test_ranks_that_differ_on_the_network_are_reported(two_hosts: Hosts) -> None:
    with NetworkJob(two_hosts, (0, 1), differ) as job:
        for text in values(job.ended()):
            assert "the network is sealed for rank 0 and plain for rank 1; give all ranks the same --network" in text
