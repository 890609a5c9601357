"""Define the life of one bucket: statuses, content, moves (docs/design/ids-and-buckets.md).

    singles:  (no row) -> sealing -> sealed -> drained -> dropped
    bulk:     (no row) -> writing -> prepared -> sealed | void -> dropped

An open bucket has no row, and neither has a dropped one: only the repair pointer tells the two
apart (G5). All functions are pure; a move that is not in the diagram raises `IllegalMove`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from uuid import UUID

from cassieq_spark.model import dead as dead_sets
from cassieq_spark.model.dead import DeadSet
from cassieq_spark.model.expiry import FOR_EVER, Delayed, Expiring, Life, Times, times_of
from cassieq_spark.model.ids import EMPTY, BucketNo, Runs, union
from cassieq_spark.model.row_limits import FURTHER_OWNERS, OWNERS_BYTES, PREFERRED_LEASES


class Status(StrEnum):
    """The status in a bucket row."""

    SEALING = "sealing"
    SEALED = "sealed"
    WRITING = "writing"
    PREPARED = "prepared"
    VOID = "void"
    DRAINED = "drained"
    CORRUPT = "corrupt"
    """The status of an unreadable row, in a scan of many; no stored row has it. Such a bucket is
    neither open nor finished: nothing of it is delivered, and no pointer passes it [T21]."""


MEANS_NOTHING_ALONE = frozenset({Status.SEALING, Status.WRITING})
"""Statuses that, like no row, mean nothing until the repair pointer is read afterwards (G5)
[P2]."""

OF_A_SINK = frozenset({Status.WRITING, Status.PREPARED})
"""Statuses in a sink's transaction: the sink's row decides the bucket's fate (I7) [P1]."""

FINISHED = frozenset({Status.VOID, Status.DRAINED})
"""Statuses of a bucket from which nothing is ever delivered again."""


