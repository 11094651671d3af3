"""Hosts decide by Paxos over their control connections; here they are threads, and the connections are socket pairs."""

from __future__ import annotations

import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from choreo.run.consensus import between_hosts
from choreo.run.consensus.between_hosts import HostConsensus
from choreo.run.consensus.control_channel import ControlChannel, ControlConnection, Decision, Prepare
from choreo.run.consensus.ledger import Ledger
from choreo.run.consensus.quorum import ANY, MAJORITY, Quorum
from tests.helpers.ranks.executors import control_over


def pair() -> tuple[ControlConnection, ControlConnection]:
    mine, theirs = socket.socketpair()
    return control_over(mine, higher=False), control_over(theirs, higher=True)


class Host:
    """A host of one rank."""

    def __init__(self, path: Path, rank: int, lines: dict[int, ControlConnection], count: int, rule: str) -> None:
        self.ledger, self.channel = Ledger(path / str(rank), create=True), ControlChannel(lines)
        quorum = Quorum(tuple((other,) for other in range(count)), rule)
        self.consensus, self._count = HostConsensus(self.ledger, self.channel, quorum, rank), count

    def decide(self, topic: str, proposal: bytes | None, patience_s: float = 20.0) -> bytes | None:
        def live() -> set[int]:
            return set(range(self._count)) - set(self.channel.dead())

        return self.consensus.decide(topic, proposal, live, lambda _: True, patience_s)


@pytest.mark.parametrize("rule", [MAJORITY, ANY])
@pytest.mark.parametrize("seed", range(8))
def test_hosts_decide_the_same_when_ranks_die_meanwhile(tmp_path: Path, seed: int, rule: str) -> None:
    """Four hosts of one rank each; some die during the consensus, which ends their connections."""
    random = np.random.default_rng(seed)
    count, dies = 4, set(random.choice(4, size=seed % 4, replace=False).tolist())
    lines: list[dict[int, ControlConnection]] = [{} for _ in range(count)]
    for low in range(count):
        for high in range(low + 1, count):
            lines[low][high], lines[high][low] = pair()
    delays, last_words = random.uniform(0, 0.01, count), random.integers(0, 3, count)

    def one(rank: int) -> bytes | None:
        host = Host(tmp_path, rank, lines[rank], count, rule)
        time.sleep(delays[rank])
        try:
            if rank in dies:
                for other in list(lines[rank])[: last_words[rank]]:  # what it said reached only some
                    lines[rank][other].send(Prepare("it", (1 << 16) + rank))
                return None
            return host.decide("it", f"of {rank}".encode())
        finally:
            if rank in dies:
                host.channel.close()
            host.ledger.close()

    with ThreadPoolExecutor(count) as pool:
        found = [value for value in pool.map(one, range(count)) if value is not None]
    for several in lines:
        for line in several.values():
            line.close()
    may_decide = rule == ANY or Quorum(tuple((other,) for other in range(count))).is_enough(set(range(count)) - dies)
    assert len(found) == (count - len(dies) if may_decide else 0)
    assert len(set(found)) <= 1


def test_by_the_rule_any_a_host_that_cannot_be_reached_is_not_waited_for_as_one_that_is_slow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(between_hosts, "CUT_OFF_S", 0.05)
    mine, theirs = pair()
    host, other = Host(tmp_path, 0, {1: mine}, 2, ANY), Host(tmp_path, 1, {0: theirs}, 2, ANY)
    # Nothing is acknowledged: the wait for a slow host, endless here, does not matter.
    monkeypatch.setattr(between_hosts, "SILENT_S", float("inf"))
    monkeypatch.setattr(mine, "is_cut_off", lambda: True)
    assert host.decide("cut", b"mine") == b"mine"
    # Everything is: that is waited for however late it comes.
    monkeypatch.setattr(mine, "is_cut_off", lambda: False)
    later = threading.Timer(0.3, lambda: other.consensus.announce("slow", b"theirs"))
    later.start()
    assert host.decide("slow", b"mine") == b"theirs"
    later.join()
    for one in (host, other):
        one.ledger.close()
        one.channel.close()


def test_a_minority_decides_nothing_and_hears_what_the_others_decided(tmp_path: Path) -> None:
    mine, theirs = pair()
    host, other = Host(tmp_path, 0, {1: mine}, 2, MAJORITY), Host(tmp_path, 1, {0: theirs}, 2, MAJORITY)
    assert other.decide("cut", b"theirs", patience_s=0.1) is None
    assert host.decide("cut", b"mine") == b"mine"  # it has rank 0
    assert other.decide("cut", b"theirs") == b"mine"
    host.channel.close()
    assert other.decide("next", b"theirs") is None, "nobody is left who could vote, so there is nothing to wait for"
    for one in (host, other):
        one.ledger.close()
        one.channel.close()


def test_a_decision_reaches_one_who_wakes_too_late(tmp_path: Path) -> None:
    mine, theirs = pair()
    theirs.send(Decision("it", b"without you"))
    theirs.close()
    host = Host(tmp_path, 0, {1: mine}, 2, MAJORITY)
    assert host.consensus.decided("it") == b"without you"
    assert host.decide("it", b"mine") == b"without you"
    host.ledger.close()
    mine.close()


def test_what_was_sent_arrives_though_the_connection_is_closed_at_once() -> None:
    """The last of it still waits for room in the socket, and something unread has come from the other side."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        mine = socket.create_connection(server.getsockname())
        theirs, _ = server.accept()
    mine.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    channel, far = ControlChannel({1: control_over(mine, higher=False)}), control_over(theirs, higher=True)
    far.send(Decision("unread", b""))
    decisions = [Decision(f"topic {number}", bytes(60_000)) for number in range(4)]
    for one in decisions:
        channel.send(one)
    got = []
    with ThreadPoolExecutor(1) as pool:
        closing = pool.submit(channel.close)
        while not far.lost:
            got += far.receive()
        closing.result()
    far.close()
    assert got == decisions
