"""A process that computes cases: `python -m choreo.sweep.workers.worker SOCKET ...`, one worker for each socket.

It imports once and forks the others, which share that memory. A worker ends when the other end of its socket closes.
"""

from __future__ import annotations

import importlib
import os
import socket
import sys

from choreo.sweep.compute import MAKERS
from choreo.sweep.tasks import Worker
from choreo.sweep.workers.wire import receive, send

__all__ = ["main", "work"]

# What a case may need; imported before the workers are forked.
MODULES = {
    "price": ("choreo.algorithms", "choreo.price", "choreo.prove"),
    "simulate": ("choreo.algorithms", "choreo.prove", "choreo.simulate", "choreo.bound"),
    "bound": ("choreo.bound",),
    "nccl": ("choreo.simulate",),
    "plan": ("choreo.plan",),
}


def work(connection: socket.socket) -> None:
    """Compute what is sent, case by case, until the other end is closed."""
    worker = Worker(MAKERS)
    send(connection, None)  # ready
    while True:
        for number, case in receive(connection):  # type: ignore[attr-defined]
            send(connection, worker.done(number, case))


def main() -> None:
    """Fork a worker for each socket but the first, and serve the first."""
    verb, *numbers = sys.argv[1:]
    for module in MODULES.get(verb, ()):
        importlib.import_module(module)
    descriptors = [int(number) for number in numbers]
    own = descriptors[0]
    for other in descriptors[1:]:
        if os.fork() == 0:
            own = other
            break
    for other in descriptors:
        if other != own:
            os.close(other)
    try:
        work(socket.socket(fileno=own))
    except (EOFError, ConnectionError):
        os._exit(0)


if __name__ == "__main__":
    main()
