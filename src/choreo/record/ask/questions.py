"""Named questions: each is a query that both SQLite and DuckDB answer, and sometimes a step in Python after it."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from choreo.errors import UnknownNameError, UsageError
from choreo.record.ask.answer import Answer, Engine
from choreo.record.ask.rank_test import larger_p
from choreo.record.ask.sql import engine
from choreo.record.store.machine import this_machine

__all__ = ["QUESTIONS", "Question", "ask"]

Values = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Question:
    """The question, its parameters, the query, and how its rows are processed."""

    summary: str
    sql: str
    parameters: Callable[[Values], list[Any]]
    takes: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    finish: Callable[[Answer, Values], Answer] | None = None


def ask(name: str, *, store: str | Path | None = None, oltp: bool = False, **values: Any) -> Answer:
    """Answer a named question; `values` are what it takes, such as `commit` or `limit`.

    >>> import choreo, tempfile
    >>> from choreo.record import ask
    >>> model = choreo.CostModel("5us", "50GB/s")
    >>> prices = [choreo.price(choreo.build("all_reduce", "ring", 8), size, model) for size in (8, 64)]
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     kept = choreo.record(prices, store=folder, cost_model=model)
    ...     ask("constants", store=folder, oltp=True).to_dicts()[0]["kind"]
    'cost model'
    """
    if name not in QUESTIONS:
        raise UnknownNameError("question", name, QUESTIONS)
    question = QUESTIONS[name]
    for option in values:
        if option not in question.takes:
            known = ", ".join(question.takes)
            raise UsageError(f"the question {name!r} takes no {option}; it takes {known or 'nothing'}")
    missing = [need for need in question.needs if values.get(need) is None]
    if missing:
        raise UsageError(f"the question {name!r} needs {' and '.join(missing)}: --{missing[0]} VALUE")
    chosen = {option: value for option, value in values.items() if value is not None}
    with engine(store, oltp=oltp) as answer:
        return _answered(question, answer, chosen)


def _answered(question: Question, answer: Engine, chosen: Values) -> Answer:
    found = answer(question.sql, question.parameters(chosen))
    return found if question.finish is None else question.finish(found, chosen)


def _limited(values: Values) -> list[Any]:
    return [int(values.get("rows", 20))]


WORST = """
with off as (
    select *, case when ratio < 1 then 1 / ratio else ratio end as times_off from compared where ratio > 0
), worst as (
    select *, row_number() over (
        partition by source, collective, algorithm, model, size_bytes order by times_off desc, case_, machine) as place
    from off
)
select source, collective, algorithm, model, size_bytes, ranks, topology, predicted_s, measured_s, ratio, samples
from worst where place = 1
order by times_off desc, source, collective nulls last, algorithm nulls last, size_bytes nulls last, case_ limit ?"""

SLOWER = """
with known as (select max(id) as last from run where "commit" like ? and machine = ?)
select c.hash as case_, c.collective, c.algorithm, c.library, c.model, c.ranks, c.size_bytes, s.datatype,
       case when r."commit" like ? then 1 else 0 end as before, r."commit", r.id as run, s.time_s
