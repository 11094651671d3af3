"""Failure detection and consensus: the ranks of a communicator agree on which of them failed."""
