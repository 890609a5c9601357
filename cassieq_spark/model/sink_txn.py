"""Decide a sink's transaction: writers, commits, fates of buckets (docs/design/sink.md).

One row per sink id decides everything; these are its rules, pure. The epoch is the transaction: a
bucket is tagged with the epoch under which it was written, and only a CAS on the sink row ends an
epoch, by commit (with a list) or by abort (without one). Holds I7.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final
from uuid import UUID

from cassieq_spark.errors import SinkDiverged, SinkFenced, SinkIdReused
from cassieq_spark.model.ids import BucketNo, LaneId, Place

FIRST_EPOCH = 1
NO_BATCH = -1
ONLY_BATCH = 0
"""The batch id of a transaction that has one batch."""
PAST_RUNS = 64
"""The most superseded runs that are remembered, and refused, per sink."""
MOVE_PREFIX: Final = "dead:"
"""The beginning of a move's sink id; the rest is the dead set's id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """The costs of one task, or of all tasks of a batch.

    Attributes:
        size_bytes: Bytes of chunks as stored.
        lwts: Conditional writes that were answered, or sent and not answered.
        retries: Statements that were sent again because they were not answered.
    """

    chunks: int = 0
    size_bytes: int = 0
    lwts: int = 0
    retries: int = 0

    def __add__(self, other: Costs) -> Costs:
        """Add the costs of both."""
        return Costs(
            chunks=self.chunks + other.chunks,
            size_bytes=self.size_bytes + other.size_bytes,
            lwts=self.lwts + other.lwts,
            retries=self.retries + other.retries,
        )


