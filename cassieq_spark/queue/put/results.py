"""The results of a put, for its rows and its messages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from uuid import UUID

from cassieq_spark.errors import CassieqError, PutAmbiguous, copied
from cassieq_spark.model.dedup import stored_key
from cassieq_spark.model.frozen import frozen
from cassieq_spark.model.ids import BucketNo, LaneId, Runs, message_id_of
from cassieq_spark.queue.lane import Lane
from cassieq_spark.queue.put.encode import Packed


@frozen
@dataclass(frozen=True, slots=True, kw_only=True)
class PutResult:
    """The result of one message.

    Attributes:
        message_id: The message's own id; for a duplicate, the id of the message put before.
        duplicate: Whether its key was put already within the queue's window, so nothing was stored.
    """

    message_id: str
    duplicate: bool


@dataclass(frozen=True, slots=True)
class Puts:
    """The results of all messages of one call, in order.

    Attributes:
        message_ids: The id of each message; empty for a message that is not stored.
        duplicates: The positions of messages whose key was put already.
        unknown: The positions of messages that may or may not be delivered.
        missing: The positions of messages that are not stored, and never will be.
        failure: The error because of which these are not stored.
        doubt: The error because of which others are unknown.
    """

    message_ids: list[str]
    duplicates: frozenset[int] = frozenset()
    unknown: frozenset[int] = frozenset()
    missing: frozenset[int] = frozenset()
    failure: CassieqError | None = None
    doubt: CassieqError | None = None

    @classmethod
    def joined(cls, parts: Sequence[Puts], places: Sequence[Sequence[int]]) -> Puts:
        """Join the results of several parts, in the order of the call.

        Args:
            places: For each part, the positions of its messages in the call.
        """
        found: dict[int, str] = {}
        duplicates: set[int] = set()
        for part, at in zip(parts, places, strict=True):
            found.update(zip(at, part.message_ids, strict=True))
            duplicates.update(at[one] for one in part.duplicates)
        return cls([found[at] for at in range(len(found))], frozenset(duplicates))

    def chosen(self, positions: Sequence[int]) -> Puts:
        """Return the results of the messages at these positions, in that order."""

        def among(some: frozenset[int]) -> frozenset[int]:
            return some and frozenset(at for at, one in enumerate(positions) if one in some)

        return Puts(
            [self.message_ids[at] for at in positions],
            among(self.duplicates),
            among(self.unknown),
            among(self.missing),
            self.failure,
            self.doubt,
        )

    def checked(self, queue: str) -> Puts:
        """Return these results, if all messages are stored.

        Raises:
            PutAmbiguous: Not all are stored, but some are or may be; the error names both.
            CassieqError: Nothing was stored.
        """
        if not self.unknown and not self.missing:
            return self
        failure = self.failure
        if failure is not None and len(self.missing) == len(self.message_ids):
            raise copied(failure)
        unknown = [self.message_ids[at] for at in sorted(self.unknown)]
        lacks = self.unknown | self.missing
        stored = [one for at, one in enumerate(self.message_ids) if at not in lacks]
        raise ambiguous(queue, unknown, stored, self.doubt) from self.doubt or failure

    @property
    def each(self) -> list[PutResult]:
        """The result of each message."""
        return [
            PutResult(message_id=one, duplicate=at in self.duplicates)
            for at, one in enumerate(self.message_ids)
        ]


@dataclass(frozen=True, slots=True)
class Once:
    """The messages of one call without those whose key came before in the same call.

    Attributes:
        positions: The positions of messages that are to be put, ascending.
        keys: The key of each of these, as stored; all are different.
        stands_for: For each message of the call, the index in ``positions`` of the one put.
    """

    positions: list[int]
    keys: list[bytes | None]
    stands_for: list[int]

    @classmethod
    def of(cls, keys: Sequence[str | None]) -> Once:
        """Compare the keys of one call with each other; None equals no other key."""
        first: dict[str, int] = {}
        positions: list[int] = []
        stands_for: list[int] = []
        for at, key in enumerate(keys):
            index = len(positions) if key is None else first.setdefault(key, len(positions))
            if index == len(positions):
                positions.append(at)
            stands_for.append(index)
        return cls(
            positions=positions,
            keys=[None if (key := keys[at]) is None else stored_key(key) for at in positions],
            stands_for=stands_for,
        )

    def results(self, put: Puts) -> Puts:
        """Derive the results of all messages from those of the messages that were put."""
        new = {at for index, at in enumerate(self.positions) if index not in put.duplicates}
        duplicates = frozenset(range(len(self.stands_for))) - new
        return replace(put.chosen(self.stands_for), duplicates=duplicates)


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
        ids: list[str] = []
        duplicates: set[int] = set()
        unknown: set[int] = set()
        missing: set[int] = set()
        for at, row in enumerate(rows):
            its = range(len(ids), len(ids) + row.count)
            one = self.done.get(at) or self.unsettled.get(at)
            ids += [""] * row.count if one is None else _message_ids(lane, one)
            if one is None:
                missing.update(its)
            elif at in self.unsettled:
                unknown.update(its)
            elif one.put_before is not None:
                duplicates.update(its)
        return Puts(
            ids,
            frozenset(duplicates),
            frozenset(unknown),
            frozenset(missing),
            self.failure,
            self.doubt,
        )


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
