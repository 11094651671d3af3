"""`choreo plan`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from choreo.cli.command import Option, grouped, refuse_beside
from choreo.cli.options.common import NewFile, json_option, parsed
from choreo.cli.options.packets import packet_options, packets_of
from choreo.cli.options.plan import NUMBERS, planned, run_of
from choreo.cli.output.text.files import afterwards, check_stdout, on_stdout, write_page
from choreo.cli.output.text.table import echo_json
from choreo.cli.progress import waiting
from choreo.cli.recording import Recorded
from choreo.errors import UsageError
from choreo.units import parse_bandwidth, parse_size

if TYPE_CHECKING:
    from choreo.plan import Planning
    from choreo.plan.training_run import TrainingRun
    from choreo.simulate import Packets

SCHEDULES = ("gpipe", "1f1b", "interleaved", "zero-bubble", "dualpipe", "dualpipev")


def _counts(words: dict[str, str], help_text: str) -> list[Option]:
    """An option that takes a whole number for each name."""
    return [
        click.option(f"--{name.replace('_', '-')}", name, type=int, metavar="N", help=help_text.format(what))
        for name, what in words.items()
    ]


FIXING: tuple[Option, ...] = (
    *_counts(
        {
            "tp": "tensor parallel ranks",
            "pp": "pipeline stages",
            "dp": "data parallel replicas",
            "cp": "context parallel ranks",
            "ep": "expert parallel ranks",
            "etp": "ranks that cut one expert (as many as tp)",
            "micro_batch": "sequences per micro-batch",
            "interleave": "chunks of layers per stage",
        },
        "Number of {}.",
    ),
    click.option("--zero", type=int, metavar="STAGE", help="ZeRO stage, 0 to 3."),
    click.option("--shard-size", type=int, metavar="N", help="Replicas that ZeRO shards state over (all)."),
    click.option("--schedule", metavar="S", help=f"Pipeline schedule: {', '.join(SCHEDULES)}."),
    click.option("--split", metavar="S", help="Layers by pipeline stage: even, balanced, or listed, as in 7,8*14,7."),
    click.option("--recompute", metavar="R", help="Recomputation: none, selective or full."),
    click.option("--recompute-layers", type=int, metavar="N", help="With full recomputation: only N layers per stage."),
    click.option(
        "--recompute-modules",
        metavar="M,M",
        help="With selective recomputation: core_attn, mla_up_proj, layernorm, moe_act, shared_experts, mlp, moe.",
    ),
    click.option(
        "--sequence-parallel/--no-sequence-parallel",
        default=None,
        help="Sequence parallelism along with tensor parallelism.",
    ),
    click.option("--overlap/--no-overlap", default=None, help="Overlap data-parallel communication with compute."),
)
MODEL: tuple[Option, ...] = (
    *_counts(
        {
            "layers": "layers",
            "hidden": "features of the residual stream",
            "heads": "attention heads",
            "kv_heads": "key-value heads (as many as heads)",
            "ffn": "features inside the MLP (4 times --hidden)",
            "vocab": "entries of the vocabulary (50257)",
        },
        "Number of {}.",
    ),
    click.option("--gated/--not-gated", default=None, help="Whether its MLP is gated (SwiGLU)."),
    click.option("--parameters", metavar="N", help="The number of parameters, like 1.8T; with --layers."),
)


@click.command("plan", cls=Recorded)
@click.argument("model", required=False)
@grouped(
    "The job",
    click.option(
        "--cluster", metavar="T", help="A machine's name, like hgx-h100, blocks, or a file; see choreo list topologies."
    ),
    click.option(
        "--gpus", type=int, metavar="N", help="Number of GPUs (default: all, if T gives the number of nodes)."
    ),
    click.option("--global-batch", metavar="B", help="Sequences (samples) per step; 256/gpu is 256 for each GPU."),
    click.option("--seq", type=int, metavar="S", help="Tokens per sequence."),
    click.option("--precision", metavar="P", help="fp32, tf32, fp16, bf16 (default), fp8 or fp4."),
    click.option(
        "--software",
        metavar="NAME",
        help="Training framework (choreo list software): megatron-core by default, jax on TPUs, choreo-train on this "
        "machine.",
    ),
    click.option(
        "--device",
        metavar="NAME",
        help="Accelerator, if not the cluster's own (choreo list devices), or a FILE.toml. Without --cluster, in the "
        "machine that it is usually in.",
    ),
)
@grouped(
    "The run",
    click.option("--headroom", metavar="SHARE", help="Share of memory that a plan leaves free: 10% (default), or 0."),
    click.option("--fit", is_flag=True, help="Find the smallest number of GPUs with enough memory."),
    click.option("--tokens", metavar="N", help="Tokens to train on, like 15T: prints days and GPU-hours."),
    click.option(
        "--price-per-gpu-hour", type=float, metavar="X", help="Price of a GPU-hour: prints the cost of the run."
    ),
    click.option(
        "--mtbf",
        metavar="TIME",
        help="Mean time between failures of a GPU, like 50000h: prints goodput and when to checkpoint.",
    ),
)
@grouped("Parts of the plan to fix (the rest is searched)", *FIXING)
@grouped("A model by its numbers, instead of MODEL", *MODEL)
@grouped(
    "What to print",
    click.option("--best", type=int, default=5, show_default=True, metavar="N", help="How many plans to print."),
    click.option(
        "--vary", metavar="NAME=V,V,...", help="A row for each value: flops=0.5,1,2 gpus=8,16 global-batch=64,128."
    ),
    click.option(
        "--traffic", is_flag=True, help="Print what the best plan sends: each collective, its bytes, its link."
    ),
    click.option(
        "--simulate",
        is_flag=True,
        help="Simulate the best plan's step on the topology, with collectives sharing links, beside the estimate.",
    ),
    click.option("--html", type=NewFile(), metavar="FILE", help="Write a page: timeline, memory, what if."),
    click.option(
        "--trace",
        type=NewFile(stdout=False),
        metavar="FILE",
        help="Write a timeline of the best plan's step for Perfetto.",
    ),
    json_option,
)
@grouped(
    "Packets, with --simulate",
    *packet_options(),
    click.option("--routing", type=click.Choice(["ecmp", "spray"]), help="How packets use equally short paths."),
)
@grouped(
    "Other questions",
    click.option(
        "--parameter-server",
        callback=parsed(parse_bandwidth),
        metavar="BANDWIDTH",
        help="Print the bandwidth that one parameter server needs, and whether this one suffices.",
    ),
    click.option("--steps-per-s", type=float, metavar="X", help="With --parameter-server: steps per second."),
    click.option(
        "--gradients",
        callback=parsed(parse_size),
        metavar="SIZE",
        help="With --parameter-server: size of the gradients.",
    ),
    click.option(
        "--validate",
        is_flag=False,
        flag_value="",
        default=None,
        metavar="[FILE.csv]",
        help="Compare predictions with published training runs.",
    ),
    click.option("--leave-one-out", is_flag=True, help="With --validate: fit without each source in turn."),
)
def command(*, as_json: bool, **options: object) -> None:
    """Plan a training job: how to split MODEL over the GPUs of a cluster, how long a step takes, and what it needs.

    \b
    choreo plan llama3-70b --cluster hgx-h100 --gpus 512 \\
        --global-batch 1024 --seq 8192
    choreo plan llama3-70b --cluster hgx-h100 --gpus 512 \\
        --global-batch 1024 --seq 8192 --tp 8 --pp 4 --html plan.html
    choreo plan my-model/config.json --cluster dgx-a100 --gpus 64 \\
        --global-batch 256 --seq 4096

    MODEL is a name (see choreo list models) or a config.json of Hugging Face; or give --layers, --hidden and --heads.
    Without --cluster and --gpus, the model itself is described.
    """
    from choreo.cli.output.plan.model import print_model
    from choreo.cli.output.plan.parameter_server import print_parameter_server
    from choreo.cli.output.plan.vary import print_varied

    if options["validate"] is not None:
        from choreo.cli.output.plan.validation import print_plan_validation

        refuse_beside("--validate", ("validate", "leave_one_out", "as_json"))
        file = Path(str(options["validate"])) if options["validate"] else None
        print_plan_validation(file, leave_one_out=bool(options["leave_one_out"]), as_json=as_json)
        return
    if options["leave_one_out"]:
        raise UsageError("--leave-one-out goes with --validate FILE.csv; leave it out, or give the file")
    if options["parameter_server"] is not None:
        refuse_beside(
            "--parameter-server",
            ("parameter_server", "steps_per_s", "gradients", "gpus", "model", "precision", *NUMBERS, "as_json"),
        )
        print_parameter_server(options, as_json)
        return
    for name in ("steps_per_s", "gradients"):
        if options[name] is not None:
            raise UsageError(
                f"--{name.replace('_', '-')} goes with --parameter-server 50GB/s; leave it out, or give that"
            )
    if options["gpus"] is None and options["cluster"] is None and options["device"] is None:
        refuse_beside("a model by itself", ("model", "precision", "seq", *NUMBERS, "as_json"))
        print_model(options, as_json)
        return
    if options["vary"] is not None:
        if options["html"] is not None or options["trace"] is not None:
            raise UsageError("--html and --trace show one plan; leave out --vary, or them")
        print_varied(options, as_json)
        return
    check_stdout(as_json=as_json, html=options["html"])
    packets = _packets(options)
    with waiting("searching plans"):
        planning = planned(options)
    run = run_of(planning, options)
    with afterwards(lambda: _write(planning, run, options)):
        if not on_stdout(options["html"]):
            _print(planning, run, options, packets, as_json)


def _print(
    planning: Planning, run: TrainingRun | None, options: dict[str, object], packets: Packets | None, as_json: bool
) -> None:
    from choreo.cli.output.plan.planning import print_planning
    from choreo.cli.output.plan.traffic import print_traffic
    from choreo.cli.output.plan.training_run import with_run

    if options["simulate"]:
        from choreo.cli.output.plan.simulation import print_simulated

        print_simulated(planning, run, packets, as_json)
    elif options["traffic"]:
        print_traffic(planning, run, as_json)
    elif as_json:
        echo_json(with_run(planning.to_dict(), run))
    else:
        print_planning(planning, run)


def _packets(options: dict[str, object]) -> Packets | None:
    routing = options["routing"]
    packets = packets_of(options, None if routing is None else str(routing))
    if packets is not None and not options["simulate"]:
        raise UsageError(
            "--packets goes with --simulate: the estimate has no packets; add --simulate, or leave out --packets"
        )
    return packets


def _write(planning: Planning, run: TrainingRun | None, options: dict[str, object]) -> None:
    if options["html"] is not None:
        from choreo.show.plan.page import plan_html

        file = Path(str(options["html"]))
        write_page(file, plan_html(planning, run))
    if options["trace"] is not None:
        from choreo.show.plan.trace import write_plan_trace

        file = Path(str(options["trace"]))
        write_plan_trace(planning, file)
        click.echo(f"wrote {file}: open it in ui.perfetto.dev or chrome://tracing", err=True)
