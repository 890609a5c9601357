"""Encode the source's offset as JSON: it names its micro-batch exactly (docs/design/source.md)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Self
from uuid import UUID

from cassieq_spark.errors import OffsetUnreadable
from cassieq_spark.model.ids import BucketNo, LaneId, Place, QueueName, Runs

OFFSET_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class LeasedRuns:
    """The part of a micro-batch that one lease contributes."""

    queue: QueueName
    place: Place
    lease_id: UUID
    runs: Runs


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOffset:
    """An offset of the Spark source.

    Attributes:
        stream: Minted with the first batch; None before it.
        queues: The first lane of each queue that the query reads: another lane under a queue's name
            means that it was re-created. All queues of ``leases`` are among them.
        seq: 0 before the first batch, then one more with each.
    """

    stream: UUID | None = None
    queues: Mapping[QueueName, LaneId] = field(default_factory=dict)
    seq: int = 0
    leases: tuple[LeasedRuns, ...] = ()

    def by_queue(self) -> dict[QueueName, tuple[LeasedRuns, ...]]:
        """Return the parts of the batch; a queue without messages in it has no entry."""
        found: dict[QueueName, list[LeasedRuns]] = {}
        for leased in self.leases:
            found.setdefault(leased.queue, []).append(leased)
        return {queue: tuple(some) for queue, some in found.items()}

    def to_json(self) -> dict[str, Any]:
        """Return the JSON that Spark logs.

        ``queues``: an entry ``[name, lanes]`` per queue: its first lane, then others that the batch
        is from. ``leases``: an entry ``[index among all those lanes, bucket, lease, first, last]``
        per run of ids.
        """
        lanes = {queue: [first] for queue, first in self.queues.items()}
        for leased in self.leases:
            if leased.place.lane not in lanes[leased.queue]:
                lanes[leased.queue].append(leased.place.lane)
        at = {lane: number for number, lane in enumerate(chain.from_iterable(lanes.values()))}
        return {
            "v": OFFSET_VERSION,
            "stream": None if self.stream is None else str(self.stream),
            "queues": [[queue, [str(lane) for lane in some]] for queue, some in lanes.items()],
            "seq": self.seq,
            "leases": [
                [at[leased.place.lane], leased.place.bucket, str(leased.lease_id), first, last]
                for leased in self.leases
                for first, last in leased.runs.pairs
            ],
        }

    @classmethod
    def from_json(cls, json: Mapping[str, Any]) -> Self:
        """Read an offset of any version that this release knows.

        Raises:
            OffsetUnreadable: It is not an offset, or of a later version.
        """
        try:
            version = json["v"]
            if version != OFFSET_VERSION:
                raise OffsetUnreadable(
                    f"the checkpoint holds a cassieq offset of version {version!r}, but this "
                    f"release reads version {OFFSET_VERSION}. Use the release that wrote it, or a "
                    "newer one"
                )
            queues = {
                QueueName(str(queue)): [LaneId(UUID(lane)) for lane in lanes]
                for queue, lanes in json["queues"]
            }
            return cls(
                stream=None if json["stream"] is None else UUID(json["stream"]),
                queues={queue: lanes[0] for queue, lanes in queues.items()},
                seq=int(json["seq"]),
                leases=_leases(json["leases"], queues),
            )
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise OffsetUnreadable(
                f"the checkpoint holds something that is not a cassieq offset ({error}). Was it "
                "written by another source? Start with a new checkpoint"
            ) from error


def by_bucket(leases: Iterable[LeasedRuns]) -> dict[Place, dict[UUID, Runs | None]]:
    """Return the messages of one queue to ack when their batch is done."""
    found: dict[Place, dict[UUID, Runs | None]] = {}
    for leased in leases:
        found.setdefault(leased.place, {})[leased.lease_id] = leased.runs
    return found


INITIAL = SourceOffset()
"""The offset before the first batch. Spark asks for it several times, and again on a restart of
batch 0, so it is a constant."""


def _leases(entries: list[Any], queues: Mapping[QueueName, list[LaneId]]) -> tuple[LeasedRuns, ...]:
    lanes = [(queue, lane) for queue, some in queues.items() for lane in some]
    by_lease: dict[tuple[QueueName, Place, UUID], list[tuple[int, int]]] = {}
    for at, bucket, lease_id, first, last in entries:
        if first > last or at < 0:
            raise ValueError(f"run {first}..{last} of lane {at}")
        queue, lane = lanes[at]
        place = Place(lane, BucketNo(int(bucket)))
        by_lease.setdefault((queue, place, UUID(lease_id)), []).append((int(first), int(last)))
    return tuple(
        LeasedRuns(queue=queue, place=place, lease_id=lease_id, runs=Runs.of(*pairs))
        for (queue, place, lease_id), pairs in by_lease.items()
    )
