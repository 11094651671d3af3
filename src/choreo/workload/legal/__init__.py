"""Check whether a plan can be run, with a table of rules. The error quotes the first rule that a plan breaks."""

from choreo.workload.legal.legal import RULES, broken_rule, check_plan
from choreo.workload.legal.rule import BALANCED, LISTED, Columns, Request, Rule
from choreo.workload.legal.stages import CHUNK_EXTRAS, STAGE_EXTRAS, divisors, even

__all__ = [
    "BALANCED",
    "CHUNK_EXTRAS",
    "LISTED",
    "RULES",
    "STAGE_EXTRAS",
    "Columns",
    "Request",
    "Rule",
    "broken_rule",
    "check_plan",
    "divisors",
    "even",
]
