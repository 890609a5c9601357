"""What became of the messages of one put."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from cassieq_spark.errors import CassieqError, PutAmbiguous
from cassieq_spark.model.dedup import stored_key
from cassieq_spark.model.frozen import frozen
from cassieq_spark.model.ids import BucketNo, Runs, message_id_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from uuid import UUID

    from cassieq_spark.model.ids import LaneId
    from cassieq_spark.queue.lane import Lane
    from cassieq_spark.queue.put.encode import Packed


@frozen
@dataclass(frozen=True, slots=True, kw_only=True)
class PutResult:
    """What became of one message.

    Attributes:
        message_id: The message's own; of a duplicate, that of the message put before.
        duplicate: Its key was put already, within the queue's window: nothing was stored.
    """

    message_id: str
    duplicate: bool


@dataclass(frozen=True, slots=True)
class Puts:
    """What became of all messages of one call, in order.

    Attributes:
        duplicates: The positions of those whose key was put already.
    """

    message_ids: list[str]
    duplicates: frozenset[int] = frozenset()

    @classmethod
    def joined(cls, parts: Sequence[Puts], places: Sequence[Sequence[int]]) -> Puts:
        """Those of several parts, in the order of the call.

        Args:
            places: For each part, where its messages are in the call.
        """
        found: dict[int, str] = {}
        duplicates: set[int] = set()
        for part, at in zip(parts, places, strict=True):
            found.update(zip(at, part.message_ids, strict=True))
            duplicates.update(at[one] for one in part.duplicates)
        return cls([found[at] for at in range(len(found))], frozenset(duplicates))

    @property
    def each(self) -> list[PutResult]:
        """A result for each message."""
        return [
            PutResult(message_id=one, duplicate=at in self.duplicates)
            for at, one in enumerate(self.message_ids)
        ]


@dataclass(frozen=True, slots=True)
class Once:
    """The messages of one call, those left out whose key came before in the same call.

    Attributes:
        positions: Of those that are to be put, ascending.
        keys: The key of each of these, as stored; all different.
        stands_for: For each message of the call, the index in ``positions`` of the one put.
    """

    positions: list[int]
    keys: list[bytes | None]
    stands_for: list[int]

    @classmethod
    def of(cls, keys: Sequence[str | None]) -> Once:
        """Compare the keys of one call among themselves; None is equal to none."""
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
        """The results of all messages, from those of the messages that were put."""
        new = {at for index, at in enumerate(self.positions) if index not in put.duplicates}
        return Puts(
            [put.message_ids[index] for index in self.stands_for],
            frozenset(set(range(len(self.stands_for))) - new),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """Where a row goes, or went.

    Attributes:
        first: The offset of its first message.
        put_before: The message id of an earlier put of its key: this row was not stored.
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


def results(lane: Lane, placed: Iterable[Placed]) -> Puts:
    """What became of each message of a put."""
    placed = list(placed)
    duplicates = []
    at = 0
    for one in placed:
        if one.put_before is not None:
            duplicates.append(at)
        at += one.packed.count
    return Puts(message_id_texts(lane, placed), frozenset(duplicates))


def message_id_texts(lane: Lane, placed: Iterable[Placed]) -> list[str]:
    """The id of each message, in order: what its producer chose, else one made of lane and id."""
    return [
        message_id_of(one.lane, one.bucket * lane.bucket_size + one.first + at, chosen)
        if one.put_before is None
        else str(one.put_before)
        for one in placed
        for at, chosen in enumerate(one.packed.message_ids)
    ]


def ambiguous(lane: Lane, unsettled: Iterable[Placed], stored: Iterable[Placed]) -> PutAmbiguous:
    """The error of a put of which something is unknown, or a part is not stored."""
    unknown = message_id_texts(lane, unsettled)
    known = message_id_texts(lane, stored)
    what = (
        f"{len(unknown)} messages may or may not be delivered: their bucket could be neither "
        "proven open nor sealed"
        if unknown
        else "a part of the messages could not be stored"
    )
    return PutAmbiguous(
        f"put into queue {lane.queue!r}: {what}; {len(known)} are stored. Before you put messages "
        "of unknown outcome again, look for their message ids where they are consumed; what has a "
        "deduplication key can be put again with it. Put those "
        "again that the error names neither as unknown nor as stored",
        message_ids=tuple(unknown),
        stored=tuple(known),
    )


def after_a_part(queue: str, stored: Iterable[str], failure: CassieqError) -> CassieqError:
    """The error of a call of which a part was stored before another one failed."""
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
