"""Encode the source's offset: it names exactly what its micro-batch holds (design 7), as JSON."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self
from uuid import UUID

from cassieq_spark.errors import OffsetUnreadable
from cassieq_spark.model.ids import BucketNo, LaneId, Runs

if TYPE_CHECKING:
    from collections.abc import Mapping

OFFSET_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class LeasedRuns:
    """The part of a micro-batch that one lease contributes."""

    bucket: BucketNo
    lease_id: UUID
    runs: Runs


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOffset:
    """One offset.

    Attributes:
        stream: Minted with the first batch; None before it.
        lane: The lane of the messages: another lane under the queue's name means it was re-created.
        seq: 0 before the first batch, then one more with each.
    """

    stream: UUID | None = None
    lane: LaneId | None = None
    seq: int = 0
    leases: tuple[LeasedRuns, ...] = ()

    def by_bucket(self) -> dict[BucketNo, dict[UUID, Runs | None]]:
        """The messages to ack when the offset's batch is done."""
        found: dict[BucketNo, dict[UUID, Runs | None]] = {}
        for leased in self.leases:
            found.setdefault(leased.bucket, {})[leased.lease_id] = leased.runs
        return found

    def to_json(self) -> dict[str, Any]:
        """The JSON that Spark logs: an entry ``[bucket, lease, first, last]`` per run of ids."""
        return {
            "v": OFFSET_VERSION,
            "stream": None if self.stream is None else str(self.stream),
            "lane": None if self.lane is None else str(self.lane),
            "seq": self.seq,
            "leases": [
                [leased.bucket, str(leased.lease_id), first, last]
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
            return cls(
                stream=None if json["stream"] is None else UUID(json["stream"]),
                lane=None if json["lane"] is None else LaneId(UUID(json["lane"])),
                seq=int(json["seq"]),
                leases=_leases(json["leases"]),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise OffsetUnreadable(
                f"the checkpoint holds something that is not a cassieq offset ({error}). Was it "
                "written by another source? Start with a new checkpoint"
            ) from error


INITIAL = SourceOffset()
"""A constant: Spark asks for it several times, and again on a restart of batch 0."""


def _leases(entries: list[Any]) -> tuple[LeasedRuns, ...]:
    by_lease: dict[tuple[int, UUID], list[tuple[int, int]]] = {}
    for bucket, lease_id, first, last in entries:
        if first > last:
            raise ValueError(f"run {first}..{last}")
        by_lease.setdefault((int(bucket), UUID(lease_id)), []).append((int(first), int(last)))
    return tuple(
        LeasedRuns(bucket=BucketNo(bucket), lease_id=lease_id, runs=Runs.of(*pairs))
        for (bucket, lease_id), pairs in by_lease.items()
    )
