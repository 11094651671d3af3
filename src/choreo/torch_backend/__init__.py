"""The backend "choreo" of torch.distributed: `torch.distributed.init_process_group("choreo")`.

`import torch` finds it through the entry point `torch.backends` and calls `autoload`. Nothing else of this folder is
imported before the first process group is made.
"""

from __future__ import annotations

import functools
import sys
from datetime import timedelta
from typing import Any

__all__ = ["autoload", "register"]

NAME = "choreo"
DEVICES = ["cpu", "cuda"]


def autoload() -> None:
    """Register the backend. An exception here would break `import torch`, so there is none."""
    try:
        register()
    except Exception as error:
        import warnings

        warnings.warn(f"torch.distributed has no backend {NAME!r}: {error}", RuntimeWarning, stacklevel=2)


def register() -> None:
    """Let torch.distributed know the backend; a program needs it only with TORCH_DEVICE_BACKEND_AUTOLOAD=0.

    >>> import choreo.torch_backend
    >>> choreo.torch_backend.register()
    >>> import torch.distributed
    >>> torch.distributed.is_backend_available("choreo")
    True
    """
    import torch.distributed as dist

    if dist.is_available() and not dist.is_backend_available(NAME):
        dist.Backend.register_backend(NAME, _create, extended_api=True, devices=DEVICES)
        _allow_monitored_barrier(dist)
        _read_mpirun()


def _create(options: Any, backend_options: Any) -> Any:
    """Create a process group's backend. torch calls this for each process group."""
    from choreo.torch_backend.create import create_process_group

    return create_process_group(options, backend_options)


def _read_mpirun() -> None:
    """Let `env://`, which is the default, find ranks that mpirun has started."""
    handlers: dict[str, Any] = sys.modules["torch.distributed.rendezvous"]._rendezvous_handlers
    original = handlers["env"]

    @functools.wraps(original)
    def env_rendezvous(*arguments: Any, **options: Any) -> Any:
        from choreo.torch_backend.mpirun import set_torch_variables

        set_torch_variables()
        return original(*arguments, **options)

    handlers["env"] = env_rendezvous


def _allow_monitored_barrier(dist: Any) -> None:
    """Let `torch.distributed.monitored_barrier` take Choreo's groups: it refuses all backends but Gloo by name."""
    original = dist.monitored_barrier

    @functools.wraps(original)
    def monitored_barrier(group: Any = None, timeout: Any = None, wait_all_ranks: bool = False) -> Any:
        member = not dist.distributed_c10d._rank_not_in_group(group)
        if not member or f"cpu:{NAME}" not in dist.get_backend_config(group).split(","):
            return original(group, timeout, wait_all_ranks)
        seconds = timedelta(seconds=timeout) if isinstance(timeout, int | float) else timeout
        return (group or dist.group.WORLD).monitored_barrier(seconds, wait_all_ranks=wait_all_ranks)

    dist.monitored_barrier = dist.distributed_c10d.monitored_barrier = monitored_barrier
