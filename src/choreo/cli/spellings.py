"""What other tools call the options of Choreo, for users of those tools."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import click

__all__ = ["SPELLINGS", "known_elsewhere"]

# Of each tool: its option, and the option here. Dashes inside a name may be underscores, as torchrun has them.
SPELLINGS = {
    "nccl-tests": {"-g": "--ranks", "--ngpus": "--ranks", "--nthreads": "--ranks", "--local-register": "--registered"},
    "torchrun": {
        "--nproc-per-node": "--ranks",
        "--nnodes": "--nodes",
        "--node-rank": "--node-rank",
        "--master-addr": "--master",
        "--master-port": "--master",
        "--rdzv-endpoint": "--master",
        "--max-restarts": "--restarts",
    },
    "torch": {"--world-size": "--ranks"},
    "mpirun": {"--np": "--ranks"},
    "Megatron-LM": {
        "--tensor-model-parallel-size": "--tp",
        "--pipeline-model-parallel-size": "--pp",
        "--context-parallel-size": "--cp",
        "--expert-model-parallel-size": "--ep",
        "--expert-tensor-parallel-size": "--etp",
        "--micro-batch-size": "--micro-batch",
        "--global-batch-size": "--global-batch",
        "--seq-length": "--seq",
        "--train-iters": "--steps",
        "--num-layers": "--layers",
        "--hidden-size": "--hidden",
        "--ffn-hidden-size": "--ffn",
        "--num-attention-heads": "--heads",
        "--num-query-groups": "--kv-heads",
        "--recompute-granularity": "--recompute",
        "--recompute-num-layers": "--recompute-layers",
    },
    "ASTRA-sim": {"--network-configuration": "--topology", "--workload-configuration": "--workload"},
}


def known_elsewhere(option: str, command: click.Command) -> str:
    """What this command calls an option of another tool, in words; empty if it has nothing like it."""
    asked = option.replace("_", "-")
    here = {name for parameter in command.params for name in parameter.opts}
    for tool, options in SPELLINGS.items():
        if (name := options.get(asked)) in here:
            return f"; {option} of {tool} is {name} here"
    return ""
