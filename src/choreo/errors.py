"""Every error Choreo raises, in one tree.

ChoreoError
├── UsageError (also a ValueError)      the caller asked for something that does not exist or make sense
│   ├── UnknownNameError                no such collective, algorithm, option; the nearest names are in the message
│   ├── SizeError                       text that is not a size, a time or a bandwidth
│   ├── NoPathError                     a device that cannot be reached over live links from one that sends to it
│   ├── DeviceError                     no such accelerator, a file that is none, or one that cannot be measured
│   ├── AlgorithmError                  an algorithm's own code failed, told with its file and line
│   ├── ModelError                      a config.json or numbers that are not a model; names the file and the field
│   ├── PlanError                       a parallel plan that cannot be run; the nearest that can is in the message
│   ├── CollectiveMismatch              ranks made different calls; both are in the message
│   └── CommunicatorClosed              a call on a communicator that has ended: closed, shrunk, grown, of a forked
│                                       process, or one whose other ranks have excluded this one, or may have
│                                       gone on without it on the other side of a cut
├── RefusedError                        this algorithm cannot do this at this number of ranks, or on this network
├── ScheduleError                       these transfers are not a schedule
│   ├── FormatError                     a file or document that is not a schedule; names the field
│   └── ContradictionError              two writes of one step contradict each other
├── TopologyError                       a file or document that is not a network
├── TraceError                          a trace that is damaged, or of a program that cannot have run
├── ProofError                          a schedule that does not do what its collective promises
├── DeadlockError                       a simulated network in which ports wait for each other for ever
├── BenchmarkError                      a library that is to be measured is missing, failed or does not answer
├── CalibrationError                    a fit that is too far off to be kept
├── StoreError                          a store of results that is damaged, full, newer, read-only or not one of ours
├── TrainingError                       a training run that failed: a loss that is not a number, a rank that died
├── RendezvousError                     the processes of a job did not find each other
├── PeerFailure                         ranks died, were stuck or left; all survivors agree on which
└── JoinError                           a process could not join a running job; its ranks go on as before

A message says what was wrong, where, with which values, and what to do instead. `ValueError` is kept as a base of
the caller's mistakes so that code which knows nothing of Choreo can still catch them.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable

__all__ = [
    "AlgorithmError",
    "BenchmarkError",
    "CalibrationError",
    "ChoreoError",
    "CollectiveMismatch",
    "CommunicatorClosed",
    "ContradictionError",
    "DeadlockError",
    "DeviceError",
    "FormatError",
    "JoinError",
    "ModelError",
    "NoPathError",
    "PeerFailure",
    "PlanError",
    "ProofError",
    "RefusedError",
    "RendezvousError",
    "ScheduleError",
    "SizeError",
    "StoreError",
    "TopologyError",
    "TraceError",
    "TrainingError",
    "UnknownNameError",
    "UsageError",
]


MAX_SHOWN = 400  # characters of a path or name


class ChoreoError(Exception):
    """The root of everything Choreo raises on purpose. Each one pickles, so that it survives a process pool."""

    def __reduce__(self) -> tuple[object, ...]:
        return (_restored, (type(self), self.args, self.__dict__))


class UsageError(ChoreoError, ValueError):
    """The caller's mistake: a value that does not exist, is out of range, or does not fit the rest."""


class UnknownNameError(UsageError):
    """A name that is not there; the message lists the nearest ones that are, or says what lists them all (`see`).

    It ends with `also`, where there is more to say.
    """

    def __init__(self, kind: str, name: str, known: Iterable[str], see: str = "", also: str = "") -> None:
        names, name = sorted(known), short(name)
        close = nearest(name, names)
        known_ones = see or f"known: {', '.join(names) or 'none'}"
        hint = f"did you mean {_either(close)}?" if close else known_ones
        more = also and f"{'' if close else ';'} {also}"
        super().__init__(f"there is no {kind} {name!r}; {hint}{more}")
        self.name = name
        self.suggestions = close


