"""Predict NCCL for one collective of one size on one system: its choice, and the time of the call."""

from __future__ import annotations

from dataclasses import dataclass, replace

from choreo.errors import UsageError
from choreo.nccl.constants import DEFAULT, Constants
from choreo.nccl.execution.execute import execute
from choreo.nccl.names import Forced
from choreo.nccl.system.system import NcclSystem
from choreo.nccl.tuning import algorithms_for, estimates

__all__ = ["Choice", "Prediction", "choose", "predict", "predict_alone"]

# NCCL sends a message with LL while it is no longer than this.
LL_MESSAGE_BYTES = 16384
FREE = Forced()
# A size over each of these takes no longer. NCCL changes its choice within that range of where it would pay.
PARTS = (2, 4, 8, 16)
# Across nodes, other releases of NCCL order estimates this close to each other differently, because their tables follow
# measurements. Among such options the one that runs fastest is taken. Below a megabyte all releases agree.
NEAR, NEAR_BYTES = 1.25, 1 << 20


@dataclass(frozen=True, slots=True)
class Choice:
    """An algorithm, a protocol, and NCCL's estimate of them; None where it has no estimate (sends)."""

    algorithm: str
    protocol: str
    estimate_s: float | None


@dataclass(frozen=True, slots=True)
class Prediction:
    """NCCL's choice and the time of a call; `estimate_s` is NCCL's own estimate."""

    algorithm: str
    protocol: str
    channels: int
    time_s: float
    estimate_s: float | None


def choose(collective: str, size_bytes: float, system: NcclSystem, forced: Forced = FREE) -> Choice:
    """The algorithm and protocol that NCCL expects to be fastest.

    If nothing that was forced exists on this system, NCCL would fail. Here the protocol is dropped, then the algorithm.
    """
    if size_bytes < 0:
        raise UsageError(f"a collective of {size_bytes} bytes makes no sense; give a size of zero or more")
    if not algorithms_for(collective):
        messages = 1 if collective == "sendrecv" else system.ranks
        return Choice("P2P", "LL" if size_bytes <= LL_MESSAGE_BYTES * messages else "Simple", None)
    algorithms, protocols = forced.algorithms, forced.protocols
    if algorithms is None and collective == "all_reduce" and 2 < system.domains <= system.network.ring_nodes:
        algorithms = frozenset({"Ring"})
    options = estimates(collective, size_bytes, system)
    narrowed = {option: time_us for option, time_us in options.items() if algorithms is None or option[0] in algorithms}
    options = narrowed or options
    narrowed = {option: time_us for option, time_us in options.items() if protocols is None or option[1] in protocols}
    options = narrowed or options
    algorithm, protocol = min(options, key=lambda option: options[option])
    if size_bytes >= NEAR_BYTES and system.domains > 1:
        least = options[algorithm, protocol]
        near = [option for option in options if options[option] <= NEAR * least]
        algorithm, protocol = min(near, key=lambda option: _runs_s(collective, option, size_bytes, system))
    return Choice(algorithm, protocol, options[algorithm, protocol] * 1e-6)


def _runs_s(collective: str, option: tuple[str, str], size_bytes: float, system: NcclSystem) -> float:
    return execute(collective, *option, size_bytes, system, constants=DEFAULT).time_s


def predict(
    collective: str,
    size_bytes: float,
    system: NcclSystem,
    forced: Forced = FREE,
    *,
    constants: Constants = DEFAULT,
) -> Prediction:
    """The choice and its time. `size_bytes` is nccl-tests' size: for all_gather and the like the total of all ranks.

    A call takes no less than one of fewer bytes, which a choice that comes too late may slow.
    """
    found = predict_alone(collective, size_bytes, system, forced, constants=constants)
    smaller = (predict_alone(collective, size_bytes / part, system, forced, constants=constants) for part in PARTS)
    return replace(found, time_s=max(found.time_s, *(one.time_s for one in smaller)))


def predict_alone(
    collective: str, size_bytes: float, system: NcclSystem, forced: Forced = FREE, *, constants: Constants = DEFAULT
) -> Prediction:
    """The choice and its time, whatever smaller calls take."""
    choice = choose(collective, size_bytes, system, forced)
    run = execute(collective, choice.algorithm, choice.protocol, size_bytes, system, constants=constants)
    return Prediction(choice.algorithm, choice.protocol, run.channels, run.time_s, choice.estimate_s)
