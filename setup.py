"""What pyproject.toml cannot say: the compiled loops, which may be missing where there is no compiler."""

from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension(
            "choreo.simulate._core",
            ["src/choreo/simulate/_core.c"],
            extra_compile_args=["-O3"],
            optional=True,
        )
    ]
)
