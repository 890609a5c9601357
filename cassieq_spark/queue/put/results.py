"""The results of a put, for its rows and its messages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Self
from uuid import UUID

from cassieq_spark.errors import CassieqError, PutAmbiguous
from cassieq_spark.model.ids import BucketNo, LaneId, Runs, message_id_of
from cassieq_spark.queue.lane import Lane
from cassieq_spark.queue.put.encode import Packed
from cassieq_spark.store.caller import copied


class PutResult(str):
    """The id of a message that was put; for a duplicate, the id of the message put before.

    Attributes:
        duplicate: Whether its key was put already within the queue's window, so nothing was stored.
    """

    __slots__ = ("duplicate",)
    duplicate: bool

    def __new__(cls, message_id: str, *, duplicate: bool = False) -> Self:
        """Make a message id of a text."""
        made = super().__new__(cls, message_id)
        made.duplicate = duplicate
        return made

    def __getnewargs_ex__(self) -> tuple[tuple[str], dict[str, bool]]:
        """Copy and pickle both parts."""
        return (str(self),), {"duplicate": self.duplicate}

    def __repr__(self) -> str:
        """Show both parts."""
        return f"PutResult({str(self)!r}, duplicate={self.duplicate})"

    @property
    def message_id(self) -> str:
        """The id as a plain text."""
        return str(self)


class State(Enum):
    """The result of one message."""

    STORED = "it is delivered"
    DUPLICATE = "its key was put before, so it is not stored"
    UNKNOWN = "it may or may not be delivered"
    MISSING = "it is not stored, and never will be"


Each = tuple[str, State]
"""A message's id, which is empty if it is not stored, and its result."""


@dataclass(frozen=True, slots=True)
class Puts:
    """The results of all messages of one call.

    Attributes:
        each: The result of each message, in order.
        failure: The error because of which some are missing.
        doubt: The error because of which others are unknown.
    """

    each: list[Each]
    failure: CassieqError | None = None
    doubt: CassieqError | None = None

    def ids(self, *states: State) -> list[str]:
        """Return the ids of the messages with one of these results, in order."""
        return [message_id for message_id, state in self.each if state in states]

    @property
    def results(self) -> list[PutResult]:
        """The result of each message, if all are stored."""
        return [
            PutResult(message_id, duplicate=state is State.DUPLICATE)
            for message_id, state in self.each
        ]

    def checked(self, queue: str) -> Puts:
        """Return these results, if all messages are stored.

        Raises:
            PutAmbiguous: Not all are stored, but some are or may be; the error names both.
            CassieqError: Nothing was stored.
        """
        unknown, missing = self.ids(State.UNKNOWN), self.ids(State.MISSING)
        if not unknown and not missing:
            return self
        failure = self.failure
        if failure is not None and len(missing) == len(self.each):
            raise copied(failure)
        stored = self.ids(State.STORED, State.DUPLICATE)
        raise ambiguous(queue, unknown, stored, self.doubt) from self.doubt or failure


def firsts(keys: Sequence[str | None]) -> tuple[list[int], list[int]]:
    """Compare the keys of one call with each other; None equals no other key.

    Returns:
        The positions of the messages whose key did not come before, and for each message the index
        in this list of the one that stands for it.
    """
    first: dict[str, int] = {}
    positions: list[int] = []
    stands_for: list[int] = []
    for at, key in enumerate(keys):
        index = len(positions) if key is None else first.setdefault(key, len(positions))
        if index == len(positions):
            positions.append(at)
        stands_for.append(index)
    return positions, stands_for


def for_all(
    each: Sequence[Each], positions: Sequence[int], stands_for: Sequence[int]
) -> list[Each]:
    """Return the results of all messages of a call, from those of the messages that were put."""
    found = [each[index] for index in stands_for]
    for at, (message_id, state) in enumerate(found):
        if state is State.STORED and positions[stands_for[at]] != at:
            found[at] = message_id, State.DUPLICATE
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """A row with the place that it was or will be written to.

    Attributes:
        first: The offset of its first message.
        put_before: The message id of an earlier put of its key; then this row was not stored.
    """

    lane: LaneId
    bucket: BucketNo
    first: int
    packed: Packed
    put_before: UUID | None = None

    @property
    def runs(self) -> Runs:
        """The row's offsets."""
        return Runs.span(self.first, self.first + self.packed.count - 1)


@dataclass(slots=True)
class Outcome:
    """The outcome of the rows of one put, by position. A row in neither map is not stored.

    Attributes:
        done: Rows that are delivered, or whose key was put before.
        unsettled: Rows that may or may not be delivered.
        failure: The error because of which others are not stored.
        doubt: The error because of which some are unsettled.
    """

    done: dict[int, Placed] = field(default_factory=dict)
    unsettled: dict[int, Placed] = field(default_factory=dict)
    failure: CassieqError | None = None
    doubt: CassieqError | None = None

    def rest(self, count: int) -> list[int]:
        """Return the positions, out of ``count``, of rows that are not stored."""
        return [at for at in range(count) if at not in self.done and at not in self.unsettled]

    def puts(self, lane: Lane, rows: Sequence[Packed]) -> Puts:
        """Return the result of each message of these rows."""
        each: list[Each] = []
        for at, row in enumerate(rows):
            one = self.done.get(at) or self.unsettled.get(at)
            if one is None:
                each += [("", State.MISSING)] * row.count
                continue
            state = State.STORED if one.put_before is None else State.DUPLICATE
            state = State.UNKNOWN if at in self.unsettled else state
            each += [(message_id, state) for message_id in _message_ids(lane, one)]
        return Puts(each, self.failure, self.doubt)


def _message_ids(lane: Lane, placed: Placed) -> list[str]:
    """Return the id of each message of a row: the producer's, or one made of lane and id."""
    if placed.put_before is not None:
        return [str(placed.put_before)]
    first = placed.bucket * lane.bucket_size + placed.first
    chosen = placed.packed.message_ids
    return [message_id_of(placed.lane, first + at, one) for at, one in enumerate(chosen)]


def ambiguous(
    queue: str, unknown: Sequence[str], stored: Sequence[str], doubt: CassieqError | None
) -> PutAmbiguous:
    """Make the error of a put with unknown messages, or of which a part is not stored."""
    what = (
        f"{len(unknown)} messages may or may not be delivered: their bucket could be neither "
        "proven open nor sealed"
        if unknown
        else "a part of the messages could not be stored"
    )
    why = "" if doubt is None else f" ({doubt.message})"
    return PutAmbiguous(
        f"put into queue {queue!r}: {what}{why}; {len(stored)} are stored. Before you put messages "
        "of unknown outcome again, look for their message ids where they are consumed; what has a "
        "deduplication key can be put again with it. Put those "
        "again that the error names neither as unknown nor as stored",
        message_ids=tuple(unknown),
        stored=tuple(stored),
    )


def after_a_part(queue: str, stored: Iterable[str], failure: CassieqError) -> CassieqError:
    """Make the error of a call of which a part was stored before another part failed."""
    known = tuple(stored)
    unknown: tuple[str, ...] = ()
    if isinstance(failure, PutAmbiguous):
        known, unknown = (*known, *failure.stored), failure.message_ids
    return PutAmbiguous(
        f"put into queue {queue!r}: {len(known)} messages are stored, of {len(unknown)} it is "
        f"unknown, and the rest is not stored: {failure.message}",
        message_ids=unknown,
        stored=known,
    )
