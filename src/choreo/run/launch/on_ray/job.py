"""The actors of a job on a Ray cluster."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

from choreo.errors import RendezvousError
from choreo.run.launch.on_ray.actor import RankActor
from choreo.run.rendezvous.environment import network_is_sealed
from choreo.run.transport.secret import make_secret

__all__ = ["ActorJob", "ActorRank"]

PLACE_S = 60.0  # for the cluster to find room, and for the actors to start


@dataclass(eq=False)
class ActorRank:
    """An actor, the rank that it is, and where it runs."""

    actor: Any
    bundle: int
    rank: int = 0
    node: str = ""
    address: str = ""
    pid: int = 0
    port: int = 0

    def __str__(self) -> str:
        return f"rank {self.rank} (pid {self.pid} on {self.address})"


class ActorJob:
    """The actors of a job, and the variables that make them ranks."""

    def __init__(self, ray: Any, group: Any, resources: dict[str, float], runtime_env: dict[str, Any]) -> None:
        self.ray, self.ranks = ray, list[ActorRank]()
        others = {name: amount for name, amount in resources.items() if name not in ("CPU", "GPU")}
        self._actor_class = ray.remote(RankActor)
        self._options = {
            "num_cpus": resources.get("CPU", 0),
            "num_gpus": resources.get("GPU", 0),
            "resources": others,
            "runtime_env": runtime_env or None,
            "max_concurrency": 2,  # one thread runs the rank, the other stops it
        }
        self._strategy = importlib.import_module("ray.util.scheduling_strategies").PlacementGroupSchedulingStrategy
        self._group = group
        # The secret is an argument of a call: a runtime_env would show it on Ray's dashboard and in its logs.
        self._secret = make_secret()
        self.sealed = network_is_sealed()

    def start(self, ranks: int, timeout_s: float) -> None:
        """Start the actors. Ranks of one node are neighbours."""
        found = self._place([self._make(bundle) for bundle in range(ranks)], timeout_s)
        first_seen = {actor.node: number for number, actor in reversed(list(enumerate(found)))}
        found.sort(key=lambda actor: first_seen[actor.node])
        for rank, actor in enumerate(found):
            actor.rank = rank
        self.ranks, self._master = found, found[0]

    def restart(self, lost: ActorRank) -> ActorRank:
        """An actor in the place of one that died; on another node, if its own is gone."""
        [actor] = self._place([self._make(lost.bundle)], PLACE_S)
        actor.rank = lost.rank
        self.ranks[lost.rank] = actor
        return actor

    def variables(self, actor: ActorRank, *, joins: bool = False) -> dict[str, str]:
        """The environment variables that a launcher sets for a rank."""
        local = [other for other in self.ranks if other.node == actor.node]
        return {
            "RANK": str(actor.rank),
            "WORLD_SIZE": str(len(self.ranks)),
            "LOCAL_RANK": str(local.index(actor)),
            "LOCAL_WORLD_SIZE": str(len(local)),
            "MASTER_ADDR": self._master.address,
            "MASTER_PORT": str(self._master.port),
            "CHOREO_SECRET": self._secret,
            "CHOREO_NETWORK": "sealed" if self.sealed else "plain",
        } | ({"CHOREO_JOIN": "1"} if joins else {})

    def kill(self) -> None:
        """End all actors."""
        for rank in self.ranks:
            self.ray.kill(rank.actor, no_restart=True)

    def _make(self, bundle: int) -> ActorRank:
        strategy = self._strategy(self._group, placement_group_bundle_index=bundle)
        return ActorRank(self._actor_class.options(scheduling_strategy=strategy, **self._options).remote(), bundle)

    def _place(self, actors: list[ActorRank], timeout_s: float) -> list[ActorRank]:
        """Wait until actors run, and ask them where."""
        exceptions = importlib.import_module("ray.exceptions")
        try:
            places = self.ray.get([actor.actor.place.remote() for actor in actors], timeout=timeout_s)
        except exceptions.RayError as error:
            for actor in actors:
                self.ray.kill(actor.actor, no_restart=True)
            reason = str(error).strip().splitlines() or [type(error).__name__]
            raise RendezvousError(f"{len(actors)} actors did not start on the Ray cluster: {reason[0]}") from None
        for actor, place in zip(actors, places, strict=True):
            actor.node, actor.address, actor.pid, actor.port = place
        return actors
