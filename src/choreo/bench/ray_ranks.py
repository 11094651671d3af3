"""The ranks of a benchmark as actors of a local Ray, which is started for them."""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping
from typing import Any

from choreo.bench.object_store import MAIL, VARIABLE
from choreo.bench.rank import main as be_rank

__all__ = ["RayRank", "main"]

STORE_BYTES = 2 << 30


class RayRank:
    """An actor: one thread is a rank of the benchmark, another takes what other ranks send to it."""

    def serve(self, variables: Mapping[str, str]) -> None:
        """Be a rank until the benchmark ends."""
        os.environ.update(variables)
        be_rank()

    def deliver(self, sender: int, references: list[Any]) -> None:
        """Take a reference. It is in a list so that Ray does not fetch what it refers to."""
        MAIL.put((sender, references[0]))


def main() -> None:
    """Start a local Ray, and the actors that are the ranks; end when they do."""
    ray: Any = importlib.import_module("ray")
    ranks, name = int(os.environ["WORLD_SIZE"]), f"choreo-bench-{os.getpid()}-"
    ray.init(address="local", num_cpus=ranks, object_store_memory=STORE_BYTES, include_dashboard=False)
    actor = ray.remote(RayRank)
    actors = [actor.options(name=f"{name}{rank}", max_concurrency=2).remote() for rank in range(ranks)]
    shared = {key: text for key, text in os.environ.items() if key.startswith("CHOREO_BENCH_")} | {VARIABLE: name}
    running = [
        actor.serve.remote(shared | {"RANK": str(rank), "WORLD_SIZE": str(ranks), "OMP_NUM_THREADS": "1"})
        for rank, actor in enumerate(actors)
    ]
    ray.wait(running, num_returns=1)  # a rank ends its process when the benchmark ends
    ray.shutdown()
