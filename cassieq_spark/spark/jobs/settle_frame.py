"""`settle` lets executors carry out a verdict for each message of a batch.

See docs/design/settle.md and docs/design/source.md.

    tasks read receipts and verdicts  ->  the driver puts them together, and checks  ->  tasks
    carry them out, one CAS per bucket

Tasks make a few bytes of each record batch, grouped by bucket and lease, so that the driver finds
every mistake before anything is written, and one task gets all verdicts of a bucket: it costs one
CAS, however a program has shuffled its rows.
"""

from __future__ import annotations

import binascii
import reprlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from itertools import combinations
from typing import Any, Final, TypeAlias, Unpack
from uuid import UUID

import msgpack
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as all of PySpark's users write it
from pyspark.sql.types import NullType, StringType

from cassieq_spark.errors import OptionInvalid, ReceiptExpired, ReceiptInvalid, UsageError
from cassieq_spark.log import event, get_logger
from cassieq_spark.model import receipt as papers
from cassieq_spark.model.ids import EMPTY, OFFSET_LIMIT, BucketNo, LaneId, Place, Runs
from cassieq_spark.model.pointer import DELETED
from cassieq_spark.model.receipt import Receipt
from cassieq_spark.model.settlement import Ack, Action, Reject, Release
from cassieq_spark.options import (
    ConnectionArguments,
    ConnectionOptions,
    arguments,
    connection_of,
    queue_name,
)
from cassieq_spark.queue.find import LaneSpec, open_lane
from cassieq_spark.queue.lane import Lane, each_bucket
from cassieq_spark.queue.settle.batches import Settled, counted, total
from cassieq_spark.queue.settle.settle import check_dead_letter_queue, foreign, settle_bucket
from cassieq_spark.spark import arrays, boundary
from cassieq_spark.spark.columns import receipt_texts
from cassieq_spark.spark.environment import driver_context
from cassieq_spark.spark.worker import in_tasks, task_store
from cassieq_spark.store import portal, store

Work: TypeAlias = tuple[Place, Mapping[UUID, Mapping[str, Runs]]]

BUCKETS_PER_TASK: Final = 64
"""The number of buckets of one task. Each further task costs Spark 10 to 50 ms; it settles as many
buckets in that time.
"""

ACK: Final = "ack"
RELEASE: Final = "release"
REJECT: Final = "reject"
VERDICTS: Final = (ACK, RELEASE, REJECT)
"""The allowed values of the verdict column, besides null."""

_HEAD: Final = papers.RAW_BYTES - 12
"""The number of bytes that all receipts of one delivery share."""

_STANDARD: Final = bytes.maketrans(b"-_", b"+/")
"""From base64url to base64."""

_logger = get_logger("spark")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Order:
    """The data that a task needs; pickled into it."""

    connection: ConnectionOptions
    lane: LaneSpec
    reason: str
    delay_us: int


