"""Other programs' measurements: the formats that can be read, and how they are stored beside predictions."""

from choreo.record.importing.importing import Imported, import_nccl_tests

__all__ = ["Imported", "import_nccl_tests"]