class SizeError(UsageError):
    """Text that is not a size, a time, a bandwidth or a range of them."""


class NoPathError(UsageError):
    """A device that cannot be reached over live links from one that sends to it."""


class DeviceError(UsageError):
    """An accelerator that is not known, a file that does not describe one, or one that cannot be measured here."""


class AlgorithmError(UsageError):
    """An algorithm's own code failed, or gave something that is not what it was asked for."""


class ModelError(UsageError):
    """A file or numbers that do not describe a model that is known here."""


class PlanError(UsageError):
    """A parallel plan that cannot be run on these devices, with this model and batch, and the nearest that can."""


class RefusedError(ChoreoError):
    """An algorithm that cannot do what is asked at this number of ranks or on this network, and what to use instead."""


class ScheduleError(ChoreoError):
    """Transfers that are not a schedule: out of range, of the wrong shape, or contradicting each other.

    `field` is the place, as a JSON document would name it: "steps[0][2].dst".
    """

    def __init__(self, message: str, *, field: str = "steps") -> None:
        super().__init__(message)
        self.field = field


class FormatError(ScheduleError):
    """A file or document that does not hold a schedule; `field` names the place in it."""


class ContradictionError(ScheduleError):
    """Two transfers of one step that store into one place, or store and reduce into it.

    `name` is what a member is called, rank 3 where it is not given.
    """

    def __init__(
        self,
        step: int,
        rank: int,
        chunk: int,
        sources: tuple[int, int],
        both_store: bool,
        *,
        name: Callable[[int], str] = "rank {}".format,
    ) -> None:
        low, high = sorted(sources)
        senders = f"twice by {name(low)}" if low == high else f"by {name(low)} and by {name(high)}"
        what = "both store into it" if both_store else "one stores into it while the other reduces into it"
        self.story = (
            f"step {step}: {name(rank)} is sent chunk {chunk} {senders}, and {what}; put them in different steps, or "
            "let both reduce"
        )
        super().__init__(self.story, field=f"steps[{step}]")
        self.step, self.rank, self.chunk = step, rank, chunk
        self.about: dict[str, object] = {}  # collective, algorithm and ranks of the schedule, where they are known


class TopologyError(ChoreoError):
    """A file or document that does not hold a network: damaged, incomplete, or joining nodes that are not there."""


class TraceError(ChoreoError):
    """A trace or execution graph that is damaged, incomplete, or of a program that cannot have run."""


class ProofError(ChoreoError):
    """A schedule that does not do what its collective promises.

    `step`, `rank` and `chunk` say where it first goes wrong, `contributor` whose contribution it is about, `kind`
    how: "absent" (sent before anything was there), "missing", "doubled" or "contradiction". A `rank` beyond the
    schedule's ranks is a switch.

    About a program for thread blocks `thread_block` says which, and `step` counts in it. Its `kind` may also be "race",
    "deadlock", "unreceived", "unsent", "mismatch", "misplaced" or "mixed".
    """

    def __init__(
        self, story: str, *, kind: str, step: int, rank: int, chunk: int, contributor: int | None = None
    ) -> None:
        super().__init__(story)
        self.story = story
        self.kind = kind
        self.thread_block: int | None = None
        self.about: dict[str, object] = {}  # collective, algorithm and ranks, of a file that gives no schedule
        self.step, self.rank, self.chunk, self.contributor = step, rank, chunk, contributor

    def tell(self, story: str) -> None:
        """Tell it with more than was known at first."""
        self.story = story
        self.args = (story,)


class DeadlockError(ChoreoError):
    """A simulated network in which nothing moves any more; `ports` are those that wait for each other, in a cycle.

    Each is named by the nodes that its link goes from and to.
    """

    def __init__(self, message: str, ports: Iterable[tuple[str, str]] = ()) -> None:
        super().__init__(message)
        self.ports = tuple(ports)


class BenchmarkError(ChoreoError):
    """A library that is to be measured is not installed, failed, or does not answer."""


class CalibrationError(ChoreoError):
    """Constants whose fit is too far off to be kept; the load of the machine is in the message."""