from measurement s join run r on r.id = s.run join case_ c on c.id = s.case_, known
where r.machine = ? and (r."commit" like ? or r.id > known.last)
order by c.hash, s.datatype nulls last, r.id, s.id"""


def _slower_parameters(values: Values) -> list[Any]:
    commit, machine = f"{values['commit']}%", values.get("machine", this_machine().fingerprint)
    return [commit, machine, commit, machine, commit]


def _slower(found: Answer, values: Values) -> Answer:
    """Compare samples at the commit with those of the newest commit after it, case by case, by a rank test."""
    most_p, least = float(values.get("p", 0.01)), int(values.get("rows", 20))
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in found.to_dicts():
        groups.setdefault((row["case_"], row["datatype"]), []).append(row)
    rows = []
    for group in groups.values():
        old = [row["time_s"] for row in group if row["before"]]
        later = [row for row in group if not row["before"]]
        if not old or not later:
            continue
        newest = later[-1]["commit"]
        new = [row["time_s"] for row in later if row["commit"] == newest]
        p = larger_p(new, old)
        if p <= most_p:
            first, medians = group[0], (statistics.median(old), statistics.median(new))
            about = [first[name] for name in ("collective", "algorithm", "library", "model", "ranks", "size_bytes")]
            rows.append((*about, *medians, medians[1] / medians[0], p, len(old), len(new), newest))
    names = ("collective", "algorithm", "library", "model", "ranks", "size_bytes", "before_s", "after_s", "ratio", "p")
    rows.sort(key=lambda row: (-row[8], str(row)))
    return Answer(found.sql, (*names, "samples_before", "samples_after", "commit"), rows[:least])


WINNERS = """
with timed as (
    select p.case_, p.source, p.time_s, coalesce(k.hash, '') as setting, row_number() over (
        partition by p.case_, p.source, p.constants order by p.id desc) as age
    from prediction p left join constants k on k.id = p.constants where p.source in ('price', 'simulate', 'packets')
    union all
    select s.case_, 'measured' as source, s.time_s, r.machine as setting, case when 2 * row_number() over (
        partition by s.case_, r.machine order by s.time_s, s.id) between
        count(*) over (partition by s.case_, r.machine) and count(*) over (partition by s.case_, r.machine) + 1
        then 1 else 2 end as age
    from measurement s join run r on r.id = s.run
), named as (
    select t.source, t.setting, c.collective, coalesce(c.topology, '') as topology, c.ranks,
           coalesce(c.root, -1) as root, c.size_bytes, c.algorithm, t.time_s
    from timed t join case_ c on c.id = t.case_
    where t.age = 1 and c.algorithm is not null and c.size_bytes is not null
      and coalesce(c.library, 'choreo') = 'choreo'
), first as (
    select *, row_number() over (
            partition by source, setting, collective, topology, ranks, root, size_bytes
            order by time_s, algorithm) as place,
        count(*) over (partition by source, setting, collective, topology, ranks, root, size_bytes) as rivals
    from named
), winner as (
    select *, lead(algorithm) over (
               partition by source, setting, collective, topology, ranks, root order by size_bytes) as next_algorithm,
           lead(size_bytes) over (
               partition by source, setting, collective, topology, ranks, root order by size_bytes) as next_bytes
    from first where place = 1 and rivals > 1
)
select source, collective, topology, ranks, algorithm as wins_until, size_bytes as until_bytes,
       next_algorithm as wins_from, next_bytes as from_bytes
from winner where (algorithm = ? and next_algorithm <> ?) or (algorithm <> ? and next_algorithm = ?)
order by source, collective, topology, ranks, root, setting, size_bytes limit ?"""

CONSTANTS = """
select p.id as prediction, p.source, c.collective, c.algorithm, c.model, c.ranks, c.size_bytes, p.time_s, k.kind,
       k.content, p.code, r.version, r."commit", c.hash as case_
from prediction p join case_ c on c.id = p.case_ join run r on r.id = p.run left join constants k on k.id = p.constants
where c.hash like ? and (? = 0 or p.id = ?)
order by p.id desc limit ?"""

PARETO = """
with latest as (
    select *, row_number() over (partition by case_ order by id desc) as age from prediction where source = 'plan'
), planned as (
    select c.model, c.topology, c.ranks, c.global_batch, coalesce(c.seq, 0) as seq, c.software, c.precision, c.plan,
           p.time_s, p.memory_bytes, c.hash
    from latest p join case_ c on c.id = p.case_ where p.age = 1 and p.memory_bytes is not null
)
select model, topology, ranks, global_batch, seq, software, plan, time_s, memory_bytes
from planned p
where (? = '' or model = ?) and not exists (
    select 1 from planned q
    where q.model = p.model and q.topology = p.topology and q.ranks = p.ranks and q.global_batch = p.global_batch
      and q.seq = p.seq and q.software = p.software
      and q.time_s <= p.time_s and q.memory_bytes <= p.memory_bytes
      and (q.time_s < p.time_s or q.memory_bytes < p.memory_bytes))
order by model, topology, ranks, global_batch, seq, software, time_s, memory_bytes, plan, hash limit ?"""


def _winner_parameters(values: Values) -> list[Any]:
    return [values.get("algorithm", "ring")] * 4 + _limited(values)


def _constants_parameters(values: Values) -> list[Any]:
    number = int(values.get("prediction", 0))
    return [f"{values.get('case', '')}%", number, number, *_limited(values)]


def _pareto_parameters(values: Values) -> list[Any]:
    return [str(values.get("model", ""))] * 2 + _limited(values)


QUESTIONS = {
    "worst": Question(
        "Which predictions are farthest from what was measured, by algorithm and size?", WORST, _limited, ("rows",)
    ),
    "slower": Question(
        "What got slower on this machine since a commit? Samples are compared by a rank test.",
        SLOWER,
        _slower_parameters,
        ("commit", "p", "machine", "rows"),
        ("commit",),
        _slower,
    ),
    "crossover": Question(
        "Where does ring (or another algorithm) stop winning, and who wins then?",
        WINNERS,
        _winner_parameters,
        ("algorithm", "rows"),
    ),
    "constants": Question(
        "Which constants, code and commit made this number?",
        CONSTANTS,
        _constants_parameters,
        ("case", "prediction", "rows"),
    ),
    "pareto": Question(
        "Which plans are Pareto-optimal: no other is both faster and smaller?",
        PARETO,
        _pareto_parameters,
        ("model", "rows"),
    ),
}
