"""A verdict for each message of a batch: what `settle` and ``ackMode`` = ``manual`` promise."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F  # noqa: N812 - as all of PySpark's users write it

import cassieq_spark as cassieq
from cassieq_spark.errors import OptionInvalid, OptionUnknown
from cassieq_spark.model import dead_letter
from cassieq_spark.spark import settle
from cassieq_spark.store import portal, store
from tests.fixtures.cassandra import KEYSPACE
from tests.fixtures.processes import CHILDREN
from tests.fixtures.streams import Collected, Streams, bodies, failure_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import DataFrame, Row

    from cassieq_spark.queue.inspect.stats import QueueStats
    from tests.fixtures.processes import Script

RETRIED = CHILDREN / "settled_tasks.py"
WHY = "no such customer"


@pytest.fixture(autouse=True)
def _disconnected() -> Iterator[None]:
    """`settle` keeps its session for the driver's next batch: here for no other test."""
    yield
    store.close_shared()


@pytest.fixture
def orders(streams: Streams) -> Streams:
    """A queue that has a dead-letter queue, and leases that outlast a test on a slow machine."""
    target = streams.another("dead")
    return streams.another(
        "orders",
        bucket_size=500,
        visibility_timeout=600,
        dead_letter_queue=target.queue.name,
    )


def connection(of: Streams) -> dict[str, Any]:
    """As keyword arguments."""
    return {
        "queue": of.queue.name,
        "contact_points": of.options["contactPoints"],
        "keyspace": KEYSPACE,
    }


def got(of: Streams, count: int) -> list[cassieq.Delivery]:
    """So many messages of a program, which has their receipts."""
    of.queue.put_many([b"m-%d" % number for number in range(count)])
    messages = of.queue.get(count)
    assert count == len(messages)
    return sorted(messages, key=lambda message: message.id)


def judged(of: Streams, *rows: tuple[str | None, str | None]) -> DataFrame:
    """Receipts and verdicts, in two partitions."""
    return of.spark.createDataFrame(list(rows), "receipt string, verdict string").repartition(2)


def dead_letters(of: Streams) -> cassieq.Queue:
    """Where its dead go."""
    return of.client.queue(str(of.queue.settings.dead_letter_queue))


def holds(of: Streams) -> tuple[int, int, int]:
    """(visible, invisible, dead)."""
    stats: QueueStats = of.queue.stats()
    return stats.visible, stats.in_flight, stats.dead


class _Settles(Collected):
    """A ``foreachBatch`` that settles each batch by an SQL expression, and then may fail."""

    def __init__(self, of: Streams, verdict: str, *, fails_in: int = -1, **more: Any) -> None:
        super().__init__()
        self.settled: list[cassieq.Settled] = []
        self._verdict = F.expr(verdict)
        self._fails_in = fails_in
        self._arguments = {**connection(of), **more}

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        super().__call__(frame, batch_id)
        ruled = frame.withColumn("verdict", self._verdict)
        self.settled.append(settle(ruled, **self._arguments))
        if batch_id == self._fails_in:
            self._fails_in = -1
            raise RuntimeError("between settle and Spark's commit")


NUMBER = "cast(substr(cast(body as string), 3) as int)"


@pytest.mark.invariant("I1")
@pytest.mark.invariant("I4")
def test_each_message_goes_the_way_of_its_verdict(orders: Streams) -> None:
    orders.put(orders.numbered(0, 1_200))
    handler = _Settles(
        orders,
        f"""case when delivery_count = 2 then 'ack' else
            case {NUMBER} % 4 when 0 then 'ack' when 1 then 'release' when 2 then 'reject' end
            end""",
        reason=WHY,
    )

    assert orders.start(orders.source(ackMode="manual"), handler).awaitTermination(120)

    first, second = handler.settled
    assert cassieq.Settled(acked=300, released=300, rejected=300, left=300) == first
    assert cassieq.Settled(acked=300) == second
    (_, _), (_, again) = handler.calls
    assert {2} == {row.delivery_count for row in again}
    assert {b"m-%d" % number for number in range(1, 1_200, 4)} == {bytes(r.body) for r in again}
    # What had no verdict is nobody's until its lease ends; then it comes, and nothing else does.
    assert (0, 300, 300) == holds(orders)
    assert 300 == orders.client.repair(orders.queue.name).queues[0].moved_dead
    moved = dead_letters(orders).get(1_000)
    assert {b"m-%d" % number for number in range(2, 1_200, 4)} == {one.body for one in moved}
    for one in moved:
        (hop,) = json.loads(one.headers[dead_letter.HISTORY])
        assert (WHY, "1", orders.queue.name) == (
            hop["reason"],
            hop["deliveries"],
            hop["source-queue"],
        )
    with orders.in_an_hour() as later:
        back = portal.run(orders.consumer(later).get(10_000))
    assert 300 == sum(one.lease.runs.count for one in back)
    assert {2} == {one.lease.delivery_count for one in back}


