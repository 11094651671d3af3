"""A server that forks the processes of tests, so that a test's threads and files do not get into them.

It has everything imported that they need. A process has one such server for all that it starts, so the list is here.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from multiprocessing import forkserver
from pathlib import Path

__all__ = ["CONTEXT", "start_server"]

CONTEXT = multiprocessing.get_context("forkserver")


def start_server() -> None:
    """Have the server run, and find what is in this folder; it looks only where PYTHONPATH says."""
    # The functions that processes run are in tests; whoever runs one imports its file, and pytest with it.
    tests = [name for name in sys.modules if name.startswith("tests.run.")]
    CONTEXT.set_forkserver_preload([*tests, "tests.helpers.ranks.fault_server"])
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parents[3]), *filter(None, sys.path)])
    try:
        forkserver.ensure_running()
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before
