"""A status that a crash cannot tear, and decisions that are made once."""

from __future__ import annotations

import mmap
from pathlib import Path

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from choreo.run.consensus import status as segments
from choreo.run.consensus.consensus import Outcome, pack_ranks
from choreo.run.consensus.ledger import ENTRY_BYTES, Ledger
from choreo.run.consensus.status import Status
from choreo.run.recover.shrink import COMMIT, MAX_REASON
from tests.helpers.ranks.fork_server import CONTEXT, start_server


@given(st.integers(0, segments.SLOT_BYTES), st.integers(0, 3), st.binary(max_size=800))
def test_a_crash_in_the_middle_of_a_notice_leaves_the_one_before(written: int, before: int, blob: bytes) -> None:
    segment = mmap.mmap(-1, 4096)
    for number in range(1, before + 1):
        segments.write_status(segment, number, Status(cause=1, call=number))
    last = segments.read_status(segment)
    whole = mmap.mmap(-1, 4096)
    whole[:] = segment[:]
    segments.write_status(whole, before + 1, Status(cause=2, call=99, blobs=(blob,)))
    at = segments.STATUS_AT + (before + 1) % 2 * segments.SLOT_BYTES
    segment[at : at + written] = whole[at : at + written]
    assert segments.read_status(segment) == (segments.read_status(whole) if segment[:] == whole[:] else last)


@given(st.binary(min_size=2 * segments.SLOT_BYTES, max_size=2 * segments.SLOT_BYTES))
def test_what_is_no_notice_is_not_taken_for_one(noise: bytes) -> None:
    segment = mmap.mmap(-1, 4096)
    segment[segments.STATUS_AT : segments.STATUS_AT + len(noise)] = noise
    assert segments.read_status(segment) == Status()


def _propose(path: Path, mine: str, pipe: object) -> None:
    ledger = Ledger(path, create=False)
    found = [ledger.decide(f"topic {number}", mine.encode()) for number in range(50)]
    ledger.close()
    pipe.send(found)  # type: ignore[attr-defined]


def test_all_who_propose_at_once_see_the_same_decisions(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    ledger = Ledger(path, create=True)
    start_server()
    pairs = [CONTEXT.Pipe() for _ in range(4)]
    ranks = [CONTEXT.Process(target=_propose, args=(path, f"rank {at}", pairs[at][1])) for at in range(4)]
    for rank in ranks:
        rank.start()
    found = [mine.recv() for mine, _ in pairs]
    for rank in ranks:
        rank.join()
    for mine, theirs in pairs:
        mine.close()
        theirs.close()
    assert found[0] == found[1] == found[2] == found[3]
    assert found[0] == [ledger.decided(f"topic {number}") for number in range(50)]
    ledger.close()


def test_an_entry_that_was_torn_decides_nothing(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    ledger = Ledger(path, create=True)
    with path.open("ab") as file:
        file.write(b"torn".ljust(ENTRY_BYTES, b"\0"))
    assert ledger.decided("it") is None
    assert ledger.decide("it", b"yes") == b"yes" == ledger.decide("it", b"no")
    ledger.close()


def test_a_decision_that_leaves_out_half_of_thousands_of_ranks_fits_into_an_entry(tmp_path: Path) -> None:
    lost = range(1, 4096, 2)
    outcome = Outcome(False, pack_ranks(lost), "x" * MAX_REASON)
    assert outcome.lost_ranks == frozenset(lost)
    ledger = Ledger(tmp_path / "ledger", create=True)
    value = msgspec.msgpack.encode(outcome)
    assert ledger.append(f"\0vote exchange 99 {COMMIT}", b"ballot..." + value) == [b"ballot..." + value]
    ledger.close()
