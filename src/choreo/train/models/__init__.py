"""Models in plain torch, each built as one rank's part of it."""
