"""A parameter server: every device sends it all gradients in every step, through one network adapter."""

from __future__ import annotations

from dataclasses import dataclass

from choreo.errors import UsageError

__all__ = ["ParameterServer", "parameter_server"]


@dataclass(frozen=True, slots=True)
class ParameterServer:
    """How much one server receives each second, and the bandwidth of its adapter."""

    gradient_bytes: float
    devices: int
    steps_per_s: float
    nic_bytes_per_s: float

    @property
    def needed_bytes_per_s(self) -> float:
        """The gradients of all devices, every second."""
        return self.gradient_bytes * self.devices * self.steps_per_s

    @property
    def holds(self) -> bool:
        """Whether the adapter has enough bandwidth."""
        return self.needed_bytes_per_s <= self.nic_bytes_per_s

    @property
    def most_steps_per_s(self) -> float:
        """The most steps a second that the adapter can serve."""
        return self.nic_bytes_per_s / (self.gradient_bytes * self.devices)

    @property
    def most_devices(self) -> int:
        """The most devices that the adapter can serve at that pace."""
        return int(self.nic_bytes_per_s // (self.gradient_bytes * self.steps_per_s))

    @property
    def ring_bytes_per_s(self) -> float:
        """What a ring all_reduce would send through each device."""
        return 2 * (self.devices - 1) / self.devices * self.gradient_bytes * self.steps_per_s


def parameter_server(
    gradient_bytes: float, devices: int, steps_per_s: float, nic_bytes_per_s: float
) -> ParameterServer:
    """One parameter server for a number of devices.

    >>> found = parameter_server(97.5e6, devices=256, steps_per_s=3, nic_bytes_per_s=50e9)
    >>> found.needed_bytes_per_s, found.holds
    (74880000000.0, False)
    """
    for name, value in (("gradients", gradient_bytes), ("gpus", devices), ("steps a second", steps_per_s)):
        if not value > 0:
            raise UsageError(f"{name} must be more than zero, not {value:g}")
    if not nic_bytes_per_s > 0:
        raise UsageError(f"an adapter's bandwidth must be more than zero, not {nic_bytes_per_s:g}; write 50GB/s")
    return ParameterServer(gradient_bytes, devices, steps_per_s, nic_bytes_per_s)
