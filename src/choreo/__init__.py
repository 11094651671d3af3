"""Choreo: collective communication written once, as a schedule, and then proved, priced, simulated, run and shown.

A training job is treated the same way: a model and a plan give a workload, which is planned.

The public names are listed in `__init__.pyi`. Each is loaded when it is first used, so `import choreo` costs next to
nothing.
"""

import sys

from choreo._lazy import lazy_package, public_names

__version__ = "0.1.0"

_HOMES = public_names()
__all__ = list(_HOMES) + ["__version__"]  # noqa: RUF005 - ruff knows this form
sys.modules[__name__].__class__ = lazy_package(_HOMES)
