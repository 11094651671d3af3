"""Where results are kept: the SQLite file, its tables and versions, and who wrote to it from where."""

from choreo.record.store.store import Store, connect_read_only

__all__ = ["Store", "connect_read_only"]