NO_COSTS = Costs()


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """Consecutive buckets of a lane, of a committed batch, with equally many messages each."""

    lane: LaneId
    first: BucketNo
    last: BucketNo
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketList:
    """The buckets of one committed batch, with their message counts, as runs."""

    runs: tuple[Listed, ...] = ()

    @classmethod
    def of(cls, buckets: Iterable[tuple[Place, int]]) -> BucketList:
        """Build from (place of a bucket, messages in it) in any order."""
        runs: list[Listed] = []
        for (lane, bucket), count in sorted(set(buckets)):
            last = runs[-1] if runs else None
            if last and (last.lane, last.last + 1, last.count) == (lane, bucket, count):
                runs[-1] = replace(last, last=bucket)
            else:
                runs.append(Listed(lane=lane, first=bucket, last=bucket, count=count))
        return cls(runs=tuple(runs))

    def __iter__(self) -> Iterator[tuple[Place, int]]:
        """Yield (place of a bucket, messages in it), by lane, ascending."""
        for run in self.runs:
            for bucket in range(run.first, run.last + 1):
                yield Place(run.lane, BucketNo(bucket)), run.count

    def __contains__(self, place: object) -> bool:
        """Whether this bucket is listed."""
        lane, at = place if isinstance(place, Place) else (None, -1)
        return any(run.lane == lane and run.first <= at <= run.last for run in self.runs)

    @property
    def messages(self) -> int:
        """The number of messages in the batch."""
        return sum((run.last - run.first + 1) * run.count for run in self.runs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """A writer's identity, as a task sees it, or as a task reports it to the committer.

    Attributes:
        query_id, run: Spark's ids of the streaming query and of this start of it; None outside.
        checkpoint: Its checkpoint location; None if Spark does not tell.
    """

    sink_id: str
    lane: LaneId  # the queue's first lane
    query_id: str | None = None
    checkpoint: str | None = None
    run: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkRow:
    """The sink's row, without the columns that the CAS machinery adds.

    Attributes:
        lane: The queue's first lane.
        epoch: The transaction that may be written now.
        last: Batch id of the last commit, -1 before the first.
        listed: The buckets that the last commit or abort listed for epoch - 1.
        past: Superseded runs, oldest first: they are refused for good.
        aborts: Aborts since the last commit; each doubles the time before the next one [R3].
        is_once: Whether it is used for one transaction only: repair removes the row afterwards.
    """

    lane: LaneId
    changed_us: int
    epoch: int = FIRST_EPOCH
    last: int = NO_BATCH
    listed: BucketList = BucketList()
    query_id: str | None = None
    checkpoint: str | None = None
    run: str | None = None
    past: tuple[str, ...] = ()
    aborts: int = 0
    is_once: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Begun:
    """A transaction that has a row of its own, with the row's version at its beginning.

    Attributes:
        writer: The version of the row that the commit is conditional on, and on no other. The CAS
            that wrote it was answered at its first sending, so no copy of it is on its way: a row
            that was removed and is inserted again never has this version [T3].
    """

    who: Identity
    epoch: int
    writer: UUID


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteUnder:
    """A task may write, under this epoch."""

    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AlreadyCommitted:
    """The batch is in the queue already; write nothing (I7)."""


Admission = WriteUnder | AlreadyCommitted


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskResult:
    """The report of one winning task attempt to the committer.

    Attributes:
        epoch: The epoch under which it wrote; None if it found the batch committed.
        buckets: (place of a bucket, messages in it).
        costs: For the log.
    """

    who: Identity
    epoch: int | None
    buckets: tuple[tuple[Place, int], ...] = ()
    costs: Costs = NO_COSTS


@dataclass(frozen=True, slots=True, kw_only=True)
class NothingToDo:
    """The batch is committed and the row names this run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Register:
    """An earlier run committed the batch; this CAS makes the present run the row's owner."""

    row: SinkRow


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """Roll ``roll_first`` forward, then this CAS is the commit point."""

    row: SinkRow
    roll_first: BucketList


Decision = NothingToDo | Register | Commit


class Fate(Enum):
    """The decision of a sink row about one of its buckets."""

    UNDECIDED = "undecided"
    SEAL = "seal"
    VOID = "void"


def move_id(set_id: UUID) -> str:
    """Return the sink id of the transaction that moves a dead set."""
    return f"{MOVE_PREFIX}{set_id}"


def set_of(sink_id: str) -> UUID | None:
    """Return the dead set that a sink moves; None if the sink is not a move."""
    return UUID(sink_id.removeprefix(MOVE_PREFIX)) if sink_id.startswith(MOVE_PREFIX) else None


def new_row(who: Identity, *, now_us: int, is_once: bool = False) -> SinkRow:
    """Return the row that the first task of a sink inserts, if it does not exist."""
    return SinkRow(
        lane=who.lane,
        changed_us=now_us,
        query_id=who.query_id,
        checkpoint=who.checkpoint,
        is_once=is_once,
    )


def admit(
    row: SinkRow, who: Identity, batch_id: int, *, refuse_second_write: bool = False
) -> Admission:
    """Decide what a task does before it pulls a row; never change an existing row.

    Args:
        refuse_second_write: True outside ``writeStream``: if this very run has committed the batch,
            another write is a second one under the same id, not a replay [R26].

    Raises:
        SinkIdReused: Another queue, query or checkpoint owns this sink id [P9].
        SinkFenced: A later run of this query has taken over.
        SinkDiverged: The batch is older than the last one committed [R4].
    """
    _check_owner(row, who)
    _check_run(row, who)
    if batch_id < row.last:
        raise SinkDiverged(
            f"sink {who.sink_id!r} has committed batch {row.last} and was asked to write batch "
            f"{batch_id} again: another query runs on this checkpoint, or it is a copy or an older "
            "backup. If another query runs, stop one of the two. If none does, use the newest "
            "checkpoint, or call client.forget_sink(queue, sink_id): messages may come twice then",
            sink_id=who.sink_id,
        )
    if batch_id == row.last:
        if refuse_second_write:
            _check_second_write(row, who, batch_id)
        return AlreadyCommitted()
    return WriteUnder(epoch=row.epoch)


def decide(
    row: SinkRow,
    who: Identity,
    batch_id: int,
    results: Sequence[TaskResult],
    *,
    now_us: int,
    refuse_second_write: bool = False,
) -> Decision:
    """Decide what the committer does, given the row that it reads now.

    The row must *show* the epoch under which the tasks wrote: a CAS on its fresh ``writer`` alone
    would commit an epoch that repair has aborted meanwhile [R1].

    Raises:
        SinkIdReused: See `admit`.
        SinkFenced: Another run has committed this batch, or an abort has ended its epoch.
        SinkDiverged: See `admit`.
    """
    admission = admit(row, who, batch_id, refuse_second_write=refuse_second_write)
    has_skipped = any(result.epoch is None for result in results)
    if isinstance(admission, AlreadyCommitted):
        if row.run == who.run:
            return NothingToDo()
        if all(result.epoch is None for result in results):
            return Register(row=replace(_owned(row, who), changed_us=now_us))
        raise SinkFenced(
            f"batch {batch_id} of sink {who.sink_id!r} was committed by run {row.run} while run "
            f"{who.run} wrote it. Two queries run on one checkpoint: stop one of them",
            sink_id=who.sink_id,
        )
    epochs = {result.epoch for result in results}
    if has_skipped or epochs != {row.epoch}:
        raise SinkFenced(
            f"batch {batch_id} of sink {who.sink_id!r} was written under epoch "
            f"{sorted(epoch or 0 for epoch in epochs)}, but the sink is at {row.epoch}: its "
            "transaction was aborted, or another run has taken over. Nothing of it is visible. "
            "Restart the query",
            sink_id=who.sink_id,
        )
    listed = BucketList.of(pair for result in results for pair in result.buckets)
    return Commit(
        row=replace(
            _owned(row, who),
            changed_us=now_us,
            epoch=row.epoch + 1,
            last=batch_id,
            listed=listed,
            query_id=who.query_id,
            checkpoint=who.checkpoint,
            aborts=0,
        ),
        roll_first=row.listed,
    )


def abort(row: SinkRow, *, now_us: int) -> SinkRow:
    """End an epoch without listed buckets. Its list must have been rolled forward before."""
    return replace(
        row,
        changed_us=now_us,
        epoch=row.epoch + 1,
        listed=BucketList(),
        aborts=row.aborts + 1,
    )


def forget(row: SinkRow, *, lane: LaneId, now_us: int) -> SinkRow:
    """Let a new checkpoint use the sink id. The row's list must have been rolled forward before.

    The row stays and the epoch goes on: if the epoch began again, an old orphan could count as
    undecided (I6, I7).
    """
    return replace(
        abort(row, now_us=now_us),
        lane=lane,
        last=NO_BATCH,
        query_id=None,
        checkpoint=None,
        run=None,
        past=_with_past(row, None),
        aborts=0,
    )


def fate(row: SinkRow | None, *, place: Place, epoch: int) -> Fate:
    """Return the decision about a ``writing`` or ``prepared`` bucket.

    Args:
        row: Read *after* the bucket's row, or it means nothing. None: it was removed after all was
            rolled forward, so the rest is void.
    """
    if row is None:
        return Fate.VOID
    if epoch >= row.epoch:
        return Fate.UNDECIDED
    if epoch == row.epoch - 1 and place in row.listed:
        return Fate.SEAL
    return Fate.VOID


def _is_unbound(row: SinkRow) -> bool:
    """Whether nobody has committed under this id yet, since it was made or freed."""
    return row.last == NO_BATCH and row.run is None and row.query_id is None


def _check_owner(row: SinkRow, who: Identity) -> None:
    if row.lane != who.lane:
        what = "another queue, or an earlier queue of this name"
    elif _is_unbound(row):
        return
    elif row.query_id != who.query_id:
        what = f"query {row.query_id}, not {who.query_id} (a new checkpoint is a new query)"
    elif row.checkpoint != who.checkpoint:
        what = f"checkpoint {row.checkpoint}, not {who.checkpoint}"
    else:
        return
    raise SinkIdReused(
        f"sink id {who.sink_id!r} belongs to {what}. If that runs, stop it or use another sinkId. "
        f"Call client.forget_sink(queue, {who.sink_id!r}) only if the owner is gone for good",
        sink_id=who.sink_id,
    )


def _check_run(row: SinkRow, who: Identity) -> None:
    if who.run is not None and who.run in row.past:
        raise SinkFenced(
            f"run {who.run} of sink {who.sink_id!r} was superseded by run {row.run}: another "
            "driver works on this checkpoint. Nothing of this batch is visible, and this run "
            "must end",
            sink_id=who.sink_id,
        )


def _check_second_write(row: SinkRow, who: Identity, batch_id: int) -> None:
    if who.run is not None and row.run == who.run:
        raise SinkIdReused(
            f"sink id {who.sink_id!r} was used for two writes in batch {batch_id}: the second "
            "write would be taken for a replay, and lost. Give each write of a batch its own "
            "sink id",
            sink_id=who.sink_id,
        )


def _owned(row: SinkRow, who: Identity) -> SinkRow:
    return replace(row, run=who.run, past=_with_past(row, who.run))


def _with_past(row: SinkRow, run: str | None) -> tuple[str, ...]:
    if row.run is None or row.run == run:
        return row.past
    return (*(old for old in row.past if old != row.run), row.run)[-PAST_RUNS:]
