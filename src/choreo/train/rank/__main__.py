"""One rank of `choreo train` as a process: `python -m choreo.train.rank CONFIG`, started by a launcher.

Its reports go to stdout as lines of JSON that begin with a mark; everything else there was printed by other code.
"""

from __future__ import annotations

import json
import sys
import warnings
from typing import Any

from choreo.errors import ChoreoError, UsageError
from choreo.heap import keep_freed_memory
from choreo.pytorch import import_torch
from choreo.train.config import TrainConfig
from choreo.train.launch import MARK

__all__ = ["main"]


def main() -> int:
    """Join the job, train, and leave it."""
    config = TrainConfig.from_json(sys.argv[1])
    warnings.simplefilter("ignore")  # torch's own, about its own future
    try:
        import_torch("training")
    except UsageError as error:
        return _report_error(error)
    import torch
    import torch.distributed as dist

    from choreo.train.elastic.loop import train_elastic
    from choreo.train.rank.loop import train_rank

    keep_freed_memory()
    torch.set_num_threads(1)  # one thread per rank, so that plans can be compared
    try:
        if not config.survives:
            dist.init_process_group(config.backend)
        if config.device == "cuda" and not torch.cuda.is_available():
            raise UsageError(
                "torch sees no GPU here; leave out --device cuda, or install a torch that is built for yours"
            )
        (train_elastic if config.survives else train_rank)(config, _report)
    except (ChoreoError, dist.DistBackendError) as error:
        if not isinstance(error, ChoreoError) and not isinstance(error.__cause__, ChoreoError):
            raise
        return _report_error(error)
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
    return 0


def _report_error(error: Exception) -> int:
    _report({"error": str(error), "kind": type(error).__name__})
    return 2


def _report(report: dict[str, Any]) -> None:
    sys.stdout.write(f"{MARK}{json.dumps(report)}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
