"""Report what a repair pass, a redrive or a verify pass did or found, for people and programs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from functools import partial
from typing import Any, Final, Self

from cassieq_spark.errors import CassieqError
from cassieq_spark.log import event, get_logger
from cassieq_spark.model.frozen import frozen
from cassieq_spark.model.ids import BucketNo
from cassieq_spark.model.integrity import (
    BEYOND_BUCKET,
    FINISHED_WITH_MESSAGES,
    NO_MANIFEST,
    TWO_STATES,
)
from cassieq_spark.queue.lane import Lane, named
from cassieq_spark.store import caller

_logger = get_logger("repair")


class Report:
    """A report is a dataclass of counts and texts."""

    __slots__ = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the report as a JSON object."""
        return asdict(self)  # type: ignore[call-overload,no-any-return]  # it is a dataclass


class Part:
    """The result of one task about a queue: a dataclass."""

    __slots__ = ()

    def add(self, other: Self) -> None:
        """Add another task's result for the same queue."""
        for one in fields(self):  # type: ignore[arg-type]  # it is a dataclass
            mine, more = getattr(self, one.name), getattr(other, one.name)
            match mine:
                case Part():
                    mine.add(more)
                case dict():
                    mine |= {
                        key: mine[key] + its if key in mine else its for key, its in more.items()
                    }
                case set() | bool():
                    setattr(self, one.name, mine | more)
                case str():
                    pass  # its name is the same
                case _:
                    setattr(self, one.name, mine + more)


@dataclass(slots=True, kw_only=True)
class QueueRepair(Part):
    """The result of one pass for one queue.

    Attributes:
        seals_finished: Buckets whose seal another process had left half-way.
        gaps_closed: Reserved buckets that nobody wrote into in time.
        aborted: Bulk buckets that became void with the transaction of a writer that fell silent.
        rolled_forward: Bulk buckets that were decided: made visible, or void.
        sinks_ended: Rows of transactions that are over.
        closed_expired: Open buckets that were sealed because messages in them had expired.
        expired: Messages that expired undelivered and were taken out.
        marked_dead, moved_dead: Messages out of deliveries; messages moved to their dead-letter
            queue.
        redriven: Messages of an interrupted redrive that are in their target now.
        hints_written: Buckets with messages that came back and may have no hint.
        freed: Buckets whose messages are gone while their rows wait for others below them.
        dropped: Buckets that are gone, with their messages.
        swept: Buckets below the repair pointer in which a late write had landed.
        problems: Errors of steps that failed, in their own words; the next pass tries again.
    """

    queue: str
    seals_finished: int = 0
    gaps_closed: int = 0
    aborted: int = 0
    rolled_forward: int = 0
    sinks_ended: int = 0
    closed_expired: int = 0
    expired: int = 0
    marked_dead: int = 0
    moved_dead: int = 0
    redriven: int = 0
    hints_written: int = 0
    freed: int = 0
    dropped: int = 0
    swept: int = 0
    problems: list[str] = field(default_factory=list)


@contextmanager
def noting(
    done: QueueRepair, lane: Lane | None = None, bucket: BucketNo | None = None
) -> Iterator[None]:
    """Report a step that fails, with its bucket, and leave it to the next pass; others go on."""
    try:
        yield
    except CassieqError as error:
        if lane is not None and bucket is not None:
            named(error, lane, bucket)
        note(done, error)


def note(done: QueueRepair, error: CassieqError) -> None:
    """Report a step that failed."""
    done.problems.append(str(error))
    event(_logger, "repair_failed", queue=done.queue, error=str(error))


@dataclass(slots=True, kw_only=True)
class RepairReport(Report):
    """The result of one pass.

    Attributes:
        deletions_finished: Names of queues whose deletion another process had left half-way.
        sinks_swept: Rows of single transactions whose queue was deleted.
        swept_lanes: Lanes of deleted queues in which a late write had landed.
    """

    queues: list[QueueRepair] = field(default_factory=list)
    deletions_finished: list[str] = field(default_factory=list)
    sinks_swept: int = 0
    swept_lanes: int = 0

    @property
    def problems(self) -> list[str]:
        """The problems of all queues."""
        return [f"{one.queue}: {problem}" for one in self.queues for problem in one.problems]


