"""MSCCL++'s execution plans: `file` parses one, `read` turns it into a schedule, `write` turns a schedule into one."""
