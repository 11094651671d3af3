"""The registry from Python: how algorithms get their names, what they are given, and what they give back."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import choreo
from choreo.algorithms import get_algorithm, list_algorithms
from tests.helpers.registry import (
    CHAIN,
    Write,
    body,
    refusal,
    write_file,  # noqa: F401 - the fixture `write`
)

pytestmark = pytest.mark.usefixtures("registry")


# Names


def test_an_algorithm_is_called_after_its_file(write: Write) -> None:
    (found,) = choreo.load_algorithms(write(CHAIN.format(options=""), "bucket_brigade.py"))
    assert (found.collective, found.name, found.cost, found.requires) == ("broadcast", "bucket_brigade", None, None)
    assert found.source == str(Path(found.source).parent / "bucket_brigade.py")
    assert found.options == ("root",)
    assert get_algorithm("broadcast", "bucket_brigade") is found
    assert found in list_algorithms("broadcast")
    assert found not in list_algorithms("reduce")


def test_a_name_of_its_own_comes_first(write: Write) -> None:
    (found,) = choreo.load_algorithms(str(write(CHAIN.format(options=', name="chain"'))))
    assert found.name == "chain"
    with pytest.raises(choreo.UnknownNameError, match="there is no broadcast algorithm 'mine'"):
        choreo.build("broadcast", "mine", 4)


def test_one_file_for_several_collectives(write: Write) -> None:
    code = "".join(
        f'@choreo.algorithm("{name}")\ndef {name}(ranks):\n    return choreo.build("{name}", "ring", ranks)\n'
        for name in ("all_gather", "reduce_scatter", "all_reduce")
    )
    found = choreo.load_algorithms(write(code))
    assert [(a.collective, a.name) for a in found] == [
        ("all_gather", "mine"),
        ("reduce_scatter", "mine"),
        ("all_reduce", "mine"),
    ]
    for one in found:
        choreo.prove(choreo.build(one.collective, "mine", 6))


def test_without_a_file_it_is_called_after_its_function() -> None:
    code = (
        "import choreo\n"
        "@choreo.algorithm('all_reduce')\n"
        "def by_hand(ranks):\n"
        "    return choreo.build('all_reduce', 'ring', ranks)\n"
        "print(choreo.build('all_reduce', 'by_hand', 4))\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ran.stdout == "<Schedule all_reduce by by_hand: 4 ranks, 4 chunks, 6 steps>\n", ran.stderr


def test_the_decorator_gives_the_function_back() -> None:
    def ring(ranks: int) -> choreo.Schedule:
        return choreo.build("all_reduce", "ring", ranks)

    assert choreo.algorithm("all_reduce", name="mine")(ring) is ring


def test_the_schedule_bears_the_name_of_the_algorithm(write: Write) -> None:
    choreo.load_algorithms(write(body('return choreo.build("all_reduce", "ring", ranks)')))
    assert choreo.build("all_reduce", "mine", 4).algorithm == "mine"


def test_a_collective_that_does_not_exist() -> None:
    with pytest.raises(choreo.UnknownNameError, match="there is no collective 'allreduce'; did you mean 'all_reduce'"):
        choreo.algorithm("allreduce")


@pytest.mark.parametrize("name", ["3", "'two\\nlines'", "['a']"])
def test_a_name_that_is_no_name(write: Write, name: str) -> None:
    file = write(CHAIN.format(options=f", name={name}"))
    assert "mine.py" in refusal(lambda: choreo.load_algorithms(file))
    list_algorithms()


@pytest.mark.parametrize("option", ["cost=7", "requires='an even number'"])
def test_a_cost_or_a_need_of_the_wrong_kind(write: Write, option: str) -> None:
    file = write(CHAIN.format(options=f", {option}"))
    assert option.partition("=")[0] in refusal(lambda: choreo.load_algorithms(file))


@pytest.mark.parametrize("alpha", ["p +", "", "import os"])
def test_a_cost_that_is_no_expression(write: Write, alpha: str) -> None:
    file = write(CHAIN.format(options=f", cost=choreo.Cost(alpha={alpha!r})"))
    assert "cost" in refusal(lambda: choreo.load_algorithms(file))


# What an algorithm is given


@pytest.fixture
def given(registry: object) -> list[dict[str, object]]:
    """An algorithm `listening` for all_reduce and for broadcast, and what each call of it was given."""
    calls: list[dict[str, object]] = []

    @choreo.algorithm("all_reduce", name="listening")
    def all_reduce(
        ranks: int, axes: object = None, rotate: bool = False, segments: int = 0, color: str = "red"
    ) -> choreo.Schedule:
        calls.append({"ranks": ranks, "axes": axes, "rotate": rotate, "segments": segments, "color": color})
        return choreo.build("all_reduce", "ring", ranks)

    @choreo.algorithm("broadcast", name="listening")
    def broadcast(ranks: int, root: int) -> choreo.Schedule:
        calls.append({"ranks": ranks, "root": root})
        return choreo.build("broadcast", "mst", ranks, root=root)

    return calls


def test_only_what_was_asked_for_is_passed_on(given: list[dict[str, object]]) -> None:
    choreo.build("all_reduce", "listening", 4)
    choreo.build("all_reduce", "listening", 4, axes=None, rotate=False, segments=None, color=None)
    nothing = {"ranks": 4, "axes": None, "rotate": False, "segments": 0, "color": "red"}
    assert given == [nothing, nothing]


def test_every_option_is_passed_on(given: list[dict[str, object]]) -> None:
    choreo.build("all_reduce", "listening", 4, axes="2x2", rotate=True, segments=3, color="blue")
    assert given == [{"ranks": 4, "axes": "2x2", "rotate": True, "segments": 3, "color": "blue"}]


def test_the_root_is_passed_on_always(given: list[dict[str, object]]) -> None:
    choreo.build("broadcast", "listening", 4)
    choreo.build("broadcast", "listening", 4, root=2)
    assert given == [{"ranks": 4, "root": 0}, {"ranks": 4, "root": 2}]


def test_an_algorithm_without_segments_is_pipelined_from_outside(given: list[dict[str, object]]) -> None:
    whole = choreo.build("broadcast", "listening", 8)
    cut = choreo.build("broadcast", "listening", 8, segments=4)
    assert (whole.num_chunks, cut.num_chunks, cut.algorithm) == (1, 4, "listening")
    choreo.prove(cut)
    assert choreo.build("all_reduce", "listening", 8, segments=4).num_chunks == 8  # it has its own way with segments


def test_one_rank_has_nothing_to_do_and_is_not_asked(given: list[dict[str, object]]) -> None:
    assert choreo.build("all_reduce", "listening", 1).num_steps == 0
    assert given == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"colour": "red"}, "broadcast by listening takes no colour; leave it out"),
        ({"axes": "2x2", "rotate": True}, "broadcast by listening takes no axes; leave it out"),
        ({"root": 4}, "root 4 is not a rank: with 4 ranks it must be 0 to 3"),
        ({"root": -1}, "root -1 is not a rank"),
        ({"segments": 0}, "segments must be a whole number of at least 1, not 0"),
        ({"segments": 1.5}, "segments must be a whole number of at least 1, not 1.5"),
        ({"segments": "2"}, "segments must be a whole number of at least 1, not '2'"),
        ({"root": "0"}, "root"),
        ({"root": 1.5}, "root"),
    ],
)
@pytest.mark.usefixtures("given")
def test_options_that_do_not_fit(options: dict[str, object], message: str) -> None:
    assert message in refusal(lambda: choreo.build("broadcast", "listening", 4, **options))  # type: ignore[arg-type]


@pytest.mark.parametrize("ranks", [0, -1, True, 2.0, "4", None, float("nan")])
def test_ranks_that_are_no_number_of_ranks(ranks: object) -> None:
    message = refusal(lambda: choreo.build("all_reduce", "ring", ranks))  # type: ignore[arg-type]
    assert message == f"ranks must be a whole number from 1 to 4194304, not {ranks!r}"


def test_a_root_where_there_is_none() -> None:
    message = refusal(lambda: choreo.build("all_reduce", "ring", 4, root=0))
    assert message == "all_reduce has no root, but root=0 was given; leave it out"


def test_unknown_names_get_the_nearest() -> None:
    assert "did you mean 'all_reduce'" in refusal(lambda: choreo.build("allreduce", "ring", 4))
    with pytest.raises(choreo.UnknownNameError) as caught:
        choreo.build("all_reduce", "halving-doubling", 4)
    assert caught.value.suggestions[0] == "halving_doubling"
    assert refusal(lambda: choreo.build("barrier", "zzz", 4)).startswith("there is no barrier algorithm 'zzz'; known: ")
    message = refusal(lambda: choreo.build("all_to_all", "ring", 4))
    assert re.fullmatch(
        r"ring does not do all_to_all, only .*all_reduce.*; all_to_all is done by .*pairwise.*", message
    )


def test_an_option_may_be_false(write: Write) -> None:
    file = write(
        "@choreo.algorithm('broadcast')\n"
        "def f(ranks, root, careful=True):\n"
        "    if not careful:\n"
        "        raise choreo.RefusedError('f was told not to be careful')\n"
        "    return choreo.build('broadcast', 'mst', ranks, root=root)\n"
    )
    choreo.load_algorithms(file)
    assert choreo.build("broadcast", "mine", 4, careful=True).ranks == 4
    with pytest.raises(choreo.RefusedError, match="not to be careful"):
        choreo.build("broadcast", "mine", 4, careful=False)


# What an algorithm gives back

WRONG_RETURNS = [
    ("nothing", "pass", "returned NoneType, not a Schedule"),
    ("a list", "return []", "returned list, not a Schedule"),
    ("the class", "return choreo.Schedule", "returned type, not a Schedule"),
    ("other ranks", 'return choreo.build("all_reduce", "ring", ranks + 1)', "was asked for 4 ranks but returned <Sch"),
    ("another collective", 'return choreo.build("all_gather", "ring", ranks)', "returned another collective: <Sched"),
    ("an exception", "raise KeyError('k')", "failed at 4 ranks at line 4: KeyError: 'k'"),
    ("an exception of two lines", "raise ValueError('a\\nb')", "failed at 4 ranks at line 4: ValueError: a"),
    ("an assertion", "assert ranks == 3, 'only three'", "failed at 4 ranks at line 4: AssertionError: only three"),
    ("a list that is too short", "return [][ranks]", "at line 4: IndexError: list index out of range"),
    ("an exit", "raise SystemExit(0)", "failed at 4 ranks at line 4: SystemExit"),
    ("itself", 'return choreo.build("all_reduce", "mine", ranks)', "at line 4: RecursionError: "),
]


@pytest.mark.parametrize(("text", "message"), [w[1:] for w in WRONG_RETURNS], ids=[w[0] for w in WRONG_RETURNS])
def test_algorithms_that_give_back_something_else(write: Write, text: str, message: str) -> None:
    choreo.load_algorithms(write(body(text)))
    told = refusal(lambda: choreo.build("all_reduce", "mine", 4))
    assert told.startswith("all_reduce by mine (mine.py) ")
    assert message in told


def test_another_root_is_refused(write: Write) -> None:
    text = 'return choreo.build("broadcast", "mst", ranks)'
    choreo.load_algorithms(write(body(text, "broadcast", "ranks, root")))
    assert choreo.build("broadcast", "mine", 4).root == 0
    told = refusal(lambda: choreo.build("broadcast", "mine", 4, root=2))
    assert told == (
        "broadcast by mine (mine.py) was asked for root 2 but returned <Schedule broadcast by mst: 4 ranks, root 0, 1 "
        "chunk, 2 steps>; take a parameter root and pass it on"
    )


@pytest.mark.parametrize("parameters", ["", "ranks, root, more", "*, ranks"])
def test_parameters_that_do_not_fit(write: Write, parameters: str) -> None:
    choreo.load_algorithms(write(body("pass", "broadcast", parameters)))
    told = refusal(lambda: choreo.build("broadcast", "mine", 4))
    assert "broadcast by mine (mine.py) failed at 4 ranks" in told
    assert "TypeError" in told


def test_a_rooted_collective_whose_algorithm_takes_no_root(write: Write) -> None:
    choreo.load_algorithms(write(body('return choreo.build("broadcast", "mst", ranks)', "broadcast")))
    assert choreo.build("broadcast", "mine", 4).root == 0
    assert "take a parameter root" in refusal(lambda: choreo.build("broadcast", "mine", 4, root=1))


LATE = [
    ("a step that is not there", "from_function", "lambda k: [][k]", "IndexError"),
    ("a step that is nothing", "from_function", "lambda k: None", ""),
    (
        "a rule with an if",
        "from_rule",
        "lambda k: choreo.move(0, 1, 0) if k else choreo.move(1, 0, 0)",
        "from_function",
    ),
    ("a rule that fails", "from_rule", "lambda k: 1 // 0", "ZeroDivisionError"),
]


@pytest.mark.parametrize(("kind", "step", "error"), [late[1:] for late in LATE], ids=[late[0] for late in LATE])
@pytest.mark.parametrize("verb", ["prove", "columns"])
def test_steps_that_fail_when_they_are_made(write: Write, kind: str, step: str, error: str, verb: str) -> None:
    """Steps are made when they are asked for; a mistake in them is the algorithm's, with its file and line."""
    text = f'return choreo.Schedule.{kind}("all_reduce", ranks, 3, {step})'
    choreo.load_algorithms(write(body(text)))

    def use() -> object:
        schedule = choreo.build("all_reduce", "mine", 4)
        return choreo.prove(schedule) if verb == "prove" else schedule.columns()

    with pytest.raises(choreo.ChoreoError) as caught:
        use()
    assert "mine" in str(caught.value)
    if error:  # what the step itself raised, and not what it gave back
        assert error in str(caught.value)
        assert "line 4" in str(caught.value)


