"""Models in plain torch, each built as the part of it that one rank has."""
