"""Choose the executor of programs: the compiled one, or the Python twin without a compiler."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

from choreo.compiled import import_compiled, prefers_python, warn_missing
from choreo.errors import UsageError
from choreo.run.execute import layout
from choreo.run.transport.records import libcrypto_path

if TYPE_CHECKING:
    from choreo.run.execute import twin

__all__ = ["Executor", "cached_method", "executor", "is_compiled", "prepare_sealing", "warn_if_slow"]


Method = TypeVar("Method", bound=Callable[..., Any])


class Executor(Protocol):
    """The interface of both executors; `twin` documents it."""

    @property
    def Endpoint(self) -> type[twin.Endpoint]:  # noqa: N802 - a class
        """One rank's end of a communicator."""
        ...

    @property
    def Program(self) -> type[twin.Program]:  # noqa: N802
        """A program, checked once."""
        ...

    @property
    def CallCache(self) -> type[twin.CallCache]:  # noqa: N802
        """Calls that were made before."""
        ...

    @property
    def ProgressQueue(self) -> type[twin.ProgressQueue]:  # noqa: N802
        """Asynchronous calls, run in order."""
        ...

    @property
    def prepare_segment(self) -> Callable[[object, int, int, int], None]:
        """Write the header of a rank's own segment."""
        ...


def executor(compiled: bool | None = None) -> Executor:
    """The compiled executor if there is one, unless CHOREO_PURE_PYTHON=1 asks for the other; or the one asked for."""
    if compiled is None:
        compiled = is_compiled()
    if compiled:
        return _compiled()
    from choreo.run.execute import twin

    return cast("Executor", twin)


def cached_method(collective: str, key: object = None) -> Callable[[Method], Method]:
    """A method of a communicator that the compiled executor calls by itself, where such a call was made before.

    `key` is the operation or root of a call that names none.
    """

    def wrap(method: Method) -> Method:
        kind = getattr(import_compiled("choreo.run.execute._core"), "CachedMethod", None)
        return method if kind is None else cast("Method", kind(method, collective, key))

    return wrap


def prepare_sealing(compiled: bool | None = None) -> None:
    """Find what seals streams between hosts; UsageError if it is not there."""
    path = libcrypto_path()
    load = getattr(executor(compiled), "load_libcrypto", None)
    if load is not None:  # Python finds it by itself
        load(path)


def is_compiled() -> bool:
    """Whether the compiled executor is used."""
    return not prefers_python() and _find() is not None


def warn_if_slow() -> None:
    """Warn that collectives run in Python because there is no compiled executor."""
    if _find() is None:
        warn_missing("executor", "collectives run in Python, about 1000 times slower")


def _find() -> Executor | None:
    core = import_compiled("choreo.run.execute._core")
    if core is not None and not _has_this_layout(core):
        raise UsageError("the compiled executor is of another version of Choreo; reinstall choreo")
    return cast("Executor | None", core)


@cache
def _has_this_layout(core: ModuleType) -> bool:
    classes = ("CallCache", "Endpoint", "ProgressQueue", "Program")
    same = (getattr(core, "LAYOUT", None), getattr(core, "CONSTANTS", None)) == (layout.fields(), layout.constants())
    return same and all(hasattr(core, name) for name in classes)


def _compiled() -> Executor:
    found = _find()
    if found is None:
        raise UsageError("the compiled executor is missing; install a C compiler and reinstall choreo")
    return found
