"""The store of results: the SQLite file, its tables and versions, and the provenance of each result."""

from choreo.record.store.store import Store, connect_read_only

__all__ = ["Store", "connect_read_only"]
