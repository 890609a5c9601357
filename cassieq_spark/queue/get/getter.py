"""Get messages for programs: claim them, read their bodies, and decide when to look again."""

from __future__ import annotations

import os
import socket
from collections import deque
from dataclasses import dataclass
from datetime import timedelta
from math import inf
from typing import Final, Self

from cassieq_spark import metrics
from cassieq_spark.entropy import Entropy
from cassieq_spark.errors import (
    CassieqError,
    DataLoss,
    LeaseLost,
    QueueDeleted,
    RowCorrupt,
    StoreTimeout,
)
from cassieq_spark.log import event, get_logger
from cassieq_spark.model.ids import FIRST_BUCKET, BucketNo, LaneId
from cassieq_spark.options import QueueSettings, arguments
from cassieq_spark.queue.get.claim import GRACE_S, PATIENT_GRACE_S, Claimed, Holder, give_back
from cassieq_spark.queue.get.queue_reader import QueueReader
from cassieq_spark.queue.lane import Lane
from cassieq_spark.queue.message import Delivery, proof_of, read_deliveries

_READS: Final = 4
"""A get claims and reads at most this many times, if leases run out while bodies are read. From the
third time on, leases are longer than the shortest of the reads, so that is enough, unless this
machine is suspended again and again. One long read says nothing: the process may have stood still,
and a consumer that dies later would hide its messages for as long."""

READS_PER_S: Final = 64
LONGEST_PAUSE_S: Final = 2.0
"""An idle consumer of a queue with many lanes looks less often, so that it sends at most this
number of reads per second, but at least once in this time."""

PAUSES_S: Final = (0.03, 0.12, 0.5, 1.6)
"""A long poll pauses for a quarter to all of each of these in turn, at random; the last repeats. A
look at a quiet queue takes two reads. So an idle consumer stays below five a second, also in polls
of one second."""

READS_A_LOOK: Final = 2
"""The number of reads of a look at a quiet lane."""

QUICK_PAUSE_S: Final = 0.008
QUICK_FOR_S: Final = 0.5
"""For half a second after a message was found, pauses on a queue of one lane are a quarter to all
of 8 ms. If messages come one after the other, a reader then looks when the next one comes. This
costs about 190 reads after a message if no other comes; an idle consumer pays nothing (ADR 29)."""

_logger = get_logger("queue")


@dataclass(frozen=True, slots=True, kw_only=True)
class GetRequest:
    """The arguments of one get.

    Attributes:
        wait_s: How long to wait for the first message; 0 means one look.
        min_priority: Only messages of this priority and higher ones.
    """

    at_most: int
    owner: str
    visibility_us: int
    wait_s: float
    min_priority: int = 0

    @classmethod
    def checked(
        cls,
        settings: QueueSettings,
        at_most: int,
        visibility: float | timedelta | None,
        consumer: str | None,
        at_least: int,
        *,
        wait: float | timedelta = 0,
    ) -> Self:
        """Check the other arguments of a get.

        Raises:
            OptionInvalid: One of them has a wrong form.
        """
        visibility_us = int(settings.visibility_timeout_s * 1e6)
        if visibility is not None:
            visibility_us = arguments.visibility_us(visibility)
        return cls(
            at_most=at_most,
            owner=f"{socket.gethostname()}:{os.getpid()}"
            if consumer is None
            else arguments.consumer(consumer),
            wait_s=arguments.wait_s(wait),
            visibility_us=visibility_us,
            min_priority=arguments.priority("min_priority", at_least, settings.priorities),
        )


class Getter:
    """Looks for messages of a queue for one client; each look has a reader of its own.

    Attributes:
        lanes: The number of lanes that the last look went through.
    """

    def __init__(self) -> None:
        self._idle: deque[QueueReader] = deque()
        self.lanes = 1

    async def look(self, lane: Lane, wanted: GetRequest) -> list[Delivery]:
        """Lease messages and read them; none only if none was visible.

        Raises:
            QueueDeleted: The lane is dead.
            CasAmbiguous: A lease may exist; it runs out by itself.
            StoreTimeout, StoreUnavailable: Claimed messages are given back, or their leases run
                out. Also raised if leases ran out while their bodies were read, again and again
                [T17].
            DataLoss, RowCorrupt: No claimed message can be read; see `_read_apart`.
        """
        reader = self._take(lane, wanted)
        try:
            with lane.store.session.call():
                return await self._claim_and_read(lane, reader, wanted)
        finally:
            self._idle.append(reader)

    async def _claim_and_read(
        self, lane: Lane, reader: QueueReader, wanted: GetRequest
    ) -> list[Delivery]:
        at_least = wanted.min_priority
        took_us: list[int] = []
        for _ in range(_READS):
            claimed: list[Claimed] = []
            if await reader.may_find(at_least=at_least):
                claimed = await reader.get(wanted.at_most, at_least=at_least)
            self.lanes = len(reader.looked_at)
            if not claimed:
                return []
            began = lane.clock.monotonic()
            if messages := await read_in_time(lane, claimed):
                return messages
            # Others may have the messages now. If not, a lease must be longer than a read takes.
            took_us.append(int((lane.clock.monotonic() - began) * 1e6))
            if len(took_us) > 1:
                reader.holder.visibility_us = max(wanted.visibility_us, 2 * min(took_us))
        raise StoreTimeout(
            f"the leases of messages of queue {lane.queue!r} ran out {_READS} times in a row "
            "while their bodies were read. The messages were given back. Try again, with a "
            "longer visibility timeout or fewer messages"
        )

    def _take(self, lane: Lane, wanted: GetRequest) -> QueueReader:
        """Take an idle reader of this queue, which knows what it saw lately, or make a new one."""
        while self._idle:
            reader = self._idle.pop()
            if reader.lane == lane:
                reader.holder.owner = wanted.owner
                reader.holder.visibility_us = wanted.visibility_us
                return reader
        holder = Holder(owner=wanted.owner, run=None, visibility_us=wanted.visibility_us)
        return QueueReader(lane, holder)


