"""`--library nccl`: what NCCL would choose for a collective on a system."""

from __future__ import annotations

from choreo.errors import RefusedError, UsageError
from choreo.nccl.constants import DEFAULT, Constants
from choreo.nccl.model import Prediction, predict
from choreo.nccl.names import Forced, read_collective, read_forced
from choreo.nccl.system.system import NcclSystem
from choreo.nccl.tuning import ALGORITHMS, PROTOCOLS, algorithms_for, estimates
from choreo.units import size_of

__all__ = ["nccl_choice"]


def nccl_choice(
    collective: str,
    size_bytes: float | str,
    system: NcclSystem,
    forced: str | None = None,
    *,
    constants: Constants = DEFAULT,
) -> Prediction:
    """Algorithm, protocol, channels and time of NCCL's choice.

    `size_bytes` is counted as nccl-tests does: for all_gather, reduce_scatter and all_to_all it is the total of all
    ranks. `forced` is the value of NCCL_ALGO and NCCL_PROTO: `Ring`, `Tree,LL128` or `NCCL_ALGO=^NVLS`. If it leaves no
    choice on this system, that is an error, as it is in NCCL.

    >>> found = nccl_choice("all_reduce", "1GiB", NcclSystem.from_figures("H100", 8, 1))
    >>> found.algorithm, found.protocol
    ('NVLS', 'Simple')
    """
    size_bytes = size_of(size_bytes)
    name = read_collective(collective)
    wanted = Forced() if forced is None else _forced(forced)
    if algorithms_for(name) and system.ranks > 1 and (wanted.algorithms or wanted.protocols):
        _check(name, size_bytes, system, wanted, forced or "")
    return predict(name, size_bytes, system, wanted, constants=constants)


def _forced(text: str) -> Forced:
    wanted = read_forced(text)
    if wanted.algorithms is None and wanted.protocols is None and text.strip().lower() not in ("", "auto"):
        raise UsageError(
            f"{text!r} names neither an algorithm nor a protocol of NCCL; known: {', '.join((*ALGORITHMS, *PROTOCOLS))}"
        )
    return wanted


def _check(collective: str, size_bytes: float, system: NcclSystem, wanted: Forced, text: str) -> None:
    possible = estimates(collective, size_bytes, system)
    fitting = [
        option
        for option in possible
        if (wanted.algorithms is None or option[0] in wanted.algorithms)
        and (wanted.protocols is None or option[1] in wanted.protocols)
    ]
    if not fitting:
        names = ", ".join(f"{algorithm} with {protocol}" for algorithm, protocol in possible)
        raise RefusedError(
            f"NCCL has no {text} for {collective} of {system.ranks} ranks in {system.domains} NVLink domains of "
            f"{system.gpu.name}; it has {names}"
        )
