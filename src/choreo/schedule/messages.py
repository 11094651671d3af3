"""Messages: the transfers of one step between the same two members travel together."""

from __future__ import annotations

import numpy as np

from choreo.schedule.transfers import BoolColumn, IntColumn, Transfers

__all__ = ["first_rows", "message_of"]

# Use a table over all possible pairs while it has at most this many entries per row, and sort otherwise.
DENSE = 4


def message_of(rows: Transfers) -> IntColumn:
    """The number of each row's message; messages are numbered in the order of their first rows.

    `rows` are in order of their steps.

    >>> from choreo import Schedule, move
    >>> steps = [move([0, 2, 0], [1, 0, 1], [0, 1, 2]), move(0, 1, 3)]
    >>> message_of(Schedule.from_list("all_gather", 4, steps).columns())
    array([0, 1, 0, 2])
    """
    step, src, dst = rows.step, rows.src, rows.dst
    if ((src[1:] > src[:-1]) | (step[1:] > step[:-1])).all():  # no member sends twice in a step
        return np.arange(len(rows))
    # Rows of one message often follow one another.
    goes_on: BoolColumn = src[1:] == src[:-1]
    if goes_on.any():
        goes_on &= (dst[1:] == dst[:-1]) & (step[1:] == step[:-1])
    if not goes_on.any():
        return _number(step, src, dst)
    opens = np.concatenate(([True], ~goes_on))
    number: IntColumn = _number(step[opens], src[opens], dst[opens])[np.cumsum(opens) - 1]
    return number


def first_rows(message: IntColumn) -> IntColumn:
    """The first row of each message, given each row's.

    >>> first_rows(np.array([0, 1, 0, 2]))
    array([0, 1, 3])
    """
    return np.flatnonzero(np.diff(np.maximum.accumulate(message), prepend=-1))


def _number(step: IntColumn, src: IntColumn, dst: IntColumn) -> IntColumn:
    """The same for rows of which none continues the message of the row before it."""
    if not len(step):
        return np.zeros(0, np.int64)
    members = int(max(src.max(), dst.max())) + 1
    senders = (int(step[-1] - step[0]) + 1) * members
    sender = (step - step[0]) * members + src
    if senders <= DENSE * len(step):
        if np.bincount(sender).max() == 1:
            return np.arange(len(step))
        # Often each member sends to a few others at the same distances: these pairs are few enough to count.
        distance = dst - src + members
        seen = np.zeros(2 * members, np.bool_)
        seen[distance] = True
        distances = np.count_nonzero(seen)
        if senders * distances <= DENSE * len(step):
            place = np.cumsum(seen) - 1
            if np.bincount(sender * distances + place[distance]).max() == 1:
                return np.arange(len(step))
    if senders * members >= 1 << 63:  # the numbers of pairs would overflow
        sender = np.unique(sender, return_inverse=True)[1]
    pair = sender * members + dst
    if senders * members <= DENSE * len(step) and np.bincount(pair).max() == 1:
        return np.arange(len(step))
    order = np.argsort(pair, kind="stable")
    opens = np.diff(pair[order], prepend=-1) != 0
    number = np.empty(np.count_nonzero(opens), np.int64)
    number[np.argsort(order[opens])] = np.arange(len(number))
    message = np.empty(len(pair), np.int64)
    message[order] = number[np.cumsum(opens) - 1]
    return message