async def read_in_time(lane: Lane, claimed: list[Claimed]) -> list[Delivery]:
    """Read messages, and return those whose leases still run when all are read (I2) [T17].

    Messages of expired leases are given back uncounted if they were not claimed again: no consumer
    has seen them.
    """
    messages = await _read(lane, claimed)
    now_us = lane.clock.now_us()
    ended = [one for one in claimed if one.lease.until_us <= now_us]
    if not ended:
        return messages
    lost = sum(one.lease.runs.count for one in ended)
    metrics.LEASES_LOST.inc(lane.queue, lost)
    event(_logger, "leases_expired_while_reading", queue=lane.queue, messages=lost)
    await give_back(ended)
    gone = {one.lease.lease_id for one in ended}
    return [one for one in messages if proof_of(one).lease_id not in gone]


async def _read(lane: Lane, claimed: list[Claimed]) -> list[Delivery]:
    """Read the bodies of leased messages, of all buckets together if all can be read."""
    try:
        with lane.store.session.within(each_s=PATIENT_GRACE_S):
            return await _read_claimed(lane, claimed)
    except CassieqError as error:
        held = await _held(lane, claimed)
        if len(held) < len(claimed) and isinstance(error, DataLoss | LeaseLost | RowCorrupt):
            # This process slept: meanwhile others had the message, acked it, and repair dropped it.
            return await _read(lane, held)
        return await _read_apart(lane, claimed, error)


async def _read_apart(lane: Lane, claimed: list[Claimed], error: CassieqError) -> list[Delivery]:
    """Read as many as possible if a bucket does not answer or a stored row is damaged (I10).

    Messages of buckets that did not answer are given back uncounted, as no consumer has seen them
    [T22]. Damaged messages stay leased until their time is over, and use up a delivery. If they
    were given back at once, every next get would claim them again, and none would ever succeed
    [T21].

    Raises:
        CassieqError: No message can be read. The next get goes on with other messages.
    """
    found: list[list[Delivery] | CassieqError] = [error]
    if len(claimed) > 1:
        with lane.store.session.within(each_s=PATIENT_GRACE_S):
            found = await lane.store.session.each(lambda one: _read_claimed(lane, [one]), claimed)
    messages: list[Delivery] = []
    unanswered: list[Claimed] = []
    for one, read in zip(claimed, found, strict=True):
        if isinstance(read, DataLoss | RowCorrupt):
            event(
                _logger,
                "messages_unreadable",
                **one.lane.as_fields(one.bucket),
                messages=one.lease.runs.count,
                error=str(read),
            )
        elif isinstance(read, CassieqError):
            unanswered.append(one)
        else:
            messages += read
    if unanswered:
        await give_back(unanswered)
        event(_logger, "get_given_back", queue=lane.queue, leases=len(unanswered))
    if not messages:
        raise error
    return messages


async def _read_claimed(lane: Lane, claimed: list[Claimed]) -> list[Delivery]:
    plan = [(one.planned, one.lease) for one in claimed]
    return await read_deliveries(lane, plan)


async def _held(lane: Lane, claimed: list[Claimed]) -> list[Claimed]:
    """Return the claims that still hold their messages: one read for each lane, all at once.

    A lane that does not answer within `GRACE_S` keeps back no other, and its claims count as held.

    Raises:
        QueueDeleted: The lane is dead.
    """
    lanes = list({one.lane.lane_id: one.lane for one in claimed}.values())
    with lane.store.session.within(each_s=GRACE_S):
        found = await lane.store.session.each(lambda one: one.read_pointers(), lanes)
    low: dict[LaneId, BucketNo] = {}
    for one, pointers in zip(lanes, found, strict=True):
        if isinstance(pointers, QueueDeleted):
            raise pointers
        if not isinstance(pointers, CassieqError):
            low[one.lane_id] = pointers.repair
    now_us = lane.clock.now_us()
    return [
        one
        for one in claimed
        if one.lease.until_us > now_us and one.bucket >= low.get(one.lane.lane_id, FIRST_BUCKET)
    ]


class Pace:
    """The pauses between the looks of one consumer: short while messages come, then longer.

    ``lanes`` is the number of lanes that a look goes through.
    """

    def __init__(self, entropy: Entropy) -> None:
        self._entropy = entropy
        self._empty_looks = 0
        self._found_at = -inf

    def look_soon(self) -> None:
        """Start again with the shortest pauses."""
        self._empty_looks = 0

    def note(self, now: float, *, has_found: bool, lanes: int) -> None:
        """Note the end of a look, by a monotonic clock."""
        if has_found:
            self._empty_looks, self._found_at = 0, now
        else:
            self._empty_looks = 1 if self._is_quick(now, lanes) else self._empty_looks + 1

    def pause_s(self, now: float, *, lanes: int) -> float:
        """Return the seconds from the last look to the next; 0 after one that found something."""
        if not self._empty_looks:
            return 0.0
        if self._is_quick(now, lanes):
            return self._entropy.jitter(QUICK_PAUSE_S, 0)
        pause_s = self._entropy.jitter(PAUSES_S[min(self._empty_looks, len(PAUSES_S)) - 1], 0)
        if lanes == 1 or self._empty_looks < len(PAUSES_S):
            return pause_s
        return min(LONGEST_PAUSE_S, max(pause_s, READS_A_LOOK * lanes / READS_PER_S))

    def _is_quick(self, now: float, lanes: int) -> bool:
        return lanes == 1 and now - self._found_at < QUICK_FOR_S
