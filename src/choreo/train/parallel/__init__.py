"""Parallelism: a model is cut by tensors, sequences, experts, layers and batches, one file each."""
