"""The worked cases: the commands of docs/explanation/cases give the numbers that the pages are about."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from tests.helpers.command import run_choreo

PAGES = Path(__file__).parents[2] / "docs" / "explanation" / "cases"


def commands(page: str) -> list[list[str]]:
    text = (PAGES / f"{page}.md").read_text(encoding="utf-8")
    return [shlex.split(line)[1:] for line in re.findall(r"^\$ (.*)$", text, re.MULTILINE)]


def answers(page: str) -> list[dict[str, object]]:
    found = []
    for words in commands(page):
        ran = run_choreo(*words, "--json")
        assert ran.code == 0, ran.err
        found.append(json.loads(ran.out))
    return found


def number(value: object) -> float:
    assert isinstance(value, int | float)
    return float(value)


def mapping(value: object) -> dict[str, object]:
    assert isinstance(value, dict)
    return value


def series(value: object) -> list[dict[str, object]]:
    assert isinstance(value, list)
    return value


def best(answer: dict[str, object]) -> dict[str, object]:
    return series(answer["plans"])[0]


def test_every_case_is_here() -> None:
    assert {path.stem for path in PAGES.glob("*.md")} == {
        "a100-and-a800", "bubble", "dlrm", "exposed-communication", "mfu-history", "parameter-server", "resnet-scaling",
        "sixty-gigabyte-layer", "tensor-and-pipeline",
    }  # fmt: skip


def test_the_parameter_server_needs_more_than_its_adapter() -> None:
    by_size, by_model = answers("parameter-server")
    assert number(by_size["needed_bytes_per_s"]) == pytest.approx(74.88e9)
    assert number(by_size["needed_bytes_per_s"]) / 1.024e9 == pytest.approx(73.1, abs=0.05)
    assert not by_size["holds"]
    assert not by_model["holds"]


def test_nvlink_must_be_1_75_times_rdma() -> None:
    a100, a800 = (mapping(answer["balance"]) for answer in answers("a100-and-a800"))
    assert a100["ratio"] == a800["ratio"] == 1.75
    assert (a100["inside_bytes_per_s"], a100["between_bytes_per_s"], a100["holds"]) == (300e9, 160e9, True)
    assert (a800["inside_bytes_per_s"], a800["between_bytes_per_s"], a800["holds"]) == (200e9, 160e9, False)


def test_a_layer_needs_60_gb() -> None:
    (answer,) = answers("sixty-gigabyte-layer")
    assert number(answer["layer_bytes"]) == pytest.approx(60e9)


def test_the_bubble_is_p_minus_1_over_m() -> None:
    (answer,) = answers("bubble")
    for run in series(answer["runs"]):
        one = best(run)
        micro_batches = int(str(run["value"]))
        # What the pipeline would take without a bubble: all but the bubble, the optimizer and what comes with it.
        share = number(one["bubble_s"]) / (number(one["step_time_s"]) - number(one["bubble_s"]))
        assert share == pytest.approx(3 / micro_batches, rel=0.12)


def test_tensor_parallelism_sends_seven_eighths_and_a_pipeline_one() -> None:
    (answer,) = answers("tensor-and-pipeline")
    sizes = {(row["axes"], row["collective"]): row for row in series(answer["traffic"])}
    whole = 2048 * 12288 * 2
    assert sizes["tp", "all_gather"]["sent_bytes"] == whole * 7 / 8
    assert sizes["pp", "send"]["sent_bytes"] == whole / 8


def test_mfu_went_from_the_forties_to_sixty_and_down() -> None:
    v100, a100, h100 = (number(best(answer)["mfu"]) for answer in answers("mfu-history"))
    assert 0.40 <= v100 <= 0.52
    assert 0.55 <= a100 <= 0.65
    assert 0.30 <= h100 <= 0.50


def test_the_share_of_exposed_communication_grows_with_compute() -> None:
    (answer,) = answers("exposed-communication")
    shares = [
        sum(map(number, mapping(best(run)["exposed_comm_s"]).values())) / number(best(run)["step_time_s"])
        for run in series(answer["runs"])
    ]
    assert shares == sorted(shares)
    assert shares[0] < 0.1
    assert shares[-1] > 0.6


def test_resnet_scales_nearly_linearly_to_16_v100s() -> None:
    (answer,) = answers("resnet-scaling")
    speeds = {run["value"]: number(best(run)["tokens_per_s_per_gpu"]) for run in series(answer["runs"])}
    assert 1000 < speeds["1"] < 1800  # images a second and V100 in fp16: NVIDIA publishes some 1,300
    assert 0.9 < speeds["16"] / speeds["1"] <= speeds["8"] / speeds["1"] <= 1


def test_dlrm_waits_for_its_all_to_all() -> None:
    (answer,) = answers("dlrm")
    exposed = mapping(best(answer)["exposed_comm_s"])
    assert number(exposed["dp all_to_all"]) > 0
    assert number(exposed["dp all_reduce"]) > 0
