"""What the further views of the page are told is what the verbs say."""

from __future__ import annotations

import base64
import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import choreo
from choreo.algorithms import build, list_algorithms
from choreo.explore.fields import FieldError, Fields
from choreo.explore.server.worker import answers
from choreo.explore.static import static_page
from choreo.explore.views.measure import Measure, Timeline, measure, timeline
from choreo.explore.views.plans import LIMITS, One, Plans, PlansData, one_plan, pareto, plan_page, plans
from choreo.explore.views.store import Ask, Where, ask_store
from choreo.explore.views.winners import Map, winners
from choreo.explore.views.write import document
from choreo.price import CostModel, price
from choreo.prove import prove
from choreo.record.record import record
from choreo.record.store.place import COLUMNS
from choreo.schedule.document import from_document
from choreo.simulate import simulate

SIZES = (64, 1 << 16, 1 << 26)


def rows_of(asked: Map) -> list[Any]:
    """The parts, without the end."""
    *parts, end = winners(asked)
    assert end == {"done": {}}
    return [part["part"] for part in parts]


@pytest.mark.parametrize("by", ["formula", "simulation"])
def test_the_map_has_the_time_of_every_algorithm(by: str) -> None:
    fields = Fields(topology="switch", gamma="1e-11")
    for row in rows_of(Map(fields, SIZES, (2, 7, 8), by)):
        known = {one.name for one in list_algorithms("all_reduce")}
        assert set(row["times"]) | set(row["left_out"]) == known
        ranks = row["ranks"]
        ring = build("all_reduce", "ring", ranks)
        network, model = f"switch({ranks}, 50GB/s, 1us)", CostModel("1us", "50GB/s", 1e-11)
        for size, time_s in zip(SIZES, row["times"]["ring"], strict=True):
            simulated = simulate(ring, network, size, gamma_s_per_byte=1e-11).time_s
            assert time_s == (price(ring, size, model).total_s if by == "formula" else simulated)
        assert "switches that reduce" in row["left_out"]["in_network"]


def test_a_document_is_the_schedule() -> None:
    written = from_document(document(Fields(ranks=5, algorithm="swing"))["text"])
    assert prove(written).ranks == 5
    with pytest.raises(FieldError, match="more than 2000 transfers"):
        document(Fields(ranks=64))


def test_plans_are_those_of_the_search() -> None:
    job = Plans("llama3-8b", "hgx-h100:2", 64, 8192)
    told = plans(job)
    found = choreo.plan("llama3-8b", cluster="hgx-h100:2", global_batch=64, seq=8192).found
    assert found is not None
    time_s, memory = (np.frombuffer(base64.b64decode(told[name]), "<f4") for name in ("time_s", "memory_bytes"))
    assert time_s == pytest.approx(found.estimate.time_s, rel=1e-6)
    assert memory == pytest.approx(found.estimate.memory_bytes, rel=1e-6)
    assert told["count"] == len(found.space)
    limit = np.frombuffer(base64.b64decode(told["limit"]), "<i2")
    assert (limit == LIMITS.index("does not fit in memory")).sum() == (memory > told["room_bytes"]).sum()
    front = pareto(found.estimate.memory_bytes, found.estimate.time_s)
    assert told["front"] == front
    for row in front:
        better = (found.estimate.memory_bytes <= found.estimate.memory_bytes[row]) & (
            found.estimate.time_s < found.estimate.time_s[row]
        )
        assert not better.any()
    best = one_plan(One("llama3-8b", "hgx-h100:2", 64, 8192, row=told["best"][0]))
    assert best["plan"] == str(found.plans[0][0])
    assert best["step"]["step_time_s"] == found.plans[0][1].step_time_s


@pytest.mark.parametrize(
    ("job", "field"),
    [
        (Plans(model="/etc/config.json"), "model"),
        (Plans(model="no-such-model"), "model"),
        (Plans(cluster="/tmp/mine.toml"), "cluster"),
        (Plans(cluster="mine.json"), "cluster"),
        (Plans(cluster="mine.yml"), "cluster"),
        (Plans(cluster="rign(8)"), "model"),
    ],
)
def test_plans_take_names_and_no_files(job: Plans, field: str) -> None:
    with pytest.raises(FieldError) as raised:
        plans(job)
    assert raised.value.field == field


def test_plans_of_unknown_software_say_so() -> None:
    told = plans(Plans("llama3-8b", "hgx-h100:1", 16, 4096, software="megatorn"))
    assert "Note: nothing is known of the software 'megatorn'" in told["title"]


def times_by_plan(told: PlansData) -> dict[tuple[int, ...], float]:
    """The estimated time of each plan, by its fields; those of recomputation follow from the memory there is."""
    fields = [name for name in told["fields"] if name != "recompute_layers"]
    columns = [np.frombuffer(base64.b64decode(told["fields"][name]), "<i2").tolist() for name in fields]
    seconds = np.frombuffer(base64.b64decode(told["time_s"]), "<f4").tolist()
    return dict(zip(zip(*columns, strict=True), seconds, strict=True))


