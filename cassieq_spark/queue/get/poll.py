"""Get messages for a program: claim, read, hand out; long poll with back-off (design 5, 11)."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Final

from cassieq_spark import metrics
from cassieq_spark.errors import CassieqError, DataLoss, LeaseLost, RowCorrupt, StoreTimeout
from cassieq_spark.log import event, get_logger
from cassieq_spark.queue.get.claim import PATIENT_GRACE_S, give_back
from cassieq_spark.queue.get.lanes import Readers
from cassieq_spark.queue.get.pace import Pace
from cassieq_spark.queue.message import Message, read_messages
from cassieq_spark.store import portal

if TYPE_CHECKING:
    from cassieq_spark.queue.get.claim import Claimed
    from cassieq_spark.queue.lane import Lane

_READS: Final = 4
"""How many times leases may run out while their bodies are read: each is longer than the last read
took, so the second is enough, unless this machine is suspended again and again."""

_logger = get_logger("queue")


@dataclass(frozen=True, slots=True, kw_only=True)
class GetRequest:
    """The arguments of one get.

    Attributes:
        wait_s: How long to wait for the first message; 0: one look.
        priority_at_least: Only messages of this class and higher ones.
    """

    at_most: int
    owner: str
    visibility_us: int
    wait_s: float
    priority_at_least: int = 0


class Getter:
    """Gets messages of a queue for one client. Thread-safe: each get uses a reader of its own.

    Attributes:
        lanes: How many lanes the last look went through.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: deque[Readers] = deque()
        # Kept between calls: a client that polls an idle queue must not begin anew each time.
        self._pace = Pace()
        self._looked_at = -inf
        self.lanes = 1

    async def get(self, lane: Lane, wanted: GetRequest) -> list[Message]:
        """Lease messages and read them; none only if none was visible all the while.

        Raises:
            QueueDeleted: The lane is dead.
            CasAmbiguous: A lease may exist; it runs out by itself.
            StoreTimeout, StoreUnavailable: What was claimed is given back, or runs out. Also raised
                if leases ran out while their bodies were read, again and again [T17].
            DataLoss, RowCorrupt: Nothing of what was claimed can be read; see `_read_apart`.
        """
        reader = self._take(lane, wanted)
        try:
            with lane.store.session.call():
                return await self._claim_and_read(lane, reader, wanted)
        finally:
            self._idle.append(reader)

    async def _claim_and_read(
        self, lane: Lane, reader: Readers, wanted: GetRequest
    ) -> list[Message]:
        deadline = lane.clock.monotonic() + wanted.wait_s
        for _ in range(_READS):
            claimed = await self._claim(lane, reader, wanted, deadline)
            if not claimed:
                return []
            began = lane.clock.monotonic()
            if messages := await read_in_time(lane, claimed):
                return messages
            # Others may have it now. If not, it is to be held for longer than a read takes.
            took_us = int((lane.clock.monotonic() - began) * 1e6)
            reader.lease_as(wanted.owner, max(wanted.visibility_us, 2 * took_us))
        raise StoreTimeout(
            f"the leases of messages of queue {lane.queue!r} ran out {_READS} times in a row "
            "while their bodies were read. The messages were given back. Try again, with a "
            "longer visibility timeout or fewer messages"
        )

    async def _claim(
        self, lane: Lane, reader: Readers, wanted: GetRequest, deadline: float
    ) -> list[Claimed]:
        clock = lane.clock
        now = clock.monotonic()
        while True:
            if self._pace.has_paused and now < deadline:
                pause_s = self._pace.pause_s(now, lanes=self.lanes)
                due = self._looked_at + pause_s
                if due > now:
                    # The last look is at the deadline: not one just before it, too.
                    is_last = due + pause_s / 2 >= deadline
                    seen_at = self._looked_at
                    await clock.sleep((deadline if is_last else due) - now)
                    now = clock.monotonic()
                    if self._looked_at != seen_at and not is_last:
                        continue  # another thread has looked meanwhile: all look as one would
            portal.check_caller()
            self._looked_at = clock.monotonic()
            claimed = await _look(reader, wanted)
            self.lanes = reader.looked_at
            now = clock.monotonic()
            self._pace.note(now, has_found=bool(claimed), lanes=self.lanes)
            if claimed:
                return claimed
            if now >= deadline:
                return []

    def _take(self, lane: Lane, wanted: GetRequest) -> Readers:
        """Take an idle reader of this queue, which knows what it saw lately, or make a new one."""
        with self._lock:
            while self._idle:
                reader = self._idle.pop()
                if reader.lane == lane:
                    reader.lease_as(wanted.owner, wanted.visibility_us)
                    return reader
        return Readers(lane, owner=wanted.owner, run=None, visibility_us=wanted.visibility_us)


async def _look(reader: Readers, wanted: GetRequest) -> list[Claimed]:
    at_least = wanted.priority_at_least
    if not await reader.may_find(at_least=at_least):
        return []
    return await reader.get(wanted.at_most, at_least=at_least)


async def read_in_time(lane: Lane, claimed: list[Claimed]) -> list[Message]:
    """Read messages, and return those whose leases still run when all are read (I2) [T17].

    Expired ones are given back uncounted if nobody has claimed them again: nobody has seen them.
    """
    messages = await _read(lane, claimed)
    now_us = lane.clock.now_us()
    ended = [one for one in claimed if one.lease.until_us <= now_us]
    if not ended:
        return messages
    lost = sum(one.lease.runs.count for one in ended)
    metrics.LEASES_LOST.inc(lane.queue, lost)
    event(_logger, "get_ran_out", queue=lane.queue, messages=lost)
    await give_back(ended)
    gone = {one.lease.lease_id for one in ended}
    return [one for one in messages if one.proof is None or one.proof.lease_id not in gone]


async def _read(lane: Lane, claimed: list[Claimed]) -> list[Message]:
    """Read the bodies of what is leased, of all buckets together if all can be read."""
    try:
        with lane.store.session.within(each_s=PATIENT_GRACE_S):
            return await _read_claimed(lane, claimed)
    except CassieqError as error:
        held = [one for one in claimed if await _is_held(one)]
        if len(held) < len(claimed) and isinstance(error, DataLoss | LeaseLost | RowCorrupt):
            # This process slept: meanwhile others had it, acked it, and repair dropped it.
            return await _read(lane, held)
        return await _read_apart(lane, claimed, error)


async def _read_apart(lane: Lane, claimed: list[Claimed], error: CassieqError) -> list[Message]:
    """Read what can be read when a bucket does not answer or a stored row is damaged (I10).

    What did not answer is given back uncounted, as nobody has seen it [T22]. What is damaged stays
    leased until its time is over, and uses up a delivery: given back at once, it would be in every
    next get, and no get would ever succeed [T21].

    Raises:
        CassieqError: Nothing of it can be read. The next get goes on with other messages.
    """
    found: list[list[Message] | CassieqError] = [error]
    if len(claimed) > 1:
        with lane.store.session.within(each_s=PATIENT_GRACE_S):
            found = await lane.store.session.each(lambda one: _read_claimed(lane, [one]), claimed)
    messages: list[Message] = []
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


async def _read_claimed(lane: Lane, claimed: list[Claimed]) -> list[Message]:
    plan = [(one.planned, one.lease.until_us) for one in claimed]
    return [message async for message in read_messages(lane, plan, goes_on=True)]


async def _is_held(claimed: Claimed) -> bool:
    lane = claimed.lane
    return claimed.lease.until_us > lane.clock.now_us() and not await lane.is_dropped(
        claimed.bucket
    )
