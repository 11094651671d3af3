"""The time a call takes once NCCL has chosen, algorithm by algorithm."""
