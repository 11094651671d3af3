"""Upper bounds on everything that another process can request."""

from __future__ import annotations

__all__ = ["MAX_FRAME_BYTES", "MAX_RANKS", "MAX_REASON", "MAX_TIMEOUT_S", "MAX_UNAUTHENTICATED"]

MAX_RANKS = 65_535
MAX_FRAME_BYTES = 16 * 2**20  # of a payload between authenticated ranks
MAX_TIMEOUT_S = 1e6  # eleven days; the system's calls take no more
MAX_REASON = 4000  # characters of a reason that is sent to all ranks
MAX_UNAUTHENTICATED = 128  # connections that have not yet proved that they hold the secret
