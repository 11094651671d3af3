"""How much there may be of anything that somebody else can ask for."""

from __future__ import annotations

__all__ = ["MAX_FRAME_BYTES", "MAX_PATIENCE_S", "MAX_RANKS", "MAX_STORY", "MAX_STRANGERS"]

MAX_RANKS = 65_535
MAX_FRAME_BYTES = 16 * 2**20  # of a payload between ranks that know each other
MAX_PATIENCE_S = 1e6  # more than eleven days is for ever, and more than the system's calls can be told
MAX_STORY = 4000  # characters of a reason that is told to all
MAX_STRANGERS = 128  # who have not yet proved that they hold the secret
