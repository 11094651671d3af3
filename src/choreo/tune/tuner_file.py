"""The file that NCCL's example tuner plugin reads (plugins/tuner/example): a line for each range of sizes.

    collective,min_bytes,max_bytes,algorithm,protocol,channels,nodes,ranks

0 channels keeps NCCL's own number. -1 should, but the plugin then answers with the 1 that it starts from. A line of the
file must be shorter than 256 characters, comments too.
"""

from __future__ import annotations

from choreo.errors import shown
from choreo.tune.tune import Tuning
from choreo.units import counted

__all__ = ["tuner_text"]

ALGORITHMS = {
    "Tree": "tree",
    "Ring": "ring",
    "CollNetDirect": "collnet_direct",
    "CollNetChain": "collnet_chain",
    "NVLS": "nvls",
    "NVLSTree": "nvls_tree",
    "PAT": "pat",
}


def tuner_text(tuning: Tuning) -> str:
    """The text of the file.

    >>> from choreo.tune import tune
    >>> tuner_text(tune("dgx-1")).splitlines()[-1]
    'reduce,2218935,18446744073709551615,ring,simple,0,1,8'
    """
    head = [
        f"# {counted(tuning.ranks, 'rank')} in {counted(tuning.nodes, 'node')} of {shown(tuning.topology)[:120]}, by "
        "choreo tune",
        "# NCCL_TUNER_PLUGIN=libnccl-tuner-example.so NCCL_TUNER_CONFIG_FILE=this file",
        "# collective,min_bytes,max_bytes,algorithm,protocol,channels,nodes,ranks",
    ]
    lines = [
        f"{row.collective.replace('_', '')},{row.min_bytes},{row.max_bytes},{ALGORITHMS[row.algorithm]},"
        f"{row.protocol.lower()},0,{tuning.nodes},{tuning.ranks}"
        for row in tuning.ranges
    ]
    return "\n".join([*head, *lines]) + "\n"
