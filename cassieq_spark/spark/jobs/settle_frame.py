"""`settle` lets executors carry out a verdict for each message of a batch (design 5, 7).

    tasks read receipts and verdicts  ->  the driver puts them together, and checks  ->  tasks
    carry them out, one CAS per bucket

Everything is checked before anything is written, and one task gets all verdicts of a bucket: it
costs one CAS, however a program has shuffled its rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as all of PySpark's users write it
from pyspark.sql.types import NullType, StringType

from cassieq_spark.errors import OptionInvalid, ReceiptExpired, UsageError
from cassieq_spark.log import event, get_logger
from cassieq_spark.model.settlement import Ack, Action, Reject, Release
from cassieq_spark.options import ConnectionOptions, arguments, parse_connection, queue_name
from cassieq_spark.queue.find import LaneSpec, open_lane
from cassieq_spark.queue.lane import each_bucket
from cassieq_spark.queue.settle.batches import Settled, counted, total
from cassieq_spark.queue.settle.settle import check_dead_letter_queue, settle_bucket
from cassieq_spark.spark import boundary
from cassieq_spark.spark.environment import driver_context
from cassieq_spark.spark.jobs import verdicts
from cassieq_spark.spark.worker import task_store
from cassieq_spark.store import portal, store

if TYPE_CHECKING:
    from uuid import UUID

    from pyspark import SparkContext

    from cassieq_spark.model.ids import Place, Runs
    from cassieq_spark.queue.lane import Lane

    Work = tuple[Place, Mapping[UUID, Mapping[str, Runs]]]

BUCKETS_PER_TASK: Final = 64
"""How many buckets one task gets. Each further task costs Spark 10 to 50 ms; it settles as many
buckets in that time.
"""

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
    keyspace: str | None = None,
    datacenter: str | None = None,
    receipt_column: str = "receipt",
    delay: float | timedelta = 0,
    reason: str = "rejected",
    on_stale: str = "count",
    **options: Any,
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
        contact_points, keyspace, datacenter: As for `connect`, also by ``CASSIEQ_...`` variables.
        delay: Seconds or timedelta during which nobody gets released messages.
        reason: Why messages are rejected, at most 200 characters: header ``cassieq-reason``.
        on_stale: Receipts whose delivery has ended settle nothing. ``count``: they are counted,
            and a warning is logged; ``fail``: `ReceiptExpired` names them after all others are
            settled.
        options: Further connection options: ``username``, ``password``, ``ssl_ca_file`` and so on.

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
    connection = parse_connection(
        {
            "contactPoints": contact_points,
            "keyspace": keyspace,
            "datacenter": datacenter,
            **{option.replace("_", ""): value for option, value in options.items()},
        }
    )
    name = queue_name(queue)
    delay_us = arguments.delay_us(delay)
    why = arguments.reason(reason)
    when_stale = arguments.on_stale(on_stale)
    columns = _columns(df, receipt_column, verdict_column)
    context = driver_context(
        df.sparkSession,
        "settle",
        "Collect the receipts, and call ack_each, release or reject of the queue",
    )
    lane = portal.run(open_lane(store.shared(connection), name))
    gathered = verdicts.put_together(lane, _read(df, *columns))
    if gathered.rejects:
        check_dead_letter_queue(lane)
    order = _Order(
        connection=connection,
        lane=LaneSpec.of(lane),
        reason=why,
        delay_us=delay_us,
    )
    parts = _carry_out(context, order, list(gathered.by_bucket.items()))
    settled = total(parts, left=gathered.left)
    if settled.stale:
        _tell_stale(lane, settled, fails=when_stale == "fail")
    return settled


def _columns(df: DataFrame, receipts: str, verdict: str) -> tuple[Column, Column]:
    if df.isStreaming:
        raise UsageError(
            "settle takes the rows of one batch, but this DataFrame is a stream. Call it in the "
            "function of writeStream.foreachBatch(...)"
        )
    for name in (receipts, verdict):
        if name not in df.columns:
            raise OptionInvalid(
                f"the DataFrame has no column {name!r}. It has: {', '.join(df.columns)}"
            )
        kind = df.schema[name].dataType
        if not isinstance(kind, StringType | NullType):
            raise OptionInvalid(f"column {name!r} is {kind.simpleString()}, allowed: string")
    return _column(receipts), _column(verdict)


def _column(name: str) -> Column:
    """The column of that name, whatever characters the name has."""
    quoted = name.replace("`", "``")
    return F.col(f"`{quoted}`").cast("string")


def _read(df: DataFrame, receipts: Column, verdict: Column) -> Iterator[bytes]:
    """Read the rows by an Arrow UDF: ``mapInArrow`` needs pandas, for nothing (Spark 4.3)."""
    gather = F.arrow_udf(verdicts.gather, "binary")  # type: ignore[attr-defined]  # not in stubs
    # If it were deterministic, Spark would evaluate it for the filter, and again for the result.
    part = gather.asNondeterministic()(receipts, verdict).alias("part")
    for row in df.select(part).where("part is not null").collect():
        yield bytes(row.part)


def _carry_out(context: SparkContext, order: _Order, work: list[Work]) -> list[Settled]:
    if not work:
        return []
    tasks = min(context.defaultParallelism, -(-len(work) // BUCKETS_PER_TASK))
    return context.parallelize(work, tasks).mapPartitions(partial(_in_task, order)).collect()


@boundary.crossing
def _in_task(order: _Order, work: Iterator[Work]) -> Iterator[Settled]:
    """Runs in a Python worker, perhaps twice: the second run finds verdicts already carried out."""
    lane = order.lane.on(task_store(order.connection))
    due_us = lane.clock.now_us() + order.delay_us if order.delay_us else None
    actions: dict[str, Action] = {
        verdicts.ACK: Ack(),
        verdicts.RELEASE: Release(due_us=due_us),
        verdicts.REJECT: Reject(reason=order.reason),
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


def _tell_stale(lane: Lane, settled: Settled, *, fails: bool) -> None:
    if fails:
        raise ReceiptExpired(
            f"{settled.stale} of the receipts to be settled in queue {lane.queue!r} have expired: "
            "nobody holds the messages by them any more. All others are settled. The first "
            f"expired one is {settled.stale_receipts[0]}. A longer visibilityTimeout helps",
            refused=settled.stale_receipts,
        )
    event(_logger, "verdicts_stale", queue=lane.queue, messages=settled.stale)
