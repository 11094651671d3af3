"""A process that serves the page's requests one after another, until its input ends.

A request is a line of JSON: {"verb": ..., "fields": ...}. Answers are lines of JSON as well: any number with "part",
and a last one with "done" or "error".
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any, BinaryIO

import msgspec

from choreo.errors import ChoreoError
from choreo.explore.fields import FieldError
from choreo.explore.verbs import VERBS
from choreo.malformed import explained

__all__ = ["answers", "main"]

WHOLE = "the request"


def answers(verb: str, fields: bytes) -> Iterator[dict[str, object]]:
    """The answers of a verb of the page; an error has a message and, if known, the field at fault."""
    try:
        module, name, kind = VERBS[verb]
        views = import_module(f"choreo.explore.views.{module}")
        function: Callable[[Any], Any] = getattr(views, name)
        asked = msgspec.json.decode(fields, type=getattr(views, kind))
        answer = function(asked)
        if isinstance(answer, Iterator):
            yield from answer
        else:
            yield {"done": answer}
    except FieldError as error:
        yield {"error": str(error), "field": error.field}
    except ChoreoError as error:
        yield {"error": str(error), "field": ""}
    except msgspec.ValidationError as error:
        field, sentence = explained(error, getattr(views, kind), WHOLE)
        yield {"error": sentence, "field": "" if field == WHOLE else field.partition("[")[0]}
    except MemoryError:
        yield {"error": "there is not enough memory for this; use fewer ranks", "field": "ranks"}
    except Exception as error:
        traceback.print_exc()
        yield {"error": f"a mistake in choreo itself: {type(error).__name__}: {error}", "field": ""}


class _Asked(msgspec.Struct):
    verb: str
    fields: msgspec.Raw


def main(asks: BinaryIO, tells: BinaryIO) -> None:
    """Answer requests until the input ends."""
    for line in asks:
        asked = msgspec.json.decode(line, type=_Asked)
        for answer in answers(asked.verb, bytes(asked.fields)):
            tells.write(msgspec.json.encode(answer) + b"\n")
            tells.flush()


if __name__ == "__main__":
    out = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # nothing else may write among the answers
    main(sys.stdin.buffer, out)
