"""Ranks as actors on a Ray cluster."""

from choreo.run.launch.on_ray.on_ray import on_ray

__all__ = ["on_ray"]
