"""Read and write other tools' traces; each is an execution graph, which `simulate` runs."""

from choreo.trace.trace import Trace, read_trace, write_trace

__all__ = ["Trace", "read_trace", "write_trace"]
