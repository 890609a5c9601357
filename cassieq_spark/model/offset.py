"""Encode the source's offset: it names exactly what its micro-batch holds (design 7), as JSON."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self
from uuid import UUID

from cassieq_spark.errors import OffsetUnreadable
from cassieq_spark.model.ids import BucketNo, LaneId, Place, Runs

if TYPE_CHECKING:
    from collections.abc import Mapping

OFFSET_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class LeasedRuns:
    """The part of a micro-batch that one lease contributes."""

    place: Place
    lease_id: UUID
    runs: Runs


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOffset:
    """One offset.

    Attributes:
        stream: Minted with the first batch; None before it.
        lane: The first lane of the queue: another one under its name means it was re-created.
        seq: 0 before the first batch, then one more with each.
    """

    stream: UUID | None = None
    lane: LaneId | None = None
    seq: int = 0
    leases: tuple[LeasedRuns, ...] = ()

    def by_bucket(self) -> dict[Place, dict[UUID, Runs | None]]:
        """The messages to ack when the offset's batch is done."""
        found: dict[Place, dict[UUID, Runs | None]] = {}
        for leased in self.leases:
            found.setdefault(leased.place, {})[leased.lease_id] = leased.runs
        return found

    def to_json(self) -> dict[str, Any]:
        """The JSON that Spark logs.

        ``lanes``: the queue's first lane, then others that the batch is from. ``leases``: an entry
        ``[place among lanes, bucket, lease, first, last]`` per run of ids.
        """
        lanes = [] if self.lane is None else [self.lane]
        lanes = list(dict.fromkeys([*lanes, *(leased.place.lane for leased in self.leases)]))
        at = {lane: number for number, lane in enumerate(lanes)}
        return {
            "v": OFFSET_VERSION,
            "stream": None if self.stream is None else str(self.stream),
            "lanes": [str(lane) for lane in lanes],
            "seq": self.seq,
            "leases": [
                [at[leased.place.lane], leased.place.bucket, str(leased.lease_id), first, last]
                for leased in self.leases
                for first, last in leased.runs.pairs
            ],
        }

    @classmethod
    def from_json(cls, json: Mapping[str, Any]) -> Self:
        """Read an offset of any version this release knows.

        Raises:
            OffsetUnreadable: It is not one, or of a later version.
        """
        try:
            version = json["v"]
            if version != OFFSET_VERSION:
                raise OffsetUnreadable(
                    f"the checkpoint holds a cassieq offset of version {version!r}, but this "
                    f"release reads version {OFFSET_VERSION}. Use the release that wrote it, or a "
                    "newer one"
                )
            lanes = [LaneId(UUID(lane)) for lane in json["lanes"]]
            return cls(
                stream=None if json["stream"] is None else UUID(json["stream"]),
                lane=lanes[0] if lanes else None,
                seq=int(json["seq"]),
                leases=_leases(json["leases"], lanes),
            )
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise OffsetUnreadable(
                f"the checkpoint holds something that is not a cassieq offset ({error}). Was it "
                "written by another source? Start with a new checkpoint"
            ) from error


INITIAL = SourceOffset()
"""A constant: Spark asks for it several times, and again on a restart of batch 0."""


def _leases(entries: list[Any], lanes: list[LaneId]) -> tuple[LeasedRuns, ...]:
    by_lease: dict[tuple[Place, UUID], list[tuple[int, int]]] = {}
    for at, bucket, lease_id, first, last in entries:
        if first > last or at < 0:
            raise ValueError(f"run {first}..{last} of lane {at}")
        place = Place(lanes[at], BucketNo(int(bucket)))
        by_lease.setdefault((place, UUID(lease_id)), []).append((int(first), int(last)))
    return tuple(
        LeasedRuns(place=place, lease_id=lease_id, runs=Runs.of(*pairs))
        for (place, lease_id), pairs in by_lease.items()
    )