@boundary.crossing
def settle(
    df: DataFrame,
    verdict_column: str = "verdict",
    *,
    queue: str,
    contact_points: str | Sequence[str] | None = None,
    receipt_column: str = "receipt",
    delay: float | timedelta = 0,
    reason: str = "rejected",
    on_stale: str = "count",
    **connection: Unpack[ConnectionArguments],
) -> Settled:
    """Ack, release or reject each message of a DataFrame by its receipt. Runs two Spark jobs.

    Use it in ``foreachBatch`` under a source with ``ackMode`` = ``manual``; receipts of
    `Queue.get` work as well. The rows are computed once: if they are not deterministic, do not
    compute them again for something else. It is harmless to settle the same rows again, as a
    retried task or a replayed batch does.

    Args:
        verdict_column: ``"ack"``: done; ``"release"``: back to the queue; ``"reject"``: the next
            repair moves it to the dead-letter queue; null: unchanged, it comes back when its
            lease ends.
        queue: The queue that issued the receipts.
        contact_points, connection: As for `connect`, also by ``CASSIEQ_...`` variables.
        delay: Seconds or timedelta during which nobody gets released messages.
        reason: Why messages are rejected, at most 200 characters: header ``cassieq-reason``.
        on_stale: Receipts whose delivery has ended settle nothing. ``count``: they are counted,
            and a warning is logged; ``fail``: `ReceiptExpired` names them after all others are
            settled.

    Raises:
        OptionInvalid: An argument has a wrong form, a verdict is unknown, or one message has two;
            nothing was changed.
        ReceiptInvalid: A receipt is malformed, or of another queue; nothing was changed.
        UsageError: The DataFrame is a stream, or of Spark Connect, or a message is to be rejected
            and the queue has no dead-letter queue; nothing was changed.
        ReceiptExpired: Only with ``on_stale="fail"``.
        QueueNotFound: The queue does not exist.
        PySparkException: A task failed; the text also names errors of the store. Settle again.
    """
    others = ("queue", "verdict_column", "receipt_column", "delay", "reason", "on_stale")
    options = connection_of(connection, contact_points, of="settle", others=others)
    name = queue_name(queue)
    delay_us = arguments.delay_us(delay)
    why = arguments.reason(reason)
    when_stale = arguments.on_stale(on_stale)
    if df.isStreaming:
        raise UsageError(
            "settle takes the rows of one batch, but this DataFrame is a stream. Call it in the "
            "function of writeStream.foreachBatch(...)"
        )
    columns = [_column(df, name) for name in (receipt_column, verdict_column)]
    context = driver_context(
        df.sparkSession,
        "settle",
        "Collect the receipts, and call ack_each, release or reject of the queue",
    )
    lane = portal.run(open_lane(store.shared(options), name))
    gathered = put_together(lane, _read(df, columns))
    if gathered.rejects:
        check_dead_letter_queue(lane)
    order = _Order(connection=options, lane=LaneSpec.of(lane), reason=why, delay_us=delay_us)
    work = list(gathered.by_bucket.items())
    parts = in_tasks(context, partial(_in_task, order), work, per_task=BUCKETS_PER_TASK)
    settled = total(parts, left=gathered.left)
    if settled.stale:
        _tell_stale(lane, settled, fails=when_stale == "fail")
    return settled


def _column(df: DataFrame, name: str) -> Column:
    """The column of that name, whatever characters the name has."""
    if name not in df.columns:
        raise OptionInvalid(
            f"the DataFrame has no column {name!r}. It has: {', '.join(df.columns)}"
        )
    kind = df.schema[name].dataType
    if not isinstance(kind, StringType | NullType):
        raise OptionInvalid(f"column {name!r} is {kind.simpleString()}, allowed: string")
    quoted = name.replace("`", "``")
    return F.col(f"`{quoted}`").cast("string")


def _read(df: DataFrame, columns: Sequence[Column]) -> Iterator[bytes]:
    """Read the rows by an Arrow UDF: ``mapInArrow`` needs pandas, for nothing (Spark 4.3)."""
    udf = F.arrow_udf(gather, "binary")  # type: ignore[attr-defined]  # not in stubs
    # If it were deterministic, Spark would evaluate it for the filter, and again for the result.
    part = udf.asNondeterministic()(*columns).alias("part")
    for row in df.select(part).where("part is not null").collect():
        yield bytes(row.part)


@boundary.crossing
def _in_task(order: _Order, work: Iterable[Work]) -> Iterator[Settled]:
    """Runs in a Python worker, perhaps twice: the second run finds verdicts already carried out."""
    lane = order.lane.on(task_store(order.connection))
    due_us = lane.clock.now_us() + order.delay_us if order.delay_us else None
    actions: dict[str, Action] = {
        ACK: Ack(),
        RELEASE: Release(due_us=due_us),
        REJECT: Reject(reason=order.reason),
    }
    by_bucket = dict(work)

    async def one(place: Place) -> Settled:
        asked = {
            lease_id: {actions[verdict]: runs for verdict, runs in by_verdict.items()}
            for lease_id, by_verdict in by_bucket[place].items()
        }
        its_lane = lane.sibling(place.lane)
        outcome = await settle_bucket(its_lane, place.bucket, asked, tells_acked=True)
        return counted(its_lane, place.bucket, outcome.judged)

    yield total(list(portal.run(each_bucket(lane, one, by_bucket)).values()))


