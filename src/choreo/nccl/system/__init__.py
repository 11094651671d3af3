"""A cluster as NCCL sees it: GPUs in NVLink domains, joined by a network."""
