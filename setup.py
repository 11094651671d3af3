"""What pyproject.toml cannot say: the compiled loops, which may be missing where there is no compiler."""

from pathlib import Path

import numpy as np
from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension(
            "choreo.simulate.flows._core",
            ["src/choreo/simulate/flows/core/module.c"],
            depends=sorted(map(str, Path("src/choreo/simulate/flows/core").glob("*.h"))),
            extra_compile_args=["-O3"],
            optional=True,
        ),
        Extension(
            "choreo.simulate.packets._core",
            ["src/choreo/simulate/packets/core/module.c"],
            depends=sorted(map(str, Path("src/choreo/simulate").glob("*/core/*.h"))),
            # Rates must have the same bits as in Python.
            extra_compile_args=["-O3", "-ffp-contract=off"],
            optional=True,
        ),
        Extension(
            "choreo.run.execute._core",
            ["src/choreo/run/execute/core/module.c"],
            depends=sorted(map(str, Path("src/choreo/run/execute/core").rglob("*.h"))),
            include_dirs=[np.get_include()],
            # Loops that copy must stay loops: some C libraries' memcpy is slow at some distances.
            # A sum must have the same bits on machines that can multiply and add at once and on those that cannot.
            extra_compile_args=["-O3", "-fno-tree-loop-distribute-patterns", "-ffp-contract=off"],
            optional=True,
        ),
        Extension(
            "choreo.run.messages._core",
            ["src/choreo/run/messages/core/words.c"],
            depends=sorted(map(str, Path("src/choreo/run").glob("*/core/*.h"))),
            extra_compile_args=["-O3", "-fno-tree-loop-distribute-patterns"],
            optional=True,
        ),
        Extension(
            "choreo.synthesize._core",
            ["src/choreo/synthesize/core/module.c"],
            depends=sorted(map(str, Path("src/choreo/synthesize/core").rglob("*.h"))),
            # Times must have the same bits as in Python.
            extra_compile_args=["-O3", "-ffp-contract=off"],
            optional=True,
        ),
        Extension(
            "choreo.show.simulation._bins",
            ["src/choreo/show/simulation/core/bins.c"],
            extra_compile_args=["-O3"],
            optional=True,
        ),
    ]
)
