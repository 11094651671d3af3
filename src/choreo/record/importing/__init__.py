"""Other programs' measurements: the formats that are read, and how they are kept beside predictions."""

from choreo.record.importing.importing import Imported, import_nccl_tests

__all__ = ["Imported", "import_nccl_tests"]
