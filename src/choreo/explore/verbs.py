"""The requests of the page, each with the function that answers it."""

from __future__ import annotations

__all__ = ["PAGES", "VERBS"]

# Each verb of the page: its module and function, and the class of its fields.
VERBS = {
    "moment": ("moment", "moment", "Fields"),
    "chunks": ("chunks", "chunks", "Fields"),
    "words": ("words", "words", "Words"),
    "winners": ("winners", "winners", "Map"),
    "document": ("write", "document", "Fields"),
    "measure": ("measure", "measure", "Measure"),
    "timeline": ("measure", "timeline", "Timeline"),
    "plans": ("plans", "plans", "Plans"),
    "one_plan": ("plans", "one_plan", "One"),
    "plan_page": ("plans", "plan_page", "One"),
    "store_columns": ("store", "store_columns", "Nothing"),
    "ask_store": ("store", "ask_store", "Ask"),
}

# Verbs that answer with a separate page; the server stores it and returns its address.
PAGES = {"plan_page"}