@pytest.mark.invariant("I4")
def test_a_crash_behind_settle_replays_what_was_not_settled_and_loses_nothing(
    orders: Streams,
) -> None:
    """Whole leases are gone then, and onLeaseLost=fail has nothing against it."""
    orders.put(orders.numbered(0, 1_000).coalesce(1))
    handler = _Settles(orders, f"if({NUMBER} < 600, 'ack', null)", fails_in=0)
    source = orders.source(ackMode="manual", onLeaseLost="fail")

    assert "between settle and Spark's commit" in failure_of(orders.start(source, handler))
    handler._verdict = F.lit("ack")
    assert orders.start(source, handler).awaitTermination(120)

    assert [0, 0] == handler.batch_ids
    (_, failed), (_, replayed) = handler.calls
    assert bodies(0, 1_000) == bodies_in(failed)
    assert bodies(600, 1_000) == bodies_in(replayed)
    assert {1} == {row.delivery_count for row in replayed}
    assert [600, 400] == [one.acked for one in handler.settled]
    assert orders.is_empty()


def bodies_in(rows: list[Row]) -> object:
    return Collected([(0, rows)]).bodies


def test_a_batch_that_was_settled_whole_is_replayed_empty(orders: Streams) -> None:
    orders.put(orders.numbered(0, 300))
    handler = _Settles(orders, "'ack'", fails_in=0)
    source = orders.source(ackMode="manual", onLeaseLost="fail")

    failure_of(orders.start(source, handler))
    assert orders.start(source, handler).awaitTermination(120)

    assert [cassieq.Settled(acked=300), cassieq.Settled()] == handler.settled
    assert orders.is_empty()


def test_without_a_verdict_manual_acks_nothing_and_commit_all(orders: Streams) -> None:
    """In the default mode only the bad ones need a verdict."""
    orders.put(orders.numbered(0, 100))
    manual = orders.drain(checkpoint="manual", ackMode="manual")
    assert bodies(0, 100) == manual.bodies
    assert (0, 100, 0) == holds(orders)

    orders.put(orders.numbered(100, 200))
    handler = _Settles(orders, f"if({NUMBER} < 110, 'reject', null)")
    assert orders.start(orders.source(), handler, checkpoint="commit").awaitTermination(120)

    assert [cassieq.Settled(rejected=10, left=90)] == handler.settled
    assert (0, 100, 10) == holds(orders)


def test_a_batch_may_be_settled_in_parts_and_a_part_twice(orders: Streams) -> None:
    messages = got(orders, 30)
    receipts = [one.receipt for one in messages]
    first = judged(orders, *((one, "ack") for one in receipts[:10]))
    rest = judged(
        orders,
        *((one, "release") for one in receipts[10:20]),
        *((one, "reject") for one in receipts[20:]),
    )

    assert cassieq.Settled(acked=10) == settle(first, **connection(orders))
    assert cassieq.Settled(released=10, rejected=10) == settle(rest, **connection(orders))
    assert cassieq.Settled(released=10, rejected=10) == settle(rest, **connection(orders))
    assert cassieq.Settled(already_acked=10) == settle(first, **connection(orders))
    assert (10, 0, 10) == holds(orders)