@dataclass(slots=True, kw_only=True)
class Redriven(Part, Report):
    """The outcome of a redrive. Each chosen message is in one count.

    Attributes:
        moved: Messages that are in their target now.
        waiting: Messages that are taken, and that nobody gets here; the next repair moves them.
        leased, delayed: Messages that stay, because a consumer holds them or they are not due yet.
            Only buckets that were looked at count.
        homeless: Messages that stay, because there is no queue to send them to; ``problems`` says
            why.
        gone: Named ids that are acked, moved or taken by now.
        by_target: Messages moved or waiting, by queue; in a dry run, those that would be moved.
        problems: Errors of steps that failed, in their own words.
    """

    queue: str
    moved: int = 0
    waiting: int = 0
    leased: int = 0
    delayed: int = 0
    homeless: int = 0
    gone: int = 0
    by_target: dict[str, int] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)


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
    """A broken invariant.

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
class VerifyReport(Report):
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


@frozen
@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """The progress of a pass over queues.

    Attributes:
        queue: The queue that the pass works on. Empty in the end, for rows that belong to no queue.
        queues_done, queues: Queues that are done, and all queues of the pass.
        buckets_done, buckets: Buckets of this queue that are done, and all of them: those from the
            repair pointer to the last id, in the lanes that were begun.
        share: The share of the pass that is done, from 0 to 1. It never falls. Each queue counts
            the same, however many buckets it has: they are only counted when its turn comes.
    """

    queue: str
    queues_done: int
    queues: int
    buckets_done: int = 0
    buckets: int = 0
    share: float


OnProgress = Callable[[Progress], None]
"""A function that a pass calls after each bucket or group of buckets: in the thread that waits
for the pass, or in one of its own, but never twice at once. An error that it raises ends the
pass, which can be run again."""


class Tracker:
    """The counts of one pass. Without a function to call, it costs nothing."""

    def __init__(self, tell: OnProgress | None, queues: int) -> None:
        self._tell = tell
        self._queues = queues
        self._queue = ""
        self._begun = 0
        self._lanes = 0
        self._lanes_done = 0.0
        self._done = self._buckets = 0
        self._telling = asyncio.Lock()  # lanes go on side by side, and a caller may have threads

    @property
    def is_on(self) -> bool:
        """Whether there is a function to call."""
        return self._tell is not None

    async def begin(self, queue: str, lanes: int) -> None:
        """Begin the next queue, which has ``lanes`` lanes; the one before it is done."""
        self._begun += 1
        await self._next(queue, lanes)

    async def begin_rest(self) -> None:
        """Begin the rows that belong to no queue: all queues are done."""
        self._begun = self._queues + 1
        await self._next("", 0)

    async def lane(self, live: range) -> Callable[[int], Awaitable[None]]:
        """Begin a lane of this queue; return a function that takes the last bucket that is done."""
        if self._tell is None:
            return _nobody
        at, size = live.start, len(live)
        self._buckets += size
        self._lanes_done += size == 0
        await self._say()

        async def reach(bucket: int) -> None:
            nonlocal at
            now = min(bucket + 1, live.stop)  # buckets may be added meanwhile
            if now <= at:
                return
            self._done += now - at
            self._lanes_done += (now - at) / size
            at = now
            await self._say()

        return reach

    async def _next(self, queue: str, lanes: int) -> None:
        self._queue, self._lanes = queue, lanes
        self._lanes_done = 0.0
        self._done = self._buckets = 0
        await self._say()

    async def _say(self) -> None:
        caller.check()
        if self._tell is None:
            return
        async with self._telling:
            done = min(self._begun - 1, self._queues)
            of_this = min(self._lanes_done / self._lanes, 1.0) if self._lanes else 0.0
            progress = Progress(
                queue=self._queue,
                queues_done=done,
                queues=self._queues,
                buckets_done=self._done,
                buckets=self._buckets,
                share=min((done + of_this) / self._queues, 1.0) if self._queues else 1.0,
            )
            await caller.outside(partial(self._tell, progress))


async def _nobody(bucket: int) -> None:
    del bucket
    caller.check()


SILENT: Final = Tracker(None, 0)
"""The tracker of a pass that reports no progress."""
