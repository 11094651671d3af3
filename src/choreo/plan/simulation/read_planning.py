"""Read the output of `choreo plan --json`: the job and its best plan, to be simulated on any network."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec

from choreo.errors import UsageError, shown
from choreo.plan.plan import Planning, plan
from choreo.workload import Plan

__all__ = ["read_planning"]

MAX_FILE_BYTES = 16 << 20  # larger files are traces
JOB = {"model": str, "cluster": str, "gpus": int, "device": str, "software": str, "global_batch": int, "seq": int}


def read_planning(path: Path, *, device: str | None = None) -> Planning | None:
    """The job in a file and its first plan, evaluated anew, optionally on another device; None if it is no plan.

    >>> import json, tempfile
    >>> from choreo import plan
    >>> found = plan("llama3.2-1b", cluster="hgx-h100:1", global_batch=16, seq=2048, tp=2, pp=2, zero=0)
    >>> with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
    ...     _ = file.write(json.dumps(found.to_dict()))
    ...     file.flush()
    ...     read_planning(Path(file.name)).best.plan == found.best.plan
    True
    """
    document = _document(path)
    if document is None:
        return None
    missing = [name for name, kind in JOB.items() if not isinstance(document.get(name), kind)]
    if missing:
        raise UsageError(f"{shown(path)} does not say its {missing[0]}; write it anew with choreo plan --json")
    if not document["plans"]:
        raise UsageError(f"{shown(path)} has no plan: none was possible")
    first = document["plans"][0]
    fields = dict(first["plan"]) if isinstance(first, dict) and isinstance(first.get("plan"), dict) else {}
    if set(fields) != set(Plan().fields()):
        raise UsageError(f"the first plan of {shown(path)} is not one that choreo plan --json writes; write it anew")
    named = {name: document[name] for name in ("cluster", "gpus", "software", "global_batch", "seq")}
    precision = fields.pop("precision")
    return plan(document["model"], **named, device=device or document["device"], precision=precision, best=1, **fields)


def _document(path: Path) -> dict[str, Any] | None:
    """The content of the file, if it holds plans. For a trace only the outermost keys are looked at."""
    try:
        if not path.is_file() or path.stat().st_size > MAX_FILE_BYTES:
            return None
        content = path.read_bytes()
        if not {"model", "plans"} <= set(msgspec.json.decode(content, type=dict[str, msgspec.Raw])):
            return None
        document: dict[str, Any] = json.loads(content)
    except (OSError, ValueError, RecursionError):
        return None
    return document if isinstance(document["plans"], list) else None
