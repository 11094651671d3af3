"""Failures of a call, as the executor reports them."""

from __future__ import annotations

# In the order of `core/layout.h`.
TIMED_OUT, PEER_DIED, PEER_GAVE_UP, MISMATCHED, BROKEN, INTERRUPTED = 1, 2, 3, 4, 5, 6
# What a rank's segment holds in place of one of these after it has closed its communicator.
LEFT = 7
# Sealed bytes do not open: somebody on the network has changed, repeated, dropped or moved some.
ALTERED = 8
