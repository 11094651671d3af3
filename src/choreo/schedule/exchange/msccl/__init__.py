"""MSCCL's XML: `file` parses it, `read` turns it into a schedule, `lower` and `write` turn a schedule into it."""
