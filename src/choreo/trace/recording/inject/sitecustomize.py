"""Loaded by the Python of a program that `choreo trace record` runs; counts steps once torch is imported."""

import importlib.abc
import importlib.machinery
import os
import sys
from pathlib import Path


class _AfterTorch(importlib.abc.MetaPathFinder):
    """Lets torch.optim be imported as usual, and then hooks its optimizers."""

    def find_spec(self, fullname, path=None, target=None):  # type: ignore[no-untyped-def]
        if fullname != "torch.optim":
            return None
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is None or spec.loader is None:
            return spec
        load = spec.loader.exec_module

        def load_and_hook(module):  # type: ignore[no-untyped-def]
            load(module)
            from choreo.trace.recording.profile import record_step

            record_step(Path(os.environ["CHOREO_TRACE_FOLDER"]), int(os.environ["CHOREO_TRACE_STEP"]))

        spec.loader.exec_module = load_and_hook  # type: ignore[method-assign]
        return spec


if "CHOREO_TRACE_FOLDER" in os.environ:
    sys.meta_path.insert(0, _AfterTorch())
