"""Pipeline schedules: the order of passes at each stage, and how long they take."""

from choreo.plan.pipeline.simulate import SCHEDULES, Pipeline, Task, in_flight, orders, simulate_pipeline

__all__ = ["SCHEDULES", "Pipeline", "Task", "in_flight", "orders", "simulate_pipeline"]
