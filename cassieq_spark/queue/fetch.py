"""Read the messages of known id runs, and nothing else (design 7): an executor's part. Holds I8."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from cassieq_spark.errors import DataLoss
from cassieq_spark.model.ids import EMPTY, Runs

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from uuid import UUID

    from cassieq_spark.model.ids import BucketNo, LaneId, QueueName
    from cassieq_spark.store.store import Store
    from cassieq_spark.store.tables.messages import ChunkRow


OFFSETS_PER_READ: Final = 10_000
"""One read asks for so many, so that the next are under way while these are worked on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """Messages of one bucket to read.

    Attributes:
        lease_id: The delivery they belong to; None for a look without a lease.
        revisions: (offset, revision) of those that have an updated body.
        is_look: It passes over what is not there any more; else that is an error.
    """

    bucket: BucketNo
    runs: Runs
    delivery_count: int
    lease_id: UUID | None
    revisions: tuple[tuple[int, int], ...] = ()
    is_look: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """One chunk that holds planned messages.

    Attributes:
        keep: Which of its offsets are planned; None: all.
        bodies: Updated bodies, by offset.
    """

    planned: Planned
    chunk: ChunkRow
    keep: Runs | None
    bodies: Mapping[int, bytes] = field(default_factory=dict)

    @property
    def positions(self) -> list[int] | None:
        """Of the planned messages in the chunk; None: all."""
        if self.keep is None:
            return None
        return [offset - self.chunk.first for offset in self.keep.offsets()]


def fetch(
    store: Store, lane_id: LaneId, queue: QueueName, plan: Sequence[Planned]
) -> Iterator[Found]:
    """The chunks that hold the planned messages, in order; a few buckets are read ahead.

    Raises:
        DataLoss: A planned message is not there: exactly the planned ids, or the task fails.
    """
    parts = [part for planned in plan for part in _parts(planned)]
    wanted = [(part.bucket, part.runs) for part in parts]
    for position, chunks in store.lane(lane_id).messages.read(wanted):
        planned = parts[position]
        bodies = (
            store.lane(lane_id).overlays.read(
                planned.bucket, planned.revisions, is_look=planned.is_look
            )
            if planned.revisions
            else {}
        )
        seen = EMPTY
        # Of a look, what was updated and is not there was acked and dropped since.
        gone = Runs.from_offsets(at for at, _ in planned.revisions if at not in bodies)
        for chunk in chunks:
            span = Runs.span(chunk.first, chunk.first + chunk.count - 1)
            keep = (span & planned.runs) - gone
            if not keep:
                continue
            seen |= keep
            yield Found(
                planned=planned, chunk=chunk, keep=None if keep == span else keep, bodies=bodies
            )
        if not planned.is_look and seen != planned.runs:
            missing = planned.runs - seen
            raise DataLoss(
                f"{missing.count} of {planned.runs.count} planned messages are not in bucket "
                f"{planned.bucket} of queue {queue!r} (first offset {missing.first}). Was the "
                "queue purged, deleted or repaired by hand while the batch ran?"
            )


def _parts(planned: Planned) -> Iterator[Planned]:
    """By whole multiples of `OFFSETS_PER_READ`, so that no chunk of a bulk writer is cut in two."""
    if not planned.runs:
        return
    first = planned.runs.first // OFFSETS_PER_READ * OFFSETS_PER_READ
    for low in range(first, planned.runs.last + 1, OFFSETS_PER_READ):
        runs = planned.runs & Runs.span(low, low + OFFSETS_PER_READ - 1)
        if runs:
            revisions = tuple(entry for entry in planned.revisions if entry[0] in runs)
            yield replace(planned, runs=runs, revisions=revisions)
