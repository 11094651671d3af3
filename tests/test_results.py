"""Results: one kind of plain data, the same in Python, in JSON and in a table."""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Callable
from functools import cache

import pytest

import choreo
from choreo.results import Result
from tests.helpers.command import run_choreo

RING = choreo.build("all_reduce", "ring", 4)
LINK = choreo.CostModel(alpha_s=5e-6, bandwidth_bytes_per_s=50e9)
NETWORK = "ring(4, 50GB/s, 500ns)"


@cache
def planning() -> choreo.Planning:
    return choreo.plan("llama2-7b", cluster="hgx-h100", gpus=8, global_batch=64, seq=4096, tp=2, best=2)


# Made where a test asks for them: every worker imports this file.
RESULTS: dict[str, Callable[[], Result]] = {
    "proof": lambda: choreo.prove(RING),
    "price": lambda: choreo.price(RING, 1 << 20, LINK),
    "range": lambda: choreo.winners([RING], 1, 1 << 20, LINK)[0],
    "bound": lambda: choreo.bound("all_reduce", NETWORK, 1 << 20),
    "simulation": lambda: choreo.simulate(RING, choreo.get_topology(NETWORK), 1 << 20),
    "nccl": lambda: choreo.simulate_nccl("all_reduce", "hgx-h100", 1 << 20),
    "planned": lambda: planning().best,
    "planning": planning,
    "step": lambda: planning().best.step,
}


@cache
def result(name: str) -> Result:
    return RESULTS[name]()


@pytest.mark.parametrize("name", RESULTS)
def test_a_result_is_a_mapping_of_plain_data(name: str) -> None:
    found = result(name)
    assert dict(found) == found.to_dict() == json.loads(json.dumps(found.to_dict()))
    assert tuple(found) == found.columns
    assert all(hasattr(found, column) or hasattr(getattr(found, "step", None), column) for column in found.columns)


@pytest.mark.parametrize("name", RESULTS)
def test_a_result_says_what_it_is_in_one_line(name: str) -> None:
    said = repr(result(name))
    assert said == f"<{type(result(name)).__name__} {result(name).summary()}>"
    assert len(said) < 200 and "\n" not in said


@pytest.mark.parametrize("name", RESULTS)
def test_a_list_of_results_is_a_table(name: str) -> None:
    import pandas as pd

    table = pd.DataFrame([result(name), result(name)])
    assert tuple(table.columns) == result(name).columns
    assert len(table) == 2


@pytest.mark.parametrize("name", RESULTS)
def test_a_result_can_be_sent_to_another_process(name: str) -> None:
    assert pickle.loads(pickle.dumps(result(name))).to_dict() == result(name).to_dict()


def test_the_columns_of_a_schedule_are_a_table() -> None:
    import pandas as pd

    table = pd.DataFrame(RING.to_dict())
    assert len(table) == RING.num_transfers
    assert table[table.step == 0].src.tolist() == RING.columns().src[RING.columns().step == 0].tolist()
    pd.testing.assert_frame_equal(pd.DataFrame(RING.columns()), table)


def test_a_list_of_nouns_is_a_table() -> None:
    import pandas as pd

    for nouns in (choreo.list_devices(), choreo.list_models(), [choreo.Plan(tp=2), choreo.Plan(dp=4)]):
        assert {"name", "tp"} & set(pd.DataFrame(nouns).columns)


def test_json_is_the_result() -> None:
    words = ("simulate", "all_reduce", "-t", NETWORK, "--size", "1MiB", "-a", "ring", "--json")
    document = run_choreo(*words).json
    assert isinstance(document, dict)
    simulation = choreo.simulate(RING, NETWORK, 1 << 20)
    assert simulation.to_dict(details=True) | {"settings": {}} == document
    assert result("simulation").to_dict().items() <= document.items()


def test_equal_results_are_equal() -> None:
    assert choreo.prove(RING) == result("proof")
    assert choreo.price(RING, 1 << 21, LINK) != result("price")
    assert len({choreo.prove(RING), result("proof")}) == 1


def test_nouns_say_what_they_are_in_one_line() -> None:
    assert repr(choreo.get_device("H100-80G-SXM")) == "<Device H100-80G-SXM: 84.9 GB, 989 TFLOPS bf16>"
    assert repr(choreo.get_device("V100-32G-SXM2")).endswith(" TFLOPS fp16>")
    assert repr(choreo.get_model("llama3-8b")) == "<Model llama3-8b: 8.03 B parameters>"
    assert repr(RING.columns()) == "<Transfers 24 rows: step, src, dst, chunk, count, reduce, from_input>"
    (ring,) = (one for one in choreo.list_algorithms("all_gather") if one.name == "ring")
    assert repr(ring) == "<Algorithm all_gather by ring: (p - 1) α + (p - 1) / p n β>"
    assert repr(choreo.get_topology("hgx-h100")) == "<Topology hgx-h100: 8 devices, 1 switch, 16 links>"
    nouns = (*choreo.list_devices(), *choreo.list_topologies(), *choreo.list_models())
    assert max(len(repr(noun)) for noun in nouns) < 200


def test_a_step_tells_memory_in_decimal_units_as_plans_do() -> None:
    step = copy.copy(planning().best.step)
    vars(step).update(memory={}, peak_reserved_bytes=float(40 << 30))
    assert ", 42.9 GB, limited by " in step.summary()


def test_summaries_tell_hierarchical_schedules_apart_by_their_axes() -> None:
    one, other = (choreo.build("all_reduce", "hierarchical", 8, axes=axes) for axes in ("4x2", "2x4:direct,ring"))
    for schedule, axes in ((one, "4x2:ring,ring"), (other, "2x4:direct,ring")):
        found = choreo.price(schedule, "1MiB", LINK), choreo.simulate(schedule, "ring(8)", "1MiB")
        for result in found:
            assert f"by hierarchical {axes} over 8 ranks" in result.summary()
            assert result["algorithm"] == "hierarchical"
    ranges = choreo.winners([one, other], 1, "1GiB", LINK)
    assert {found.axes for found in ranges} <= {one.axes, other.axes}
    assert ranges[0].summary().startswith(f"hierarchical {ranges[0].axes} from ")
