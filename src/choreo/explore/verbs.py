"""What the page can ask for."""

from __future__ import annotations

__all__ = ["VERBS"]

# Each verb of the page: its module and function, and the class of its fields.
VERBS = {
    "moment": ("moment", "moment", "Fields"),
    "chunks": ("chunks", "chunks", "Fields"),
    "words": ("words", "words", "Words"),
}
