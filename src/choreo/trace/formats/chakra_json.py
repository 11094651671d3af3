"""Chakra traces as JSON: one object after another, as its jsonizer prints them, or {"workload_graph": [...]}."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from choreo.errors import TraceError
from choreo.trace.formats.chakra import RANK_IN_NAME, node_from
from choreo.trace.raw import Findings, RankTrace, RawNode

__all__ = ["read", "recognises"]

TYPES = (
    "INVALID_NODE",
    "METADATA_NODE",
    "MEM_LOAD_NODE",
    "MEM_STORE_NODE",
    "COMP_NODE",
    "COMM_SEND_NODE",
    "COMM_RECV_NODE",
    "COMM_COLL_NODE",
)
COMM_TYPES = (
    "ALL_REDUCE",
    "REDUCE",
    "ALL_GATHER",
    "GATHER",
    "SCATTER",
    "BROADCAST",
    "ALL_TO_ALL",
    "REDUCE_SCATTER",
    "REDUCE_SCATTER_BLOCK",
    "BARRIER",
)


def recognises(head: bytes, name: str) -> bool:
    """Whether it is one of the two forms."""
    text = head.decode(errors="replace").lstrip("\ufeff \t\r\n")
    return text.startswith("{") and (
        '"workload_graph"' in text[:200] or any(f'"{word}"' in text for word in (*TYPES[1:], "durationMicros"))
    )


def read(data: bytes, name: str, findings: Findings) -> list[RankTrace]:
    """The nodes of one rank."""
    try:
        documents = list(_documents(data.decode("utf-8-sig")))
    except (UnicodeDecodeError, RecursionError) as error:
        raise TraceError(f"it is not JSON: {error}") from None
    if len(documents) == 1 and isinstance(documents[0].get("workload_graph"), list):
        found = [_plain_node(node, findings) for node in documents[0]["workload_graph"]]
    else:
        found = [_proto_node(node, findings) for node in documents if "type" in node or "id" in node]
    rank = RANK_IN_NAME.search(name)
    return [RankTrace([node for node in found if node is not None], rank=int(rank[1]) if rank else None)]


def _documents(text: str) -> Iterator[dict[str, Any]]:
    """The consecutive JSON objects of a text."""
    decoder, at = json.JSONDecoder(), 0
    while at < len(text):
        if text[at].isspace():
            at += 1
            continue
        try:
            found, at = decoder.raw_decode(text, at)
        except (ValueError, RecursionError) as error:  # also raised for a number with thousands of digits
            raise TraceError(f"it is not JSON: {error}") from None
        if not isinstance(found, dict):
            raise TraceError(f"Chakra's JSON is made of objects, and one is {str(found)[:40]}")
        yield found


def _plain_node(node: Any, findings: Findings) -> RawNode | None:
    if not isinstance(node, Mapping):
        raise TraceError(f"a node is an object, not {str(node)[:40]}")
    small = {str(key).lower(): value for key, value in node.items()}
    control = _ints(small.get("ctrldeps", small.get("ctrl_deps")))
    waits = _ints(small.get("datadeps", small.get("data_deps"))), control
    attributes = {key: value for key, value in small.items() if isinstance(value, int | float | str)}
    micros = _number(small.get("runtime", small.get("duration_micros", 0)), "runtime")
    kind = int(_number(small.get("nodetype", 0), "NodeType"))
    return node_from(
        int(_number(small.get("id"), "Id")), str(small.get("name", "")), kind, waits, micros, attributes, findings
    )


def _proto_node(node: Mapping[str, Any], findings: Findings) -> RawNode | None:
    kind = node.get("type", 0)
    number = TYPES.index(kind) if kind in TYPES else int(_number(kind, "type"))
    attributes: dict[str, float | int | str] = {}
    for attribute in node.get("attr", ()):
        if not isinstance(attribute, Mapping):
            raise TraceError(f"an attribute is an object, not {str(attribute)[:40]}")
        for key, value in attribute.items():
            if key.lower().replace("_", "").endswith("val"):
                attributes[str(attribute.get("name"))] = _value(key, value)
    kind_of = attributes.get("comm_type")
    if kind_of in COMM_TYPES:
        attributes["comm_type"] = COMM_TYPES.index(str(kind_of))
    control = _ints(node.get("ctrlDeps", node.get("ctrl_deps")))
    waits = _ints(node.get("dataDeps", node.get("data_deps"))), control
    micros = _number(node.get("durationMicros", node.get("duration_micros", 0)), "durationMicros")
    return node_from(
        int(_number(node.get("id", 0), "id")), str(node.get("name", "")), number, waits, micros, attributes, findings
    )


def _value(key: str, value: Any) -> float | int | str:
    """An attribute's value; 64-bit integers are texts in this form."""
    if isinstance(value, str) and not key.lower().startswith("string"):
        return int(_number(value, key))
    return value if isinstance(value, int | float | str) else str(value)


def _ints(values: Any) -> list[int]:
    if values is None:
        return []
    if not isinstance(values, list):
        raise TraceError(f"dependencies are a list, not {str(values)[:40]}")
    return [int(_number(value, "a dependency")) for value in values]


def _number(value: Any, what: str) -> float:
    try:
        found = int(value) if isinstance(value, str) else value + 0
    except (TypeError, ValueError):
        found = float("nan")
    if not abs(found) < 1 << 64:
        raise TraceError(f"{what} must be a number of at most 64 bits, not {str(value)[:40]!r}")
    return found