class StoreError(ChoreoError):
    """A store of results that cannot be opened, read or written: why, and what to do. What was written stays."""


class TrainingError(ChoreoError):
    """A training run that failed: what went wrong, at which step and rank, and what to look at."""


class RendezvousError(ChoreoError):
    """The processes of a job did not find each other, or one was lost meanwhile.

    `ranks` are those that caused it: they did not join, died, or claimed a rank that was taken. It is empty if nobody
    knows.
    """

    def __init__(self, message: str, *, ranks: Iterable[int] = ()) -> None:
        super().__init__(message)
        self.ranks = tuple(ranks)


# These three have the names that users of collectives know.
class PeerFailure(ChoreoError):  # noqa: N818
    """Ranks died, did not answer before the deadline, or left.

    `ranks` are those that failed, the same on every survivor. On the side of a network partition that may not continue,
    they are those that this rank does not reach. It is empty if no rank is known to have failed: the call was not done
    before its deadline though every rank answers, or a rank sent invalid data. `collective` and `step` say where this
    rank was.
    """

    def __init__(self, message: str, *, ranks: Iterable[int], collective: str = "", step: int | None = None) -> None:
        super().__init__(message)
        self.ranks, self.collective, self.step = frozenset(ranks), collective, step


class CollectiveMismatch(UsageError):  # noqa: N818
    """Ranks made different calls: another collective, size, type, operation or root."""


class CommunicatorClosed(UsageError):  # noqa: N818
    """A call on a communicator that was closed, or that this rank was excluded from."""


class JoinError(ChoreoError):
    """A new process did not come, did not hold the secret, or was lost while it joined."""


def _restored(kind: type[ChoreoError], args: tuple[object, ...], state: dict[str, object]) -> ChoreoError:
    error = kind.__new__(kind)
    error.args = args
    error.__dict__.update(state)
    return error


def nearest(name: str, known: Iterable[str]) -> list[str]:
    """The known names that somebody may have meant, at most three; case and punctuation do not count.

    >>> nearest("AllReduce", ["reduce", "all_reduce"]), nearest("tree", ["ring", "double_binary_tree"])
    (['all_reduce'], ['double_binary_tree'])
    """
    asked, spelled = _letters(name), {_letters(one): one for one in known}
    if asked in spelled:
        return [spelled[asked]]
    holding = [letters for letters in spelled if len(asked) > 2 and asked in letters]
    close = difflib.get_close_matches(asked, holding, n=3, cutoff=0.0)
    close += difflib.get_close_matches(asked, spelled.keys() - holding, n=3, cutoff=0.5)
    return [spelled[letters] for letters in close[:3]]


def _letters(name: str) -> str:
    return "".join(filter(str.isalnum, name.casefold()))


def shown(path: object) -> str:
    """A path or a name as a message may have it: on one line, and not endless, whatever is in it."""
    text = str(path)
    if len(text) > MAX_SHOWN:
        text = f"{text[: MAX_SHOWN // 2]}...{text[-MAX_SHOWN // 2 :]}"
    return text if text.isprintable() and text else repr(text)


def short(text: str, most: int = 80) -> str:
    """A text from a file, cut to fit into a message and to be compared with names.

    >>> short("x" * 100, most=10)
    'xxxxxxx...'
    """
    return text if len(text) <= most else f"{text[: most - 3]}..."


def excerpt(value: object, most: int = 80) -> str:
    """A value that a caller gave, as a message may have it: its start, whatever it is.

    >>> excerpt([1, 2]), excerpt(10**5000)
    ('[1, 2]', 'a value of type int')
    """
    try:
        return f"{value!r:.{most}}"
    except Exception:  # an int of thousands of digits, or a __repr__ that fails
        return f"a value of type {type(value).__name__}"


def _either(names: list[str]) -> str:
    quoted = [repr(name) for name in names]
    return quoted[0] if len(quoted) == 1 else f"{', '.join(quoted[:-1])} or {quoted[-1]}"
