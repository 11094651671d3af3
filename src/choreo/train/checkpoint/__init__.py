"""Checkpoints of a training run: complete or not there, and readable under any plan."""
