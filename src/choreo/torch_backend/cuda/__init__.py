"""Calls on CUDA tensors, with several ranks on one GPU if need be."""