def test_what_if_moves_the_plans_and_a_plan_has_its_page() -> None:
    job = ("llama3-8b", "hgx-h100:1", 16, 4096)
    as_it_is, slower = plans(Plans(*job)), plans(Plans(*job, bandwidth=0.25, memory=2.0))
    times = [times_by_plan(told) for told in (as_it_is, slower)]
    both = times[0].keys() & times[1].keys()
    assert len(both) > 0.9 * len(times[0])  # of plans in several chunks each search leaves out those that are slower
    was, now = (np.array([found[plan] for plan in both]) for found in times)
    assert (now >= was * (1 - 1e-6)).all()
    assert now.sum() > 1.05 * was.sum()
    assert slower["room_bytes"] == 2 * as_it_is["room_bytes"]
    row = as_it_is["best"][0]
    best = choreo.plan("llama3-8b", cluster="hgx-h100:1", global_batch=16, seq=4096).best
    page = plan_page(One(*job, row=row))["html"]
    assert page.startswith("<!doctype html>")
    told = float(page.partition('"step_time_s":')[2].partition(",")[0])
    assert told == pytest.approx(best.step.step_time_s, rel=1e-12)
    with pytest.raises(FieldError, match="there is no plan"):
        plan_page(One(*job, row=1 << 30))


@pytest.mark.parametrize(("collective", "ranks", "size"), [("all_reduce", 3, "64"), ("broadcast", 2, "4MiB")])
def test_one_call_is_followed_message_by_message(collective: str, ranks: int, size: str) -> None:
    found = timeline(Timeline(collective, "", ranks, size))
    measured, predicted = found["measured"], found["predicted"]
    assert measured is not None
    told = set(zip(measured["step"], measured["src"], measured["dst"], strict=True))
    assert told == set(zip(predicted["step"], predicted["src"], predicted["dst"], strict=True))
    assert len(measured["src"]) == found["parts"] * len(predicted["src"])
    assert sum(measured["bytes"]) == pytest.approx(sum(predicted["bytes"]))
    for start, arrived in zip(measured["start_us"], measured["arrived_us"], strict=True):
        assert 0 <= start <= arrived <= found["measured_us"]


def test_a_run_is_bounded() -> None:
    with pytest.raises(FieldError, match="at most 16 processes"):
        measure(Measure(ranks=17))
    with pytest.raises(FieldError, match="at most 256 MiB"):
        measure(Measure(ranks=2, sizes=("1GiB",)))
    with pytest.raises(FieldError, match="is not a size"):
        measure(Measure(ranks=2, sizes=("lots",)))


def test_the_store_is_asked_without_sql(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHOREO_STORE", str(tmp_path))
    for name in ("ring", "swing"):
        record(simulate(build("all_reduce", name, 8), "ring(8, 50GB/s, 1us)", 1 << 20), store=tmp_path)
    asked = Ask("result", ("algorithm", "time_s"), (Where("algorithm", "=", "ring"),))
    found = ask_store(asked)
    assert found["sql"] == "select algorithm, time_s from result where algorithm = 'ring' limit 20000"
    assert [row[0] for row in found["rows"]] == ["ring"]
    grouped = ask_store(Ask("result", ("count(*)",), group_by=("algorithm",), order_by=("algorithm",)))
    assert grouped["rows"] == [["ring", 1], ["swing", 1]]
    several = ask_store(Ask("result", ("algorithm",), (Where("algorithm", "in", ("ring", "mst")),)))
    assert several["rows"] == [["ring"]]
    shutil.rmtree(tmp_path / COLUMNS, ignore_errors=True)
    (tmp_path / COLUMNS).touch()  # columns cannot be made there, as in a folder that is read-only
    assert ask_store(asked)["rows"] == found["rows"]
    assert "nothing like this" in ask_store(Ask("result", ("time_s",), (Where("ranks", ">", 99),)))["word"]
    for wrong in (
        {"columns": ["1; drop table run"]},
        {"view": "run"},
        {"where": [{"column": "ranks", "operator": "or 1"}]},
    ):
        (told,) = answers("ask_store", json.dumps(wrong).encode())
        assert "error" in told


def test_a_file_shows_what_a_link_shows() -> None:
    page = static_page("http://127.0.0.1:1/#ranks=4&cuts=0~1*0.5&slow=2*3")
    assert '"0-1=0.5' in page.replace("\\", "") or "0-1=0.5" in page
    assert "http-equiv" in page
    for link, told in (
        ("ranks=many", "ranks has 'many' where a number belongs"),
        ("ranks=0", "ranks"),
        ("cuts=nonsense", "cuts has 'nonsense' where a number belongs"),
        ("slow=1*x", "slow has 'x' where a number belongs"),
        ("size=lots", "size"),
        ("rankz=4", "did you mean 'ranks'"),
        ("hello", "'hello' is not a link of the page"),
        ("foo=bar", "'foo=bar' is not a link of the page"),
        ("ranks=4&view=map", "a file without a server shows one moment, not view=map; leave out view"),
    ):
        with pytest.raises(choreo.UsageError, match=re.escape(told)):
            static_page(link)