@pytest.mark.long
@pytest.mark.invariant("I3")
@pytest.mark.invariant("I4")
def test_tasks_that_die_behind_their_writes_settle_once_and_need_no_pandas(
    orders: Streams, start_script: Callable[..., Script], tmp_path: Path
) -> None:
    """In a session of its own: local[2] never retries, local[2,4] does."""
    no_pandas = tmp_path / "no_pandas"
    (no_pandas / "pandas").mkdir(parents=True)
    (no_pandas / "pandas" / "__init__.py").write_text("raise ImportError('none here')")
    messages = got(orders, 900)
    verdicts = ("ack", "release", "reject", None)
    rows = [(one.receipt, verdicts[at % 4]) for at, one in enumerate(messages)]

    root = Path(cassieq.__file__).parents[1]
    script = start_script(
        RETRIED.read_text(encoding="utf-8"),
        json.dumps(connection(orders)),
        json.dumps(rows),
        "1",
        env={"PYTHONPATH": f"{no_pandas}:{root}"},
    )

    assert 0 == script.wait(), script.output
    (line,) = (one for one in script.lines if one.startswith("SETTLED "))
    # What a task has acked it finds so when it comes again.
    assert {
        "acked": 0,
        "already_acked": 225,
        "released": 225,
        "rejected": 225,
        "stale": 0,
        "left": 225,
        "stale_receipts": [],
    } == json.loads(line.removeprefix("SETTLED "))
    assert (225, 225, 225) == holds(orders)
    assert {2} == {one.delivery_count for one in orders.queue.get(225)}


@pytest.mark.invariant("I3")
def test_what_came_to_somebody_again_is_counted_or_fails_by_name(
    orders: Streams, caplog: pytest.LogCaptureFixture
) -> None:
    messages = got(orders, 6)
    orders.queue.release(messages[:2])
    again = orders.queue.get()
    frame = judged(orders, *((one.receipt, "ack") for one in messages[:4]))

    with caplog.at_level(logging.WARNING, logger="cassieq_spark"):
        settled = settle(frame, **connection(orders))

    assert (2, 2) == (settled.acked, settled.stale)
    assert {one.receipt for one in messages[:2]} == set(settled.stale_receipts)
    (record,) = (one for one in caplog.records if one.event == "acks_expired")
    assert {"queue": orders.queue.name, "messages": 2} == record.fields

    frame = judged(orders, *((one.receipt, "ack") for one in messages))
    with pytest.raises(cassieq.ReceiptExpired) as refused:
        settle(frame, on_stale="fail", **connection(orders))
    assert {one.receipt for one in messages[:2]} == set(refused.value.refused)
    # The others are settled all the same, and whose it is now has lost nothing.
    assert (0, 2, 0) == holds(orders)
    orders.queue.ack(again)
    assert orders.is_empty()


def test_an_updated_message_is_settled_by_its_new_receipt_and_dies_with_its_new_body(
    orders: Streams,
) -> None:
    messages = got(orders, 3)
    updated = orders.queue.update(messages[0], body=b"new")
    acked = orders.queue.update(messages[1], body=b"newer")
    frame = judged(
        orders,
        (messages[0].receipt, "ack"),
        (updated.receipt, "reject"),
        (acked.receipt, "ack"),
        (messages[2].receipt, "ack"),
    )

    settled = settle(frame, **connection(orders))

    assert (2, 1, (messages[0].receipt,)) == (
        settled.acked,
        settled.rejected,
        settled.stale_receipts,
    )
    orders.client.repair(orders.queue.name)
    (moved,) = dead_letters(orders).get()
    assert (b"new", "rejected") == (moved.body, moved.headers["cassieq-reason"])


def test_what_is_released_with_a_delay_is_hidden_so_long(orders: Streams) -> None:
    messages = got(orders, 4)
    frame = judged(orders, *((one.receipt, "release") for one in messages))

    assert 4 == settle(frame, delay=600, **connection(orders)).released

    assert (4, []) == (orders.queue.stats().delayed, orders.queue.get())
    with orders.in_an_hour() as later:
        assert 4 == sum(one.lease.runs.count for one in portal.run(orders.consumer(later).get(10)))


