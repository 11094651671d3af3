"""Where calls cannot be kept: the twin has no short way, and every call takes the long one."""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["Quick"]


class Quick:
    """What `_quick.h` has, with nothing in it."""

    def __init__(self, endpoint: object, array: type, failure: Callable[..., Exception], /) -> None:
        self.open = 0

    def reduced(self, x: object, op: object, timeout_s: float, /) -> bool:
        """Reduce an array in place, if such a call was kept."""
        return False

    def sent(self, x: object, root: object, timeout_s: float, /) -> bool:
        """Send the root's array or receive it, if such a call was kept."""
        return False

    def gathered(self, x: object, out: object, key: None, timeout_s: float, /) -> bool:
        """Gather everybody's array, if such a call was kept."""
        return False

    def scattered(self, x: object, out: object, op: object, timeout_s: float, /) -> bool:
        """Reduce to everybody's part, if such a call was kept."""
        return False

    def barrier(self, timeout_s: float, /) -> bool:
        """Run a call without arrays, if it was kept."""
        return False

    def keep(self, *_: object) -> bool:
        """Keep a call: how it is called, its operation or root, its arrays, its plan, and what the executor needs."""
        return False

    def clear(self) -> None:
        """Forget all calls."""

    def close(self) -> None:
        """Forget all calls, and keep no more."""
