"""A workload's run as a timeline, a picture and a page."""

from choreo.show.workload.trace import write_workload_trace

__all__ = ["write_workload_trace"]
