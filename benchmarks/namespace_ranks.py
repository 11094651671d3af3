"""Ranks in network namespaces, for benchmarks of what crosses a network: told line by line what to do."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
from collections.abc import Mapping, Sequence

__all__ = ["NamespaceRanks", "delete_namespaces", "ip"]


def ip(*arguments: str) -> None:
    """Run iproute2's `ip`."""
    subprocess.run(["ip", *arguments], check=True)


def delete_namespaces(names: Sequence[str]) -> None:
    """Delete namespaces with all that is in them; those that were never made are passed over."""
    for name in names:
        subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)


class NamespaceRanks:
    """The ranks of one job, which do what they are told and wait in between.

    `names` has the namespace of each rank, and `address` is where rank 0 meets the others.
    """

    def __init__(
        self, names: Sequence[str], command: Sequence[str], address: str, port: int, variables: Mapping[str, str]
    ) -> None:
        common = {
            "WORLD_SIZE": str(len(names)),
            "MASTER_ADDR": address,
            "MASTER_PORT": str(port),
            "CHOREO_SECRET": secrets.token_hex(16),
            "OMP_NUM_THREADS": "1",
        }
        self.ranks = [
            subprocess.Popen(
                ["ip", "netns", "exec", name, *command],
                env={**os.environ, **common, **variables, "RANK": str(rank)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for rank, name in enumerate(names)
        ]

    def ask(self, *what: object) -> list[float]:
        """What each rank answers, a number each."""
        for one in self.ranks:
            assert one.stdin is not None
            one.stdin.write(json.dumps(what) + "\n")
            one.stdin.flush()
        answers = [one.stdout.readline() if one.stdout else "" for one in self.ranks]
        if not all(answers):
            raise SystemExit(f"rank {answers.index('')} died")
        return [float(answer) for answer in answers]

    def stop(self) -> None:
        """End the processes."""
        for one in self.ranks:
            if one.stdin is not None:
                one.stdin.close()
        for one in self.ranks:
            try:
                one.wait(10)
            except subprocess.TimeoutExpired:
                one.kill()