@dataclass(slots=True)
class Gathered:
    """The receipts and verdicts of a whole DataFrame.

    Attributes:
        left: The number of rows without a verdict.
    """

    by_bucket: dict[Place, dict[UUID, dict[str, Runs]]] = field(default_factory=dict)
    left: int = 0

    @property
    def rejects(self) -> bool:
        """Whether any message is rejected."""
        return any(
            REJECT in by_verdict
            for by_lease in self.by_bucket.values()
            for by_verdict in by_lease.values()
        )


def gather(receipts: pa.Array, verdicts: pa.Array) -> pa.Array:
    """An Arrow UDF: the result for a record batch is in its first row; all others are null.

    Runs in a task, and writes nothing.
    """
    if not len(receipts):
        return pa.array([], pa.binary())
    said: tuple[object, ...]
    try:
        said = (len(verdicts) - pc.count(verdicts).as_py(), list(_groups(receipts, verdicts)))
    except (OptionInvalid, ReceiptInvalid) as error:
        # A value that the driver raises: an exception of a task would arrive there as text only.
        said = (error.code, error.message)
    return pa.array([msgpack.packb(said), *[None] * (len(receipts) - 1)], pa.binary())


def put_together(lane: Lane, parts: Iterable[bytes]) -> Gathered:
    """Put together what all record batches say.

    Raises:
        OptionInvalid: A verdict is unknown, or one message has two.
        ReceiptInvalid: One is malformed, or of another queue.
    """
    gathered = Gathered()
    for part in parts:
        left, said = msgpack.unpackb(part)
        for kind in (OptionInvalid, ReceiptInvalid):
            if left == kind.code:
                raise kind(said)
        gathered.left += left
        for lane_id, bucket, lease_id, verdict, encoded in said:
            runs = Runs.decode(encoded)
            place = Place(LaneId(UUID(bytes=lane_id)), BucketNo(bucket))
            if not lane.fixed.has(place.lane):
                raise foreign(lane, "is of another queue, or of an earlier queue of this name")
            if bucket >= DELETED or runs.last >= lane.bucket_size:
                raise foreign(lane, "names messages that never existed")
            by_lease = gathered.by_bucket.setdefault(place, {})
            by_verdict = by_lease.setdefault(UUID(bytes=lease_id), {})
            by_verdict[verdict] = by_verdict.get(verdict, EMPTY) | runs
    _check_agreement(lane, gathered)
    return gathered


def _check_agreement(lane: Lane, gathered: Gathered) -> None:
    for place, by_lease in gathered.by_bucket.items():
        for lease_id, by_verdict in by_lease.items():
            for one, other in combinations(by_verdict, 2):
                if twice := by_verdict[one] & by_verdict[other]:
                    at = twice.first
                    receipt = Receipt(
                        lane=place.lane, bucket=place.bucket, lease_id=lease_id, first=at, last=at
                    )
                    raise OptionInvalid(
                        f"message {place.bucket * lane.bucket_size + at} of queue {lane.queue!r} "
                        f"has two verdicts, {one!r} and {other!r} (receipt {receipt.encode()}). "
                        "Nothing was changed. Give each message one verdict"
                    )


def _groups(
    receipts: pa.Array, verdicts: pa.Array
) -> Iterator[tuple[bytes, int, bytes, str, bytes]]:
    """Yield (lane, bucket, lease, verdict, runs) of one record batch."""
    for verdict in pc.unique(verdicts).to_pylist():
        if verdict is None:
            continue
        if verdict not in VERDICTS:
            allowed = ", ".join(map(repr, VERDICTS))
            raise OptionInvalid(
                f"a message's verdict is {reprlib.repr(verdict)}, allowed: {allowed} or null. "
                "Nothing was changed"
            )
        judged = receipts.filter(pc.fill_null(pc.equal(verdicts, verdict), fill_value=False))
        if judged.null_count:
            raise ReceiptInvalid(
                f"the verdict {verdict!r} is about a message without a receipt. Nothing was "
                "changed. Rows of spark.read have no receipt: they were looked at, not delivered"
            )
        for (lane, bucket, lease), runs in _places(judged.cast(pa.string())):
            yield lane, bucket, lease, verdict, runs.encode()


