"""MSCCL++'s execution plans: `file` is what may stand in one, `read` what it does, `write` makes one of a schedule."""