def test_a_bucket_costs_one_cas_however_its_rows_are_shuffled(orders: Streams) -> None:
    """Three buckets, eight input partitions with rows of each."""
    orders.put(orders.numbered(0, 1_500).coalesce(1))
    messages = orders.queue.get(1_500)
    assert 3 == len({one.id // 500 for one in messages})
    rows = [(one.receipt, "ack") for one in messages]
    frame = orders.spark.createDataFrame(rows, "receipt string, verdict string").repartition(8)
    before = orders.queue.stats().applied_lwts

    assert cassieq.Settled(acked=1_500) == settle(frame, **connection(orders))

    assert 3 == orders.queue.stats().applied_lwts - before


@pytest.mark.parametrize(
    ("row", "error", "says"),
    [
        ((None, "done"), OptionInvalid, "verdict is 'done', allowed: 'ack', 'release', "),
        (("AQ", "ack"), cassieq.ReceiptInvalid, "has 71 characters, but this one has 2"),
        ((None, "ack"), cassieq.ReceiptInvalid, "without a receipt"),
        (("other", "ack"), cassieq.ReceiptInvalid, "is of another queue"),
        (("first", "reject"), OptionInvalid, "has two verdicts, 'ack' and 'reject'"),
    ],
)
def test_one_wrong_row_and_nothing_at_all_is_written(
    orders: Streams, row: tuple[str | None, str], error: type[Exception], says: str
) -> None:
    messages = got(orders, 20)
    other = got(orders.another("other"), 1)
    names = {"other": other[0].receipt, "first": messages[0].receipt}
    wrong = (names.get(row[0] or "", row[0]), row[1])
    frame = judged(orders, *((one.receipt, "ack") for one in messages), wrong)

    with pytest.raises(error) as refused:
        settle(frame, **connection(orders))

    assert says in str(refused.value)
    assert (0, 20, 0) == holds(orders)


def test_r22_a_queue_without_a_dead_letter_queue_takes_no_rejection(streams: Streams) -> None:
    messages = got(streams, 3)
    frame = judged(streams, (messages[0].receipt, "ack"), (messages[1].receipt, "reject"))

    with pytest.raises(cassieq.UsageError, match="has no dead-letter queue"):
        settle(frame, **connection(streams))

    assert (0, 3, 0) == holds(streams)


def test_frames_and_arguments_that_do_not_fit_are_refused_by_name(orders: Streams) -> None:
    to = connection(orders)
    frame = judged(orders, (None, None))
    with pytest.raises(cassieq.UsageError, match="is a stream"):
        settle(orders.source().withColumn("verdict", F.lit("ack")), **to)
    with pytest.raises(OptionInvalid, match=r"no column 'judgement'\. It has: rec"):
        settle(frame, "judgement", **to)
    with pytest.raises(OptionInvalid, match="column 'verdict' is int, allowed: string"):
        settle(frame.withColumn("verdict", F.lit(1)), **to)
    with pytest.raises(OptionInvalid, match="on_stale is 'ignore', allowed: 'count' or"):
        settle(frame, on_stale="ignore", **to)
    with pytest.raises(OptionUnknown, match="Did you mean 'ssl_ca_file'"):
        settle(frame, ssl_ca_files="ca.pem", **to)
    with pytest.raises(cassieq.QueueNotFound):
        settle(frame, **{**to, "queue": "nobody"})
    assert cassieq.Settled(left=1) == settle(frame, **to)


def test_columns_of_any_name_and_the_environment_serve_as_well(
    orders: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    message, other = got(orders, 2)
    monkeypatch.setenv("CASSIEQ_CONTACT_POINTS", orders.options["contactPoints"])
    monkeypatch.setenv("CASSIEQ_KEYSPACE", KEYSPACE)
    rows = [(message.receipt, "ack"), (other.receipt, None)]
    frame = orders.spark.createDataFrame(rows, "`the.receipt` string, `the ``verdict` string")

    settled = settle(frame, "the `verdict", receipt_column="the.receipt", queue=orders.queue.name)

    assert cassieq.Settled(acked=1, left=1) == settled