def _places(receipts: pa.StringArray) -> Iterator[tuple[tuple[bytes, int, bytes], Runs]]:
    """Yield ((lane, bucket, lease), runs) that receipts name, decoded together.

    Each decoded receipt is encoded again and compared: that proves it whole. A receipt that
    differs, or is of another kind, takes the slow way, which says what is wrong with it.
    """
    regular = pc.equal(pc.binary_length(receipts), papers.TEXT_LENGTH)
    texts, slow = receipts.filter(regular), receipts.filter(pc.invert(regular)).to_pylist()
    try:
        raw = _decoded(texts)
    except binascii.Error:
        raw, slow = np.zeros((0, papers.RAW_BYTES), dtype=np.uint8), receipts.to_pylist()
    for head, at, offsets in _deliveries(raw):
        given = texts.take(pa.array(at))
        is_same = np.asarray(pc.equal(receipt_texts(head, offsets), given))
        is_same &= (head[0] == papers.RECEIPT_VERSION) & (offsets < OFFSET_LIMIT)
        slow += given.filter(pa.array(~is_same)).to_pylist()
        if is_same.any():
            place, _ = _place(given[int(np.argmax(is_same))].as_py())
            yield place, arrays.runs(np.unique(offsets[is_same]))
    yield from map(_place, slow)


def _deliveries(
    raw: NDArray[np.uint8],
) -> Iterator[tuple[bytes, NDArray[Any], NDArray[np.int64]]]:
    """Yield (common beginning, positions, first offsets) of the receipts of each delivery."""
    if not len(raw):
        return
    heads = np.ascontiguousarray(raw[:, :_HEAD]).view(np.dtype((np.void, _HEAD))).ravel()
    firsts = np.ascontiguousarray(raw[:, _HEAD : _HEAD + 4]).view(">u4").ravel().astype(np.int64)
    unique, which, counts = np.unique(heads, return_inverse=True, return_counts=True)
    positions = np.split(np.argsort(which, kind="stable"), np.cumsum(counts)[:-1])
    for head, at in zip(unique, positions, strict=True):
        yield head.tobytes(), at, firsts[at]


def _place(text: str) -> tuple[tuple[bytes, int, bytes], Runs]:
    try:
        one = Receipt.decode(text)
        runs = Runs.span(one.first, one.last)
    except ReceiptInvalid as error:
        raise ReceiptInvalid(
            f"receipt {reprlib.repr(text)} is invalid, and nothing was changed: {error.message}"
        ) from error
    except ValueError as error:
        raise ReceiptInvalid(
            f"receipt {reprlib.repr(text)} names messages that never existed. Nothing was changed"
        ) from error
    return (one.lane.bytes, one.bucket, one.lease_id.bytes), runs


def _decoded(texts: pa.StringArray) -> NDArray[np.uint8]:
    """Decode base64url of `papers.TEXT_LENGTH` characters to (n, bytes).

    Raises:
        binascii.Error: One of them has other characters.
    """
    width = papers.TEXT_LENGTH
    padded = np.full((len(texts), -(-width // 4) * 4), ord("A"), dtype=np.uint8)
    start = np.frombuffer(texts.buffers()[1], dtype=np.int32)[texts.offset]
    characters = np.frombuffer(texts.buffers()[2] or b"", dtype=np.uint8)
    padded[:, :width] = characters[start : start + len(texts) * width].reshape(-1, width)
    raw = binascii.a2b_base64(padded.tobytes().translate(_STANDARD), strict_mode=True)
    return np.frombuffer(raw, dtype=np.uint8).reshape(len(texts), -1)


def _tell_stale(lane: Lane, settled: Settled, *, fails: bool) -> None:
    if fails:
        raise ReceiptExpired(
            f"{settled.stale} of the receipts to be settled in queue {lane.queue!r} have expired: "
            "nobody holds the messages by them any more. All others are settled. The first "
            f"expired one is {settled.stale_receipts[0]}. A longer visibilityTimeout helps",
            refused=settled.stale_receipts,
        )
    event(_logger, "acks_expired", queue=lane.queue, messages=settled.stale)
