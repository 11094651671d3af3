"""Checkpoints of a training run: complete or absent, and readable under any plan."""