class IllegalMove(ValueError):
    """A move that the module's diagram does not have: a caller's mistake, never a normal state."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkRef:
    """The transaction that a bulk bucket belongs to.

    Attributes:
        epoch: The sink row's epoch as the writing task read it.
        block_end: The first bucket after the reserved block: readers skip the whole block [P22].
    """

    sink_id: str
    epoch: int
    block_end: BucketNo


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """The right of one delivery: exclusive, to some messages, until a point in time (I2).

    Attributes:
        lease_id: A new id for every delivery. If a part of a delivery was extended, several entries
            carry the id, each with its own end: id and offset together name one delivery.
        owner: The name of the holder, for people.
        run: The Spark run that holds it; None outside Spark [P25].
        delivery_count: The delivery count of every message in it, 1 at the first delivery.
        runs: The messages that are not acked yet.
        until_us: The cluster time at which it runs out.
    """

    lease_id: UUID
    owner: str
    run: UUID | None
    delivery_count: int
    runs: Runs
    until_us: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Returned:
    """Messages that were delivered ``deliveries`` times and that nobody holds now."""

    deliveries: int
    runs: Runs


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """A bucket's row, without the columns that the CAS machinery adds.

    Every unacked message is in exactly one of fresh, returned, delayed, leases, dead. A message in
    the manifest and in none of them is acked (I4).

    Attributes:
        status: See the module's diagram.
        changed_us: Cluster time of the CAS that wrote this row.
        manifest: The offsets that exist, for ever (I5).
        size_bytes: Stored bytes of the messages, 0 if nobody counted.
        sink: Set on bulk buckets only.
        fresh: Messages that were never delivered.
        revisions: (offset, revision) of each message that has an updated body, ascending. They are
            here and not in a lease: a re-claim would forget them [P26].
        purged: Messages that a purge dropped unacked: a batch that named them has changed.
        cancelled: Messages that were cancelled before their first delivery.
        expiring: Messages with a time to live, wherever they are; acked ones may be among them.
        expires_us: When all that is left expires, by the queue's retention [U7]; None: never.
        has_keys: A message in it was put with a deduplication key: its manifest is kept when the
            bucket is dropped [U5].
    """

    status: Status
    changed_us: int
    manifest: Runs = EMPTY
    size_bytes: int = 0
    sink: SinkRef | None = None
    fresh: Runs = EMPTY
    returned: tuple[Returned, ...] = ()
    delayed: tuple[Delayed, ...] = ()
    leases: tuple[Lease, ...] = ()
    dead: tuple[DeadSet, ...] = ()
    revisions: tuple[tuple[int, int], ...] = ()
    purged: Runs = EMPTY
    cancelled: Runs = EMPTY
    expiring: tuple[Expiring, ...] = ()
    expires_us: int | None = None
    has_keys: bool = False

    @property
    def is_empty(self) -> bool:
        """Whether nothing is left to deliver, to wait for or to move."""
        return not (self.fresh or self.returned or self.delayed or self.leases or self.dead)

    @property
    def is_behind_reader(self) -> bool:
        """Whether the reader pointer may pass: nothing is left that only the reader's scan finds.

        Leased, returned and delayed messages have an expiry hint instead
        (docs/design/returns-and-hints.md).
        """
        return self.status in FINISHED or (self.status is Status.SEALED and not self.fresh)

    def lease(self, lease_id: UUID) -> Lease | None:
        """Return the lease of this id, its parts as one, with the first end; None: it ended."""
        entries = [lease for lease in self.leases if lease.lease_id == lease_id]
        if not entries:
            return None
        return replace(
            entries[0],
            runs=union(lease.runs for lease in entries),
            until_us=min(lease.until_us for lease in entries),
        )

    @property
    def unacked(self) -> Runs:
        """All messages still to be delivered, waited for or moved; the rest is acked (I4)."""
        return union(
            [
                self.fresh,
                *(part.runs for part in self.returned),
                *(group.runs for group in self.delayed),
                *(lease.runs for lease in self.leases),
                *(part.runs for part in self.dead),
            ]
        )

    def revisions_of(self, runs: Runs) -> tuple[tuple[int, int], ...]:
        """Return the revisions of these messages."""
        return tuple(entry for entry in self.revisions if entry[0] in runs)

    def earliest_return_us(self) -> int | None:
        """Return when the next message comes back by time: 0 if one is back, None if none will."""
        if self.returned:
            return 0
        times = [lease.until_us for lease in self.leases] + [group.due_us for group in self.delayed]
        return min(times, default=None)


def sealing(*, now_us: int) -> Bucket:
    """Return the row that closes an open bucket: from here on no put into it is acknowledged."""
    return Bucket(status=Status.SEALING, changed_us=now_us)


def sealed(
    row: Bucket,
    *,
    manifest: Runs,
    due_us: Mapping[int, int],
    size_bytes: int,
    now_us: int,
    life: Life = FOR_EVER,
    has_keys: bool = False,
) -> Bucket:
    """Fix the content of a closed bucket.

    Args:
        due_us: Offset to due time, for the delayed messages only.
    """
    _require(row, Status.SEALING)
    times = times_of(due_us, life, now_us=now_us)
    after = _filled(row, Status.SEALED, manifest, times, size_bytes=size_bytes, now_us=now_us)
    return drained_if_empty(replace(after, has_keys=has_keys))


def writing(sink: SinkRef, *, now_us: int) -> Bucket:
    """Return the row that a bulk writer inserts before its first chunk."""
    return Bucket(status=Status.WRITING, changed_us=now_us, sink=sink)


def prepared(
    row: Bucket,
    *,
    manifest: Runs,
    due_us: Mapping[int, int],
    size_bytes: int,
    now_us: int,
    life: Life = FOR_EVER,
) -> Bucket:
    """The row after the bulk writer stored all; invisible until its sink row lists it (I7)."""
    _require(row, Status.WRITING)
    times = times_of(due_us, life, now_us=now_us)
    return _filled(row, Status.PREPARED, manifest, times, size_bytes=size_bytes, now_us=now_us)


def published(row: Bucket, *, now_us: int) -> Bucket:
    """Roll a listed bucket forward: its messages become visible.

    Messages that fell due since it was prepared become fresh: the time pointer may be past their
    minute, and then only the reader's scan finds them (I1) [T4]. Retention counts from now on:
    nobody could get them before.
    """
    _require(row, Status.PREPARED)
    due = union(group.runs for group in row.delayed if group.due_us <= now_us)
    return drained_if_empty(
        replace(
            row,
            status=Status.SEALED,
            changed_us=now_us,
            fresh=row.fresh | due,
            delayed=tuple(group for group in row.delayed if group.due_us > now_us),
            expires_us=(
                None if row.expires_us is None else row.expires_us + max(0, now_us - row.changed_us)
            ),
        )
    )


def voided(row: Bucket, *, now_us: int) -> Bucket:
    """End a bulk bucket that its transaction did not list."""
    _require(row, Status.WRITING, Status.PREPARED)
    return Bucket(status=Status.VOID, changed_us=now_us, sink=row.sink)


def unused(sink: SinkRef, *, now_us: int) -> Bucket:
    """Return the row by which a bulk writer gives back a reserved bucket that it did not need.

    Its ids were the writer's own, so the bucket is empty. Without the row, a reader would wait for
    the gap timeout before its pointer may pass (I10).
    """
    return Bucket(status=Status.VOID, changed_us=now_us, sink=sink)


def purged(row: Bucket, *, now_us: int) -> Bucket:
    """Drop all messages of a sealed bucket, leased ones too; the manifest stays (I5) [R18]."""
    _require(row, Status.SEALED)
    return Bucket(
        status=Status.DRAINED,
        changed_us=now_us,
        manifest=row.manifest,
        size_bytes=row.size_bytes,
        sink=row.sink,
        purged=row.unacked,
        has_keys=row.has_keys,
    )


def with_closed_sets(row: Bucket, *, now_us: int) -> Bucket:
    """Close the open dead set: it can be moved then, and takes in no more messages [R14]."""
    _require(row, Status.SEALED)
    return replace(row, changed_us=now_us, dead=dead_sets.closed(row.dead))


def without_dead(row: Bucket, set_id: UUID, *, now_us: int) -> Bucket:
    """Take out one dead set that was moved to the dead-letter queue; leave the others [R14]."""
    _require(row, Status.SEALED)
    moved = dead_sets.runs_of(row.dead, set_id)
    return drained_if_empty(
        replace(
            row,
            changed_us=now_us,
            dead=tuple(part for part in row.dead if part.set_id != set_id),
            revisions=without_revisions(row.revisions, moved),
        )
    )


def drained_if_empty(row: Bucket) -> Bucket:
    """Set the status to drained if nothing is left, in the same CAS. The manifest stays (I5)."""
    if not row.is_empty:
        return row
    return replace(row, status=Status.DRAINED, expiring=(), expires_us=None)


def without_revisions(
    revisions: tuple[tuple[int, int], ...], ended: Runs
) -> tuple[tuple[int, int], ...]:
    """Drop the revisions of settled messages: a row does not grow with its past (I9)."""
    return tuple(entry for entry in revisions if entry[0] not in ended)


def merge_returned(parts: Iterable[Returned]) -> tuple[Returned, ...]:
    """Merge into one entry per delivery count, fewest deliveries first [R6]."""
    by_count: dict[int, list[Runs]] = {}
    for part in parts:
        if part.runs:
            by_count.setdefault(part.deliveries, []).append(part.runs)
    # Merge all runs of a count at once: one by one, 16,000 leases of one message would take minutes
    # [T2].
    return tuple(
        Returned(deliveries=count, runs=runs[0] if len(runs) == 1 else union(runs))
        for count, runs in sorted(by_count.items())
    )


def name_of_holder(row: Bucket, owner: str) -> str:
    """Return the claimer's name, if the row has it already or has room for it [T2]."""
    if len(row.leases) < PREFERRED_LEASES:
        return owner
    known = {lease.owner for lease in row.leases}
    if owner in known or sum(len(one.encode()) for one in known) < OWNERS_BYTES:
        return owner
    return FURTHER_OWNERS


def _filled(
    row: Bucket, status: Status, manifest: Runs, times: Times, *, size_bytes: int, now_us: int
) -> Bucket:
    return replace(
        row,
        status=status,
        changed_us=now_us,
        manifest=manifest,
        size_bytes=size_bytes,
        fresh=manifest - union(group.runs for group in times.delayed),
        delayed=times.delayed,
        expiring=times.expiring,
        expires_us=times.expires_us,
    )


def _require(row: Bucket, *allowed: Status) -> None:
    if row.status not in allowed:
        raise IllegalMove(f"a bucket that is {row.status.value} is not {' or '.join(allowed)}")
