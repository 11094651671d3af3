"""`Elastic`: data-parallel training that continues when ranks die, stop or come back.

Every exchange is an `all_reduce` that survives failures, so all remaining ranks always agree on who is left, and on
whose samples are in the gradients. A rank's number decides what it holds and computes, never the result.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from choreo.checks import whole_number
from choreo.errors import TrainingError, UsageError
from choreo.run import ReduceOp
from choreo.run.transport.limits import MAX_RANKS
from choreo.train.elastic.membership import WORD, LeftOutError, Members, StateLostError, Words
from choreo.train.elastic.shards import cut_into_shards, dealt, holders, share_of

if TYPE_CHECKING:
    from choreo.train.elastic.state import Bucket

__all__ = ["Change", "Elastic"]

PATIENCE_S = 60.0
LOSS, WAITING, ADMITTING = range(3)  # what is summed beside the gradients
Sample = TypeVar("Sample")


@dataclass(frozen=True, slots=True)
class Change:
    """Ranks that were lost or joined before a step."""

    step: int
    lost: tuple[int, ...]
    joined: tuple[int, ...]


class Elastic:
    """Data-parallel training of a model and its optimizer that survives the loss of any rank.

    The samples of a step are distributed over the live ranks. If a rank is lost, the others compute its samples too,
    and the step gives the same parameters. A process that is restarted with CHOREO_JOIN=1 is admitted between two
    steps, and gets everything from its peers.

    With `zero` 0, every rank holds all of the optimizer's state. With 1, a rank holds the state of some parameters, and
    `copies` ranks hold each part. With 2, it keeps only the gradients of those parameters, too. If all ranks that hold
    a copy are lost at once, the job ends with a TrainingError.

    `also` are further objects with a `state_dict`, such as a learning-rate scheduler, that a new rank gets too. The
    others wait at most `patience` seconds for a rank, and only a moment for one whose process is stopped. Random
    numbers in a sample depend only on `seed`, the step and the sample.

    >>> import torch, choreo
    >>> model = torch.nn.Linear(1, 1)
    >>> with choreo.Elastic(model, torch.optim.SGD(model.parameters(), lr=0.1)) as job:
    ...     for step in job.steps(3):
    ...         loss = job.backward(lambda i: (model(torch.ones(1)) - i).square().sum(), samples=range(4))
    ...         job.step()
    >>> job.ranks
    (0,)
    """

    def __init__(
        self,
        model: Any,
        optimizer: Any,
        *,
        zero: int = 1,
        copies: int = 2,
        also: Sequence[Any] = (),
        patience: float = PATIENCE_S,
        seed: int = 0,
    ) -> None:
        if zero not in (0, 1, 2):
            raise UsageError(f"zero must be 0, 1 or 2, not {zero!r}; parameters that are cut cannot be recovered")
        if not patience > 0:
            raise UsageError(f"patience must be above 0 seconds, not {patience}")
        self.model, self.optimizer, self.zero = model, optimizer, zero
        self.copies = MAX_RANKS if zero == 0 else whole_number("copies", copies)
        self.changes: list[Change] = []
        self.parts_s: dict[str, float] = {}  # where the time of the step in progress goes
        self._also, self._seed = tuple(also), seed
        self._parameters = [
            parameter for group in optimizer.param_groups for parameter in group["params"] if parameter.requires_grad
        ]
        if not self._parameters:
            raise UsageError("the optimizer has no parameters to train")
        self._members = Members(float(patience))
        self._number, self._computed, self._out = 0, False, False
        self._placed: tuple[int, ...] = ()  # the ranks that the optimizer's state is laid out for
        self._waiting = 0

    # The user's API

    @property
    def rank(self) -> int:
        """This rank's number; it is 0 for the only one that should print."""
        return 0 if self._members.comm is None else self._members.live.index(self._members.me)

    @property
    def ranks(self) -> tuple[int, ...]:
        """The original numbers of the live ranks."""
        return self._members.live

    @property
    def left_out(self) -> bool:
        """Whether the others have continued without this rank; it returns with the next step."""
        return self._out

    def steps(self, count: int, first: int = 0) -> Iterator[int]:
        """The numbers of the steps up to `count`; a rank that joins later begins where the others are."""
        self._number = first
        if self._members.comm is None:
            self._guarded(self._begin)
        while True:
            began_s = time.monotonic()
            self._guarded(self._settle)
            if self._number >= count:
                return
            if self._out:
                self._guarded(self._come_back)
                continue
            number, self._computed, self.parts_s = self._number, False, {}
            yield number
            if self._out:
                continue
            if self._number == number:
                raise UsageError(f"step {number} was not completed; call job.step() once in each step")
            self._members.steps_s.append(time.monotonic() - began_s)

    def backward(self, loss: Callable[[Any], Any], samples: Iterable[Any]) -> float:
        """Compute the gradients of the mean of `loss(sample)` over all samples, and return that mean.

        Each rank calls `loss` for its share of the samples. The loss may depend on the step and the sample, but not on
        the rank. On a rank that the others have meanwhile left out, the result is NaN.
        """
        everything = tuple(samples)
        if not everything:
            raise UsageError("a step needs at least one sample")
        self._computed = True
        found = self._guarded(lambda: self._summed_gradients(loss, everything))
        return math.nan if found is None else found

    def step(self, clip: float | None = None) -> None:
        """Update the parameters; with `clip`, gradients with a larger norm are first scaled down to it."""
        if not self._out and not self._computed:
            raise UsageError("job.step() comes after job.backward(), once in each step")
        self._guarded(lambda: self._update(clip))

    def close(self) -> None:
        """Leave the job; the others continue."""
        self._members.leave()

    def __enter__(self) -> Elastic:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _guarded(self, action: Callable[[], float | None]) -> float | None:
        """Do something with the other ranks, unless they continue without this one."""
        if self._out and action != self._come_back:
            return None
        try:
            return action()
        except LeftOutError:
            self._out = True
        except StateLostError:
            raise TrainingError(
                f"step {self._number}: all ranks that held a part of the optimizer's state were lost at once; start "
                "from a checkpoint, and keep more copies of it (copies=3), or all of it on every rank (zero=0)"
            ) from None
        return None

    # A step

    def _summed_gradients(self, loss: Callable[[Any], Any], samples: tuple[Any, ...]) -> float:
        """Sum the gradients of all samples, even if ranks are lost meanwhile."""
        members, total = self._members, 0.0
        numbered = tuple(enumerate(samples))
        missing = dict.fromkeys(self._buckets, numbered)
        sums: dict[Bucket, Any] = {}
        while missing:
            live, some = members.live, next(iter(missing.values()))
            together = [bucket for bucket, missed in missing.items() if missed == some]
            mine = self._computed_share(loss, dealt(some, live, members.me), len(samples))
            for bucket in together:
                start_s = time.perf_counter()
                notes = [mine, float(members.waiting()), float(members.is_admitting)]
                got = members.reduce(bucket.packed(notes))
                sums[bucket] = got if bucket not in sums else sums[bucket] + got
                missing[bucket] = share_of(some, live, frozenset(live) - frozenset(members.live))
                if bucket is self._buckets[0]:
                    total += bucket.notes(got)[LOSS]
                self._waiting = round(bucket.notes(got)[WAITING])
                if members.goes_on_where_admitted and not round(bucket.notes(got)[ADMITTING]):
                    # The host that admits others is on the other side of a network partition, and that side continues.
                    raise LeftOutError
                self._spent("dp all_reduce", start_s)
            missing = {bucket: left for bucket, left in missing.items() if left}
        for number, bucket in enumerate(self._buckets):
            bucket.unpacked(sums[bucket], keep=self.zero < 2 or self._holds(number))
        return total

    def _computed_share(self, loss: Callable[[Any], Any], samples: Sequence[tuple[int, Any]], count: int) -> float:
        """Compute the gradients of some samples, into the parameters; returns their part of the loss."""
        import torch

        start_s, total = time.perf_counter(), 0.0
        for parameter in self._parameters:
            parameter.grad = None
        for number, sample in samples:
            torch.manual_seed(self._random_seed(number))
            found = loss(sample)
            if not isinstance(found, torch.Tensor) or found.numel() != 1:
                raise UsageError(f"the loss of a sample must be one number in a tensor, not {found!r:.80}")
            (found / count).backward()
            total += float(found.detach()) / count
        self._spent("compute", start_s)
        return total

    def _random_seed(self, sample: int) -> int:
        text = f"{self._seed} {self._number} {sample}"
        return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=7).digest(), "little")

    def _update(self, clip: float | None) -> None:
        start_s = time.perf_counter()
        norm = math.sqrt(sum(bucket.norm**2 for bucket in self._buckets))
        if clip is not None and norm > clip:
            for parameter in self._parameters:
                if parameter.grad is not None:
                    parameter.grad.mul_(clip / norm)
        for number, shard in enumerate(self._shards):
            if not self._holds(number):
                for parameter in shard:
                    parameter.grad = None  # an optimizer skips such a parameter, and keeps no state for it
        self.optimizer.step()
        self._spent("optimizer", start_s)
        if self.zero:
            start_s = time.perf_counter()
            self._exchange_parameters()
            self._spent("dp all_gather", start_s)
        self._number += 1

    def _exchange_parameters(self) -> None:
        """Every rank gets the new parameters of each shard from a rank that holds its state."""
        from choreo.train.elastic.state import pack, unpack

        members, left = self._members, [number for number, shard in enumerate(self._shards) if shard]
        while left:
            speakers = {number: self._speaker(number) for number in left}
            sizes = [sum(shard.numel() * shard.element_size() for shard in self._shards[number]) for number in left]
            places = np.cumsum([0, *(-(-size // WORD.itemsize) for size in sizes)])
            words = np.zeros(int(places[-1]), WORD)
            for at, number in enumerate(left):
                if speakers[number] == members.me:
                    view = words[places[at] : places[at + 1]].view(np.uint8)
                    view[: sizes[at]] = np.frombuffer(pack(self._shards[number]), np.uint8)
            got: Words = members.reduce(words, ReduceOp.BOR)
            for at, number in enumerate(left):
                if speakers[number] in members.live and speakers[number] != members.me:
                    unpack(got[places[at] : places[at + 1]].tobytes(), self._shards[number])
            left = [number for number in left if speakers[number] not in members.live]

    # Membership

    def _begin(self) -> None:
        if self._members.come():
            self._lay_out(len(self._members.live))
            self._placed = self._members.live
            self._welcome(first=True)
        else:
            self._come_back(joined=True)

    def _come_back(self, joined: bool = False) -> None:
        """Join a running job, and get all state from its ranks."""
        while True:
            try:
                if not joined:
                    self._members.come_back()
                self._out, self._placed = False, ()
                self._welcome()
            except LeftOutError:
                joined = False
            else:
                return

    def _settle(self) -> None:
        """Between two steps: copy what only one rank holds now, and admit waiting processes."""
        self._make_copies()
        if self._waiting and self._members.grow(self._waiting):
            self._welcome()
        self._waiting = 0

    def _welcome(self, *, first: bool = False) -> None:
        """Send all state to new ranks. A new rank itself has none."""
        from choreo.train.elastic.state import pack, pack_settings, unpack, unpack_settings

        members = self._members
        about = np.zeros(2 + -(-MAX_RANKS // 64), np.uint64)
        if self._placed:
            about[:2] = self._number, len(self._shards)
            for rank in self._placed:
                about[2 + rank // 64] |= np.uint64(1 << rank % 64)
        about = members.reduce(about, ReduceOp.BOR)
        old = tuple(rank for rank in range(MAX_RANKS) if int(about[2 + rank // 64]) >> (rank % 64) & 1)
        new = not self._placed
        if new:
            self._number, self._placed = int(about[0]), old
            self._lay_out(max(1, int(about[1])))
        tensors = [*self._parameters, *self.model.buffers()]
        data = members.hand_over(old, None if new else pack(tensors))
        if new or first:
            wanted = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
            if len(data) != wanted:
                raise TrainingError(
                    f"this rank's model takes {wanted} bytes, and that of the others {len(data)}; start all ranks "
                    "with the same model"
                )
            unpack(data, tensors)
        settings = members.hand_over(old, None if new else pack_settings(self.optimizer, self._also))
        if new:
            unpack_settings(settings, self.optimizer, self._also)
            self.optimizer.state.clear()
        if set(old) != set(members.live):
            self._make_copies()
        self._drop_what_others_hold()

    def _make_copies(self) -> None:
        """Lay the optimizer's state out for the live ranks."""
        from choreo.train.elastic.state import pack_optimizer, unpack_optimizer

        members = self._members
        while set(self._placed) != set(members.live):
            plan = members.live
            for number, shard in enumerate(self._shards):
                have, need = holders(number, self._placed, self.copies), holders(number, plan, self.copies)
                if shard and set(need) - set(have):
                    mine = pack_optimizer(self.optimizer, shard) if members.me in have else None
                    data = members.hand_over(have, mine)
                    if members.me in need and members.me not in have:
                        unpack_optimizer(self.optimizer, shard, data)
            lost, joined = (tuple(sorted(set(a) - set(b))) for a, b in ((self._placed, plan), (plan, self._placed)))
            self.changes.append(Change(self._number, lost, joined))
            self._placed = plan
        self._drop_what_others_hold()

    def _drop_what_others_hold(self) -> None:
        for number, shard in enumerate(self._shards):
            if not self._holds(number):
                for parameter in shard:
                    self.optimizer.state.pop(parameter, None)

    def _lay_out(self, shards: int) -> None:
        """Cut the parameters into shards, as many as there were ranks at first."""
        from choreo.train.elastic.state import Bucket

        cut = cut_into_shards([parameter.numel() for parameter in self._parameters], shards)
        self._shards = [[self._parameters[at] for at in shard] for shard in cut]
        together = self._shards if self.zero == 2 else [self._parameters]
        self._buckets = [Bucket(parameters, notes=3) for parameters in together]

    def _holds(self, shard: int) -> bool:
        return self._members.me in holders(shard, self._placed, self.copies)

    def _speaker(self, shard: int) -> int:
        there = (rank for rank in holders(shard, self._placed, self.copies) if rank in self._members.live)
        found = next(there, None)
        if found is None:
            raise StateLostError
        return found

    def _spent(self, part: str, start_s: float) -> None:
        self.parts_s[part] = self.parts_s.get(part, 0.0) + time.perf_counter() - start_s
