"""The parameter server that outgrows its adapter: every device sends it all gradients, every step."""

from __future__ import annotations

from dataclasses import dataclass

from choreo.errors import UsageError

__all__ = ["ParameterServer", "parameter_server"]


@dataclass(frozen=True, slots=True)
class ParameterServer:
    """What one server must take in each second, and what its adapter carries."""

    gradient_bytes: float
    devices: int
    steps_per_s: float
    nic_bytes_per_s: float

    @property
    def needed_bytes_per_s(self) -> float:
        """Gradients of all devices, so many times a second."""
        return self.gradient_bytes * self.devices * self.steps_per_s

    @property
    def holds(self) -> bool:
        """Whether the adapter carries it."""
        return self.needed_bytes_per_s <= self.nic_bytes_per_s

    @property
    def most_steps_per_s(self) -> float:
        """That the adapter allows."""
        return self.nic_bytes_per_s / (self.gradient_bytes * self.devices)

    @property
    def most_devices(self) -> int:
        """That it serves at that pace."""
        return int(self.nic_bytes_per_s // (self.gradient_bytes * self.steps_per_s))

    @property
    def ring_bytes_per_s(self) -> float:
        """What a ring all_reduce sends through each device instead."""
        return 2 * (self.devices - 1) / self.devices * self.gradient_bytes * self.steps_per_s


def parameter_server(
    gradient_bytes: float, devices: int, steps_per_s: float, nic_bytes_per_s: float
) -> ParameterServer:
    """One parameter server for so many devices."""
    for name, value in (("gradients", gradient_bytes), ("gpus", devices), ("steps a second", steps_per_s)):
        if not value > 0:
            raise UsageError(f"{name} must be more than zero, not {value:g}")
    if not nic_bytes_per_s > 0:
        raise UsageError(f"an adapter's bandwidth must be more than zero, not {nic_bytes_per_s:g}; write 50GB/s")
    return ParameterServer(gradient_bytes, devices, steps_per_s, nic_bytes_per_s)
