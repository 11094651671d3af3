"""The executor in Python: the oracle for the compiled one, and the fallback where there is no compiler.

It does the same as `core`, slowly and readably, in the same segments and on the same sockets. Ranks of either kind can
talk to each other. The compiled executor imports nothing from here.
"""

from choreo.run.execute.twin.call_cache import CallCache
from choreo.run.execute.twin.endpoint import Endpoint
from choreo.run.execute.twin.program import Program
from choreo.run.execute.twin.progress import ProgressQueue, QueuedCall
from choreo.run.execute.twin.segment import prepare_segment

__all__ = ["CallCache", "Endpoint", "Program", "ProgressQueue", "QueuedCall", "prepare_segment"]
