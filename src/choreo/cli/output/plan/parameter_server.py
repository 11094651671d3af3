"""Print the bandwidth that one parameter server needs."""

from __future__ import annotations

from choreo.cli.options.plan import WIDTHS, workload_of
from choreo.cli.output.text.table import echo_json, echo_line
from choreo.errors import UsageError
from choreo.units import counted, format_bandwidth, format_bytes

__all__ = ["print_parameter_server"]


def print_parameter_server(options: dict[str, object], as_json: bool) -> None:
    """What one parameter server must take in, against its adapter."""
    from choreo.plan.parameter_server import parameter_server

    for name, example in (("gpus", "--gpus 256"), ("steps_per_s", "--steps-per-s 3")):
        if options[name] is None:
            raise UsageError(f"--parameter-server needs --{name.replace('_', '-')}, as in {example}")
    if options["gradients"] is not None:
        if options["model"] is not None:
            raise UsageError(f"{options['model']} already says how large the gradients are; leave out --gradients")
        size = float(str(options["gradients"]))
    else:
        size = workload_of(options).parameters * WIDTHS.get(str(options["precision"] or "fp32"), 4)
    found = parameter_server(
        size, int(str(options["gpus"])), float(str(options["steps_per_s"])), float(str(options["parameter_server"]))
    )
    if as_json:
        echo_json(
            {
                "gradient_bytes": found.gradient_bytes,
                "gpus": found.devices,
                "steps_per_s": found.steps_per_s,
                "nic_bytes_per_s": found.nic_bytes_per_s,
                "needed_bytes_per_s": found.needed_bytes_per_s,
                "holds": found.holds,
                "most_steps_per_s": found.most_steps_per_s,
                "ring_bytes_per_s": found.ring_bytes_per_s,
            }
        )
        return
    nic = format_bandwidth(found.nic_bytes_per_s)
    size_words = format_bytes(found.gradient_bytes, binary=False)
    echo_line(
        f"{counted(found.devices, 'GPU')} that each send {size_words} of gradients "
        f"{found.steps_per_s:g} times per second: the server takes in {format_bandwidth(found.needed_bytes_per_s)}"
    )
    if found.holds:
        echo_line(f"its adapter carries {nic}: enough, up to {found.most_steps_per_s:.3g} steps per second")
    else:
        echo_line(
            f"its adapter carries {nic}: not enough; {found.most_steps_per_s:.3g} steps per second are possible, or "
            f"{counted(found.most_devices, 'GPU')} at that pace"
        )
    echo_line(f"a ring all_reduce sends {format_bandwidth(found.ring_bytes_per_s)} through each GPU instead")
