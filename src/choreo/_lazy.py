"""Public names of a package, loaded when they are first used."""

from __future__ import annotations

import importlib
import re
import sys
import types

__all__ = ["lazy_package", "public_names"]

# One line of the stub: from choreo.prove import prove as prove
EXPORT = re.compile(r"^from (choreo\.[\w.]+) import (\w+) as \2$", re.MULTILINE)


def public_names() -> dict[str, str]:
    """Every public name and the module that has it, read from the stub beside this file."""
    path = __file__.removesuffix("_lazy.py") + "__init__.pyi"
    with open(path, encoding="utf-8") as stub:  # noqa: PTH123 - pathlib would take longer to import than all else here
        return {name: module for module, name in EXPORT.findall(stub.read())}


def lazy_package(homes: dict[str, str]) -> type[types.ModuleType]:
    """A class of module whose `homes` are imported on demand.

    A verb's folder and its function have one name, and `choreo.prove` is the function. Importing `choreo.prove` (the
    folder) would otherwise put the module where the function belongs. The function has the folder's names as its
    attributes, so that `import choreo.simulate.nccl as nccl` finds the module.
    """

    class LazyPackage(types.ModuleType):
        def __getattr__(self, name: str) -> object:
            if name not in homes:
                raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
            value = getattr(importlib.import_module(homes[name]), name)
            folder = sys.modules.get(f"{self.__name__}.{name}")
            if isinstance(value, types.FunctionType) and folder is not None:
                value.__dict__ = vars(folder)
            self.__dict__[name] = value
            return value

        def __setattr__(self, name: str, value: object) -> None:
            if not (name in homes and isinstance(value, types.ModuleType)):
                super().__setattr__(name, value)

        def __reduce__(self) -> tuple[object, ...]:
            # A function that uses `choreo` travels to other processes by cloudpickle, which knows plain modules only.
            return importlib.import_module, (self.__name__,)

        def __dir__(self) -> list[str]:
            return sorted({*homes} | ({"__version__"} & vars(self).keys()))

    return LazyPackage
