"""A schedule as the document that the page edits."""

from __future__ import annotations

from typing import TypedDict

from choreo.errors import UsageError
from choreo.explore.fields import FieldError, Fields, case_of, transfers_of
from choreo.schedule.document import to_document

__all__ = ["Written", "document"]

# The limit of what a person can edit, and a URL can hold.
MOST_EDITED = 2000


class Written(TypedDict):
    """The JSON form of a schedule, as a person writes it."""

    text: str


def document(fields: Fields) -> Written:
    """The schedule that the fields name, as text.

    >>> document(Fields(ranks=2))["text"].splitlines()[1]
    '  "collective": "all_reduce",'
    """
    schedule = case_of(fields).schedule
    if transfers_of(schedule, MOST_EDITED) > MOST_EDITED:
        what = f"{schedule.label} over {schedule.ranks} ranks"
        message = f"{what} has more than {MOST_EDITED} transfers; edit one of fewer ranks"
        raise FieldError("ranks", UsageError(message))
    return {"text": to_document(schedule).decode()}
