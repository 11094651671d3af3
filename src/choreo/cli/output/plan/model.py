"""A model by itself: its parameters, its bytes, its FLOPs."""

from __future__ import annotations

from choreo.cli.options.plan import WIDTHS, count_of, workload_of
from choreo.cli.output.text.table import echo_json, echo_line
from choreo.errors import UsageError
from choreo.units import format_bytes, format_count

__all__ = ["print_model"]


def print_model(options: dict[str, object], as_json: bool) -> None:
    """A model by itself: its parameters, a layer's bytes, FLOPs a token."""
    from choreo.workload import Model

    precision = str(options["precision"] or "bf16")
    if precision not in WIDTHS:
        raise UsageError(f"precision must be one of {', '.join(WIDTHS)}, not {precision!r}")
    width = WIDTHS[precision]
    if options["parameters"] is not None:
        found = _by_count(options, width)
    else:
        work = workload_of(options)
        found = {"model": work.name, "parameters": float(work.parameters), "bytes": work.parameters * width}
        if isinstance(work, Model):
            seq = int(str(options["seq"] or work.max_seq or 2048))
            layer = max(work.parameters_per_layer(number) for number in {0, work.layers - 1})
            found |= {
                "layers": work.layers,
                "parameters_per_layer": float(layer),
                "layer_bytes": layer * width,
                "active_parameters": float(work.active_parameters),
                "seq": seq,
                "forward_flops_per_token": work.flops_per_token(seq),
            }
    if as_json:
        echo_json(found | {"precision": precision})
        return
    per = f"{width:g} {'byte' if width == 1 else 'bytes'}"
    whole = format_bytes(float(str(found["bytes"])), binary=False)
    echo_line(f"{found['model']}: {format_count(float(str(found['parameters'])))} parameters, {whole} at {per}")
    if "layers" in found:
        layer_bytes = format_bytes(float(str(found["layer_bytes"])), binary=False)
        each = format_count(float(str(found["parameters_per_layer"])))
        echo_line(f"{found['layers']} layers of {each} parameters: a layer needs {layer_bytes} at {per}")
    if "forward_flops_per_token" in found:
        flops = format_count(float(str(found["forward_flops_per_token"]))).replace("B", "G")
        echo_line(f"a token takes {flops}FLOP forward in a sequence of {found['seq']} tokens, and twice that backward")


def _by_count(options: dict[str, object], width: float) -> dict[str, object]:
    parameters = count_of(str(options["parameters"]), "parameters")
    if not isinstance(options["layers"], int) or options["layers"] < 1:
        raise UsageError("--parameters goes with --layers N, at least 1: a model known by its parameters and layers")
    each = parameters / options["layers"]
    return {
        "model": f"a model of {options['layers']} layers",
        "parameters": parameters,
        "bytes": parameters * width,
        "layers": options["layers"],
        "parameters_per_layer": each,
        "layer_bytes": each * width,
    }
