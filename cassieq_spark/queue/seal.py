"""Close a bucket and fix its content (docs/design/ids-and-buckets.md). Holds I1, I5.

  insert `sealing`  ->  read L, scan all columns  ->  CAS `sealed` (+ a first lease)

Any client that finds a half-way seal helps from "read L" on. The first CAS wins, and a loser takes
the winner's manifest.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

from cassieq_spark import metrics
from cassieq_spark.log import event, get_logger
from cassieq_spark.model import bucket as rules
from cassieq_spark.model.bucket import Bucket, Lease, Status
from cassieq_spark.model.expiry import Life, kept_until
from cassieq_spark.model.ids import EMPTY, BucketNo, Runs
from cassieq_spark.model.lease import Terms, claim, expired_of
from cassieq_spark.model.outcome import Applied, Stored
from cassieq_spark.model.pointer import LATE_AFTER_US, is_passable, minute_of
from cassieq_spark.model.rows.intents import return_times_us
from cassieq_spark.queue.lane import Lane
from cassieq_spark.store.tables.messages import ChunkRow


@dataclass(frozen=True, slots=True, kw_only=True)
class Closed:
    """A bucket that is no longer open.

    Attributes:
        row: The row as it is now. It is still ``sealing`` only if another client's seal was left
            alone.
        is_ours: Whether this sealer's CAS has sealed it.
        leases: The leases that this sealer got by the same CAS [P16]; empty if another sealed it.
        chunks: With ``leases``, the rows that the scan read; such rows never change.
    """

    row: Stored[Bucket]
    is_ours: bool = False
    leases: tuple[Lease, ...] = ()
    chunks: Sequence[ChunkRow] = ()


async def close(
    lane: Lane,
    bucket: BucketNo,
    terms: Terms | None = None,
    *,
    is_filled: bool = False,
    helps: bool = True,
) -> Closed | None:
    """Close an open bucket, or help with one that is being closed.

    It costs two LWTs, one scan and two reads. It is safe at any moment: a put that is running finds
    the seal and takes a new id.

    Args:
        terms: The sealer's own claim.
        is_filled: Whether a message was seen there, so that the claim's hint is not in vain.
        helps: Whether to help with a seal that another client has begun meanwhile. If not, its row
            is returned as it is.

    Returns:
        None if the bucket was dropped long ago: repair removes the rows that are left there (G5)
        [P2].
    """
    returns = ExpiryHintWriter(lane, bucket)
    if terms is not None and is_filled:
        await returns.begin_hint(terms.until_us)
    outcome = await lane.buckets.insert(bucket, rules.sealing(now_us=lane.clock.now_us()))
    if outcome.now is None:
        return None
    if not (helps or isinstance(outcome, Applied)):
        return Closed(row=outcome.now)
    return await _carry_on(lane, bucket, outcome.now, returns, terms)


async def finish(lane: Lane, bucket: BucketNo, row: Stored[Bucket] | None) -> Closed | None:
    """Carry a seal to its end from "read L" on; return any other row as it is.

    Without a row, it closes the bucket; see `close`.

    The result means nothing alone, whatever its status: the bucket may have been sealed, drained
    and dropped meanwhile, and a copy of its first insert may have landed again. Read L after it
    before you act on it (G5, ADR 11).
    """
    if row is None:
        return await close(lane, bucket)
    return await _carry_on(lane, bucket, row, ExpiryHintWriter(lane, bucket), None)


async def _carry_on(
    lane: Lane,
    bucket: BucketNo,
    row: Stored[Bucket],
    returns: ExpiryHintWriter,
    terms: Terms | None,
) -> Closed | None:
    """Carry a seal to its end; see `finish`."""
    async for _ in lane.attempts():
        if row.value.status is not Status.SEALING:
            return Closed(row=row)
        # Both come after the row, and neither after the other. What L says is true of a scan that
        # ended before it, and the CAS after it finds whether the row is still there.
        low, scanned = lane.begin_pointers(), lane.messages.begin_scan(bucket)
        if bucket < (await low()).repair:
            return None
        chunks = await scanned()
        sealed = _sealed(lane, row.value, chunks)
        leases: tuple[Lease, ...] = ()
        gone = EMPTY
        if terms is not None:
            gone = expired_of(sealed, terms.now_us)
            sealed, leases = claim(sealed, terms, partial(lane.store.entropy.uuid_at, terms.now_us))
        await returns.hint(return_times_us(sealed))
        outcome = await lane.buckets.fill(bucket, row, sealed)
        if outcome.now is None:
            return None
        if isinstance(outcome, Applied):
            note_expired(lane, bucket, gone)
            await (
                returns.confirm()
            )  # for delays; the lease's claimer checks its own hint [P17] [T4]
            kept = chunks if leases else ()
            return Closed(row=outcome.now, is_ours=True, leases=leases, chunks=kept)
        row = outcome.now
    raise lane.contended(lane.bucket_title(bucket))


def _sealed(lane: Lane, row: Bucket, chunks: Sequence[ChunkRow]) -> Bucket:
    """Return the row as it is once it is sealed with what a scan has found.

    A row beyond the bucket's last id was never acknowledged, and its id belongs to the next bucket:
    it is left out (I6) [T1].
    """
    ids = Runs.span(0, lane.bucket_size - 1)
    manifest = EMPTY
    due_us: dict[int, int] = {}
    expires_us: dict[int, int] = {}
    for chunk in chunks:
        run = Runs.span(chunk.first, chunk.last) & ids
        manifest |= run
        if chunk.due_us is not None:
            due_us.update(dict.fromkeys(run.offsets(), chunk.due_us))
        if chunk.expires_us is not None:
            expires_us.update(dict.fromkeys(run.offsets(), chunk.expires_us))
    put_us = max((chunk.enqueued_us for chunk in chunks), default=0)
    return rules.sealed(
        row,
        manifest=manifest,
        due_us=due_us,
        size_bytes=sum(len(chunk.payload) for chunk in chunks),
        now_us=lane.clock.now_us(),
        life=Life(expires_us=expires_us, put_us=put_us, retention_us=lane.retention_us),
        has_keys=any(chunk.has_key for chunk in chunks),
    )


_logger = get_logger("queue")


class ExpiryHintWriter:
    """The hints of one bucket's CAS. Call `hint` before each try, and `confirm` after the last."""

    def __init__(self, lane: Lane, bucket: BucketNo) -> None:
        self._lane = lane
        self._bucket = bucket
        self._hinted_us: list[int] = []
        self._begun: tuple[int, Callable[[], Awaitable[None]]] | None = None

    async def begin_hint(self, time_us: int) -> None:
        """Begin to write one hint of the next try, without waiting, while its row is not known yet.

        `hint` waits for it.
        """
        now_us = self._lane.clock.now_us()
        wait = await self._lane.hints.begin_write([(self._bucket, time_us)], now_us=now_us)
        self._begun = time_us, wait

    async def hint(self, times_us: Iterable[int]) -> None:
        """Write a hint for each of these times. Messages whose time is over come back now [R12].

        A hint that `begin_hint` has written for this try is awaited, and not written again.
        """
        begun_us: int | None = None
        if self._begun is not None:
            begun_us, wait = self._begun
            self._begun = None
            await wait()
        now_us = self._lane.clock.now_us()
        self._hinted_us = [max(time_us, now_us) for time_us in times_us]
        # If the begun time is over by now, it was replaced by now, and is written.
        await self._write([time_us for time_us in self._hinted_us if time_us != begun_us], now_us)

    async def confirm(self) -> None:
        """Hint again, now, if a minute may have been passed before the CAS was answered.

        It reads nothing, and writes only if the CAS took half a minute or more. If a client dies
        before this, repair writes the hint, as for a claimer [P17].
        """
        now_us = self._lane.clock.now_us()
        if any(
            is_passable(minute_of(time_us), now_us=now_us + LATE_AFTER_US)
            for time_us in self._hinted_us
        ):
            await self._write([now_us], now_us)

    async def _write(self, times_us: Iterable[int], now_us: int) -> None:
        lane = self._lane
        await lane.hints.write([(self._bucket, time_us) for time_us in times_us], now_us=now_us)


def alive(lane: Lane, waiting: Sequence[ChunkRow]) -> list[ChunkRow]:
    """Leave out the messages of an unsealed bucket that a seal by now would find expired.

    Args:
        waiting: All messages of the bucket: retention counts from the latest.
    """
    if not waiting:
        return []
    now_us = lane.clock.now_us()
    put_us = max(chunk.enqueued_us for chunk in waiting)
    due_us = [chunk.due_us for chunk in waiting if chunk.due_us is not None]
    until_us = kept_until(put_us, due_us, lane.retention_us)
    if until_us is not None and until_us <= now_us:
        return []
    return [one for one in waiting if one.expires_us is None or one.expires_us > now_us]


def note_expired(lane: Lane, bucket: BucketNo, gone: Runs) -> None:
    """Count expired messages that a CAS has removed, after that CAS took effect."""
    if not gone:
        return
    metrics.MESSAGES_EXPIRED.inc(lane.queue, gone.count)
    event(
        _logger,
        "messages_expired",
        **lane.as_fields(bucket),
        messages=gone.count,
        dead=lane.expired_die,
    )
