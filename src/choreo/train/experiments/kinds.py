"""Sum the gradients of replicas: by all_reduce with a chosen or given algorithm, or through parameter servers."""

from __future__ import annotations

from choreo.errors import UsageError
from choreo.workload import Plan, Recommender, Workload

__all__ = ["ALL_REDUCE", "ASYNC_PARAMETER_SERVER", "KINDS", "check_kind"]

ALL_REDUCE, ASYNC_PARAMETER_SERVER = "all-reduce", "async-parameter-server"
# The algorithm of the gradients' all_reduce; "" is the cheapest by price, or none.
KINDS = {
    ALL_REDUCE: "",
    "ring": "ring",
    "partitioned": "partitioned",
    "staggered": "staggered",
    "parameter-server": "parameter_server",
    ASYNC_PARAMETER_SERVER: "",
}
SERVERS, STALENESS = 1, 2


def check_kind(
    kind: str, plan: Plan, model: Workload, *, servers: int | None, staleness: int | None, device: str, backend: str
) -> tuple[int, int]:
    """Check and return the number of servers and the allowed staleness.

    >>> from choreo.workload import get_model
    >>> options = {"device": "cpu", "backend": "choreo"}
    >>> check_kind(ASYNC_PARAMETER_SERVER, Plan(dp=4), get_model("gpt2-124m"), servers=2, staleness=None, **options)
    (2, 2)
    """
    if kind not in KINDS:
        raise UsageError(f"data_parallel must be one of {', '.join(KINDS)}, not {kind!r}")
    if kind != ASYNC_PARAMETER_SERVER:
        for name, value in (("servers", servers), ("staleness", staleness)):
            if value is not None:
                raise UsageError(f"--{name} is for --data-parallel {ASYNC_PARAMETER_SERVER}, not for {kind}")
        if kind != ALL_REDUCE and plan.dp == 1:
            raise UsageError(f"--data-parallel {kind} is between replicas, and {plan} has one; use --dp 2 or more")
        if kind != ALL_REDUCE and backend != "choreo":
            raise UsageError(f"--data-parallel {kind} chooses the algorithm, which --backend {backend} does by itself")
        if kind != ALL_REDUCE and plan.zero:
            raise UsageError(
                f"--data-parallel {kind} is an all_reduce of gradients, and --zero {plan.zero} sums them by "
                "reduce_scatter; leave out one of the two"
            )
        return 0, 0
    servers, staleness = SERVERS if servers is None else servers, STALENESS if staleness is None else staleness
    if servers < 1 or staleness < 0:
        raise UsageError(
            f"there must be at least one server and a staleness of 0 or more, not {servers} and {staleness}"
        )
    if plan.gpus != plan.dp or plan.zero or isinstance(model, Recommender):
        cut = f"{model.name}, whose tables are cut" if isinstance(model, Recommender) else f"{plan}"
        raise UsageError(f"--data-parallel {kind} is for replicas alone (--dp {plan.gpus}), not for {cut}")
    if device != "cpu":
        raise UsageError(f"--data-parallel {kind} keeps parameters in the servers' memory; leave out --device {device}")
    return servers, staleness
