"""MSCCL's XML: `file` is what may stand in one, `read` what it does; `lower` and `write` make one of a schedule."""