def test_rows_out_of_range_name_the_place(write: Write) -> None:
    text = 'return choreo.Schedule.from_list("all_reduce", ranks, [choreo.move(0, ranks, 0)])'
    choreo.load_algorithms(write(body(text)))
    with pytest.raises(choreo.ScheduleError, match="dst 4 is out of range; with 4 ranks it must be 0 to 3") as caught:
        choreo.prove(choreo.build("all_reduce", "mine", 4))
    assert caught.value.field == "steps[0][0].dst"


# What an algorithm needs


def test_a_need_is_refused_with_what_to_use_instead(write: Write) -> None:
    code = body('return choreo.build("all_reduce", "halving_doubling", ranks)')
    file = write(code.replace('("all_reduce")', '("all_reduce", requires=choreo.POWER_OF_TWO)', 1))
    (found,) = choreo.load_algorithms(file)
    assert found.requires is choreo.POWER_OF_TWO
    for ranks in (1, 2, 4, 64):
        choreo.prove(choreo.build("all_reduce", "mine", ranks))
    for ranks in (3, 5, 6, 7, 33):
        with pytest.raises(choreo.RefusedError) as caught:
            choreo.build("all_reduce", "mine", ranks)
        told = str(caught.value)
        assert told.startswith(
            f"all_reduce by mine needs a number of ranks that is a power of two, not {ranks}; use bine, direct, "
        )
        assert told.endswith(" instead")
        suggested = re.findall(r"[a-z_]+", told.split("; use ")[1].removesuffix(" instead").replace(" or ", " "))
        assert "mine" not in suggested
        assert set(suggested) == {a.name for a in list_algorithms("all_reduce") if a.requires is None}
    assert not issubclass(choreo.RefusedError, choreo.UsageError)


def test_an_even_need() -> None:
    @choreo.algorithm("all_reduce", name="even", requires=choreo.EVEN)
    def even(ranks: int) -> choreo.Schedule:
        return choreo.build("all_reduce", "ring", ranks)

    choreo.build("all_reduce", "even", 6)
    with pytest.raises(choreo.RefusedError, match="needs an even number of ranks, not 7"):
        choreo.build("all_reduce", "even", 7)


def test_a_need_that_fails(write: Write) -> None:
    code = body('return choreo.build("all_reduce", "ring", ranks)')
    need = 'requires=choreo.Requirement("luck", lambda p: 1 // 0)'
    choreo.load_algorithms(write(code.replace('("all_reduce")', f'("all_reduce", {need})', 1)))
    assert "mine" in refusal(lambda: choreo.build("all_reduce", "mine", 4))
