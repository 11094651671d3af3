"""Pipeline schedules: the order of passes at each stage, and how long they take."""

from choreo.plan.pipeline.simulate import SCHEDULES, Pipeline, PipelinePass, in_flight, orders, simulate_pipeline

__all__ = ["SCHEDULES", "Pipeline", "PipelinePass", "in_flight", "orders", "simulate_pipeline"]
