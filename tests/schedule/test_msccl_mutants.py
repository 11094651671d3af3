"""Files of MSCCL that were changed at random: one that is proved is right in every execution."""

from __future__ import annotations

import re
from random import Random

import pytest

from choreo.algorithms import build
from choreo.errors import FormatError, ProofError
from choreo.prove import prove
from choreo.schedule.exchange.msccl.read import read_msccl
from choreo.schedule.exchange.msccl.write import write_msccl
from tests.oracles.msccl import run_msccl
from tests.oracles.thread_blocks import Stuck
from tests.schedule.test_msccl import ALGORITHMS, STORIES


def _mutant(content: bytes, random: Random) -> bytes:
    """One number or type of a step changed, a dependency dropped, or two steps swapped."""
    lines = content.decode().splitlines()
    at = random.choice([n for n, line in enumerate(lines) if "<step" in line])
    match random.randrange(5):
        case 0:
            lines[at] = re.sub(r'depid="-?\d+" deps="-?\d+"', 'depid="-1" deps="-1"', lines[at])
        case 1:
            name = random.choice(("srcoff", "dstoff"))
            lines[at] = re.sub(
                rf'{name}="(\d+)"', lambda m: f'{name}="{max(0, int(m[1]) + random.choice((-1, 1)))}"', lines[at]
            )
        case 2:
            lines[at] = re.sub(
                r'type="(\w+)"',
                f'type="{random.choice(("s", "r", "rrc", "rrs", "rcs", "rrcs", "cpy", "re"))}"',
                lines[at],
            )
        case 3:
            lines[at] = re.sub(r'(src|dst)buf="\w"', lambda m: f'{m[1]}buf="{random.choice("ios")}"', lines[at])
        case _ if "<step" in lines[at + 1]:
            numbers = [re.search(r' s="\d+"', lines[n])[0] for n in (at, at + 1)]  # type: ignore[index]
            swapped = [lines[at + 1].replace(numbers[1], numbers[0], 1), lines[at].replace(numbers[0], numbers[1], 1)]
            lines[at : at + 2] = swapped
    return re.sub(r' round="\d+"', "", "\n".join(lines)).encode()


def _check_mutants(cases: int, runs: int) -> None:
    random = Random(7)
    wrong = 0
    for _ in range(cases):
        found = random.choice(ALGORITHMS)
        ranks = random.choice((2, 3, 4))
        mutant = _mutant(write_msccl(build(found.collective, found.name, ranks)), random)
        flags = re.search(rb'inplace="(\d)" outofplace="(\d)"', mutant)
        assert flags is not None
        modes = [place for place, flag in ((True, flags[1]), (False, flags[2])) if flag == b"1"]
        try:
            prove(read_msccl(mutant))
        except (FormatError, ProofError):
            wrong += 1
            continue
        for place in modes * runs:
            assert run_msccl(mutant, random, in_place=place, room=1 << 20, at_once=1 << 20), mutant.decode()
    assert cases / 5 < wrong < cases


def test_a_mutant_that_is_proved_is_right_in_every_execution() -> None:
    _check_mutants(120, 3)


@pytest.mark.grid
def test_many_mutants() -> None:
    _check_mutants(4000, 10)


def test_a_race_shows_in_some_execution() -> None:
    """The oracle can tell: without its dependencies a right program goes wrong now and then."""
    content = write_msccl(build("all_reduce", "recursive_doubling", 4))
    loose = re.sub(rb'depid="\d+" deps="\d+"', b'depid="-1" deps="-1"', content)
    with pytest.raises(ProofError, match="race"):
        read_msccl(loose)
    assert not all(run_msccl(loose, Random(n), in_place=True) for n in range(50))
    with pytest.raises(Stuck):
        run_msccl(STORIES["deadlock"][0], Random(0), in_place=True)
