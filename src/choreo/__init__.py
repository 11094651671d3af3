"""Choreo: write a collective algorithm once, as a schedule; then prove, price, simulate, run and draw it.

    >>> import choreo
    >>> ring = choreo.build("all_reduce", "ring", ranks=8)
    >>> choreo.prove(ring)
    <Proof exactly: all_reduce by ring over 8 ranks, 14 steps, 112 transfers>
    >>> choreo.simulate(ring, "ring(8, 50GB/s, 1us)", "1MiB")
    <Simulation all_reduce of 1 MiB by ring over 8 ranks on ring(8, 50GB/s, 1us): 50.7 us>

`choreo.show` prints or draws any of these. `plan`, `evaluate` and `train` do the same for training jobs.

The public names are listed in `__init__.pyi`. Each is loaded when it is first used, so `import choreo` takes hardly any
time.
"""

import sys

from choreo._lazy import lazy_package, public_names

__version__ = "0.1.0"

_HOMES = public_names()
__all__ = list(_HOMES) + ["__version__"]  # noqa: RUF005 - ruff knows this form
sys.modules[__name__].__class__ = lazy_package(_HOMES)
