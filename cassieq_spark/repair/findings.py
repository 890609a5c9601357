"""Define the findings of `repair.verify`: every kind, one finding, and the report."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Final

from cassieq_spark.model.frozen import frozen
from cassieq_spark.model.integrity import (
    BEYOND_BUCKET,
    FINISHED_WITH_MESSAGES,
    NO_MANIFEST,
    TWO_STATES,
)

ROW_CORRUPT: Final = "row_corrupt"

FINDINGS: Final[dict[str, str]] = {
    TWO_STATES: "A message has two of the states free, leased, delayed and dead at once.",
    NO_MANIFEST: "A bucket row holds a message that its manifest does not name.",
    "manifest_without_rows": "A message that is not acked is not stored, or only in part.",
    "pointer_backwards": "The repair pointer is ahead of the reader pointer.",
    "reader_ahead": "The reader pointer has passed messages that only a look-ahead finds.",
    FINISHED_WITH_MESSAGES: "A bucket is drained or void and still holds messages.",
    "id_ahead": "Something is stored under an id that was never handed out.",
    ROW_CORRUPT: "The row of a bucket or of a sink, or a sink's bucket list, cannot be read, so "
    "its messages wait.",
    BEYOND_BUCKET: "A manifest names more messages than its bucket has ids. The messages beyond "
    "have ids of the next bucket, and cannot be acked.",
    "id_stored_twice": "Two stored rows of a bucket hold a message under the same id.",
    "visible_without_hint": "Messages came back behind the reader pointer, and no expiry hint "
    "names them, so only the next repair finds them.",
    "row_too_large": "A bucket row is above its size limit, so nobody claims from it.",
    "list_without_sink": "Parts of a bucket list are stored, but their sink has no row. They only "
    "take space.",
    "list_without_bucket": "A committed batch lists a bucket that is void, or holds another "
    "number of messages.",
}
"""Every kind, for the reference."""


@frozen
@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One broken invariant.

    Attributes:
        queue: The queue's name; empty if it is unknown.
        kind: One of `FINDINGS`.
        bucket: None: the finding is about the queue as a whole.
        lane: The lane of the bucket; None if the queue has no other.
    """

    queue: str
    kind: str
    bucket: int | None
    what: str
    lane: str | None = None


@dataclass(slots=True, kw_only=True)
class VerifyReport:
    """The findings of a verify pass.

    Attributes:
        litter: Messages in sealed buckets that no manifest names: their puts were never
            acknowledged. They go with their bucket, and are not a finding.
        ghosts: Rows below repair pointers, and stored messages there; a full repair removes them.
        problems: Errors of reads that failed, in their own words: the state there is unknown.
    """

    queues: int = 0
    buckets: int = 0
    messages: int = 0
    unacked: int = 0
    litter: int = 0
    ghosts: int = 0
    findings: list[Finding] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """Return the report as a JSON object."""
        return asdict(self)
