"""Every scenario of the connector's door, in one session on a cluster of two hosts.

Prints one JSON line for each: what its calls did. What is in the queues the parent sees itself.
A cluster, because Spark neither speculates nor loses a block in local mode; two hosts, because it
puts no speculative attempt where the first one runs.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

import cassieq_spark
from cassieq_spark.spark import foreach_batch, spark_config
from cassieq_spark.spark.connector import writer
from cassieq_spark.store import store
from cassieq_spark.testing import wait_until
from tests.children import connector_stops
from tests.fixtures.transports import driver_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming import StreamingQuery

connection, prefix, directory = json.loads(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
HOSTS = ("127.0.0.1", "127.0.0.2")
JAVA_OPTIONS = os.environ["TEST_JAVA_OPTIONS"]
SECRET = "the-password-nobody-may-see"  # noqa: S105 - looked for in what Spark keeps


def say(scenario: str, **what: Any) -> None:
    os.write(1, f"{json.dumps({'scenario': scenario, **what})}\n".encode())


# --- the cluster ----------------------------------------------------------------------------------


def start_session() -> SparkSession:
    """Master and workers run in the driver's JVM, as Spark's own local-cluster has it; that has
    one host only. Executors are processes of their own."""
    conf = SparkConf().setAll(
        [
            *spark_config(connection["contact_points"]).items(),
            ("spark.app.name", "connector door"),
            ("spark.ui.enabled", "false"),
            ("spark.ui.showConsoleProgress", "false"),
            ("spark.driver.host", "127.0.0.1"),
            ("spark.driver.bindAddress", "127.0.0.1"),
            ("spark.driver.memory", "768m"),
            ("spark.executor.memory", "512m"),
            ("spark.executor.cores", "1"),
            ("spark.task.maxFailures", "4"),
            ("spark.speculation", "true"),
            ("spark.speculation.interval", "100ms"),
            ("spark.speculation.minTaskRuntime", "2s"),
            ("spark.speculation.quantile", "0.5"),
            ("spark.speculation.multiplier", "2"),
            ("spark.sql.shuffle.partitions", "2"),
            ("spark.driver.extraJavaOptions", JAVA_OPTIONS),
            ("spark.executor.extraJavaOptions", JAVA_OPTIONS),
            ("spark.local.dir", str(directory / "local")),
            # What a program has set for tables of its own must not hold for messages.
            ("spark.cassandra.output.ttl", "1"),
            ("spark.cassandra.output.ifNotExists", "true"),
            ("spark.cassandra.output.consistency.level", "ANY"),
        ]
    )
    SparkContext._ensure_initialized(conf=conf)
    jvm: Any = SparkContext._jvm
    java_conf = jvm.org.apache.spark.SparkConf(True)
    deploy = jvm.org.apache.spark.deploy
    started = deploy.master.Master.startRpcEnvAndEndpoint(HOSTS[0], 0, 0, java_conf)
    url = f"spark://{HOSTS[0]}:{started._1().address().port()}"
    urls = SparkContext._gateway.new_array(jvm.java.lang.String, 1)
    urls[0] = url
    for number, host in enumerate(HOSTS):
        deploy.worker.Worker.startRpcEnvAndEndpoint(
            host,
            0,
            0,
            1,
            768,
            urls,
            str(directory / "work"),
            jvm.scala.Some(number),
            java_conf,
            jvm.scala.Option.empty(),
        )
    conf.set("spark.master", url)
    return SparkSession.builder.config(conf=conf).getOrCreate()


# --- what scenarios are made of -------------------------------------------------------------------


def door(queue: str, **more: Any) -> Callable[[DataFrame, int], None]:
    return foreach_batch(queue=f"{prefix}.{queue}", **connection, **more)


def numbered(first: int, end: int, partitions: int = 2) -> DataFrame:
    return spark.range(first, end, 1, partitions).selectExpr(
        "cast(concat('m-', id) as binary) as body"
    )


def query_of(
    scenario: str,
    handler: Callable[[DataFrame, int], None],
    *,
    files: int = 1,
    rows: int = 200,
    checkpoint: str = "checkpoint",
) -> StreamingQuery:
    """One batch for each file of so many messages, numbered through."""
    place = directory / scenario
    source = place / "source"
    if not source.exists():
        source.mkdir(parents=True)
        for number in range(files):
            lines = (f"m-{at}\n" for at in range(number * rows, (number + 1) * rows))
            (source / f"{number}.txt").write_text("".join(lines))
            os.utime(source / f"{number}.txt", (1_000 + number, 1_000 + number))
    return (
        spark.readStream.format("text")
        .option("maxFilesPerTrigger", 1)
        .load(str(source))
        .selectExpr("cast(value as binary) as body")
        .writeStream.foreachBatch(handler)
        .option("checkpointLocation", str(place / checkpoint))
        .trigger(availableNow=True)
        .start()
    )


def failure_of(act: Callable[[], object]) -> str:
    """The whole text of what it raises, causes and all; "" if nothing."""
    try:
        act()
    except Exception as error:  # noqa: BLE001 - whatever it is, the parent judges its text
        return str(error)
    return ""


def stored(queue: str) -> list[tuple[Any, ...]]:
    """Every message row of the queue's first buckets, with the time it was written."""
    lane = client.queue(f"{prefix}.{queue}")._lane
    table = f"{connection['keyspace']}.message"
    asked = (
        "SELECT first, part, count, parts, payload, due_us, enqueued_us, writetime(payload), "  # noqa: S608 - the tests' own
        f"ttl(payload) FROM {table} WHERE lane = %s AND bucket = %s"
    )
    return [
        tuple(row)
        for bucket in range(4)
        for row in driver_of(client._session).session.execute(asked, (lane.lane_id, bucket))
    ]


class Patched:
    """For a block: something of the door in another form."""

    def __init__(self, name: str, make: Callable[[Any], Any]) -> None:
        self._name, self._make, self._was = name, make, getattr(writer, name)

    def __enter__(self) -> None:
        setattr(writer, self._name, self._make(self._was))

    def __exit__(self, *exc: object) -> None:
        setattr(writer, self._name, self._was)


def mapped_rows(function: Any) -> Patched:
    """The rows that are to be written go through a function in each writing task."""

    def make(message_rows: Any) -> Any:
        def changed(*args: Any, **kwargs: Any) -> DataFrame:
            rows = message_rows(*args, **kwargs)
            return rows.mapInArrow(function, rows.schema)

        return changed

    return Patched("message_rows", make)


def around_save(before: Callable[[], None], after: Callable[[], None]) -> Patched:
    def make(save: Any) -> Any:
        def changed(*args: Any, **kwargs: Any) -> None:
            before()
            save(*args, **kwargs)
            after()

        return changed

    return Patched("saving", make)


def before_save(act: Callable[[], None]) -> Patched:
    return around_save(act, lambda: None)


# --- scenarios ------------------------------------------------------------------------------------


def replays() -> None:
    """Every batch is called for again: by a new run after its commit, and before it."""
    put, calls, failed = door("replays"), [], set()

    def handler(frame: DataFrame, batch_id: int) -> None:
        calls.append(batch_id)
        if batch_id == 1 and "before" not in failed:
            failed.add("before")
            raise RuntimeError("before the batch")
        put(frame, batch_id)
        if batch_id not in failed:
            failed.add(batch_id)
            raise RuntimeError("after the commit")

    for _ in range(10):
        query = query_of("replays", handler, files=3)
        if not failure_of(lambda query=query: query.awaitTermination()):
            break
    say("replays", calls=calls, query=str(query.id))


def outside_a_query() -> None:
    """Empty, one message, twice the same id, and every column; replays of a program without Spark's
    query are skipped; without a name there is no transaction."""
    put = door("outside", sink_id=f"{prefix}.outside", chunk_messages=7)
    put(numbered(0, 0), 0)
    put(numbered(0, 1, 1), 1)
    put(numbered(0, 1, 1), 1)
    same = "00000000-0000-4000-8000-000000000001"
    every = spark.range(0, 60, 1, 3).selectExpr(
        "cast(concat('e-', id) as binary) as body",
        "if(id % 2 = 0, concat('t', id), null) as tag",
        "map('n', cast(id as string)) as headers",
        f"if(id < 2, '{same}', null) as message_id",
        "if(id >= 50, 600, 0) as delay",
    )
    put(every, 2)
    large = spark.range(1).selectExpr("cast(repeat('0123456789abcdef', 200000) as binary) as body")
    put(large, 3)
    say("outside", unnamed=failure_of(lambda: door("outside")(numbered(0, 1), 4)))


def several_lanes() -> None:
    """Rows of all priorities, some with a key, in batches that fill several buckets of a lane."""
    put = door("lanes", sink_id=f"{prefix}.lanes", chunk_messages=7)
    for batch in range(2):
        rows = spark.range(batch * 300, (batch + 1) * 300, 1, 3).selectExpr(
            "cast(concat('m-', id) as binary) as body",
            "if(id % 5 = 4, null, id % 2) as priority",
            "if(id % 3 = 0, concat('k', id % 7), null) as key",
            "if(id % 4 = 0, null, concat('g', id % 4)) as `group`",
        )
        put(rows, batch)
        put(rows, batch)
    wrong = spark.range(3).selectExpr("cast('m' as binary) as body", "id as priority")
    say("lanes", wrong=failure_of(lambda: put(wrong, 2)))


def scheduled() -> None:
    """Rows for more due lanes than are opened at once, and rows that nobody has to wait for."""
    put = door("scheduled", sink_id=f"{prefix}.scheduled", chunk_messages=7)
    rows = spark.range(0, 300, 1, 3).selectExpr(
        "cast(concat('m-', id) as binary) as body",
        "id % 2 as priority",
        "if(id % 3 = 0, null, current_timestamp() + make_dt_interval(2 + id % 70)) as due_at",
    )
    put(rows, 0)
    put(rows, 0)
    both = spark.range(3).selectExpr(
        "cast('m' as binary) as body", "id as delay", "now() as due_at"
    )
    say("scheduled", both=failure_of(lambda: put(both, 1)))


def failing_tasks() -> None:
    """The first attempt of each task fails: of those that pack, and of those that write."""

    def source_fails(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext  # noqa: PLC0415 - in a worker

        for batch in batches:
            yield batch.slice(0, 10)
            if TaskContext.get().attemptNumber() == 0:  # type: ignore[union-attr]  # in a task
                raise RuntimeError("packing fails half-way")
            yield batch.slice(10)

    def writing_fails(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext  # noqa: PLC0415 - in a worker

        for number, batch in enumerate(batches):
            yield batch.slice(0, 3)
            if number == 0 and TaskContext.get().attemptNumber() == 0:  # type: ignore[union-attr]  # in a task
                raise RuntimeError("writing fails half-way")
            yield batch.slice(3)

    put = door("failing", sink_id=f"{prefix}.failing", chunk_messages=20)
    frame = numbered(0, 400).mapInArrow(source_fails, "body binary")
    with mapped_rows(writing_fails):
        put(frame, 0)
    say("failing")


def speculation() -> None:
    """Of one task two attempts write at the same time; the first goes on when the other is done."""
    notes = directory / "speculation"
    notes.mkdir()

    def slow(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext  # noqa: PLC0415 - in a worker

        from cassieq_spark.testing import wait_until as wait  # noqa: PLC0415 - in a worker

        context: Any = TaskContext.get()
        name = f"{context.partitionId()}-{context.attemptNumber()}"
        (notes / f"began-{name}").touch()
        for batch in batches:
            yield batch.slice(0, 2)
            if name == "0-0":
                wait((notes / "ended-0-1").exists, deadline_s=60)
            yield batch.slice(2)
        (notes / f"ended-{name}").touch()

    put = door("speculation", sink_id=f"{prefix}.speculation", chunk_messages=20)
    with mapped_rows(slow):
        put(numbered(0, 400), 0)
    say("speculation", notes=sorted(path.name for path in notes.iterdir()))


def zombie() -> None:
    """A task that nobody waits for any more writes its rows again, after the commit."""
    saved: list[Callable[[], None]] = []

    def make(save: Any) -> Any:
        def changed(*args: Any, **kwargs: Any) -> None:
            saved.append(partial(save, *args, **kwargs))
            save(*args, **kwargs)

        return changed

    put = door("zombie", sink_id=f"{prefix}.zombie", chunk_messages=20)
    with Patched("saving", make), Patched("_unpersist", lambda _: lambda _: None):
        put(numbered(0, 100), 0)
        before = stored("zombie")
        saved[0]()
    # (first, part, count, parts, payload, due_us, enqueued_us, write time, TTL)
    same_times = {row[6] == row[7] and row[5] is None and row[8] is None for row in before}
    say(
        "zombie",
        rows=len(before),
        is_same=stored("zombie") == before,
        same_times=sorted(same_times),
    )


def lost_block() -> None:
    """An executor dies with its packed rows: the batch fails, and its replay is another one."""
    killed: list[psutil.Process] = []
    ours = f"CoarseGrainedScheduler@127.0.0.1:{spark.conf.get('spark.driver.port')}"

    def executors() -> list[psutil.Process]:
        """By the driver that they name: a process tree is not always told whole."""
        return [
            one
            for one in psutil.process_iter(["cmdline"])
            if all(
                part in " ".join(one.info["cmdline"] or ())
                for part in ("executor.CoarseGrainedExecutorBackend", ours)
            )
        ]

    def kill_all() -> None:
        wait_until(lambda: len(executors()) == 2, deadline_s=30)
        killed.extend(executors())
        for executor in killed:
            executor.send_signal(signal.SIGKILL)
        wait_until(lambda: not any(one.is_running() for one in killed), deadline_s=30)

    put = door("lost", chunk_messages=20)
    with before_save(kill_all):
        failure = failure_of(lambda: query_of("lost", put, rows=400).awaitTermination())
    visible = client.queue(f"{prefix}.lost").stats().visible
    query_of("lost", put).awaitTermination()
    say("lost", failure=failure, killed=len(killed), visible=visible)


def another_attempt() -> None:
    """The plan is about one attempt's rows, a block of another one is read."""

    def make(collected: Any) -> Any:
        def changed(packed: DataFrame) -> Any:
            chunks, attempts = collected(packed)
            return chunks, {**attempts, 1: b"another"}

        return changed

    put = door("attempt", sink_id=f"{prefix}.attempt", chunk_messages=20)
    half_empty = numbered(0, 100).where(
        "body < 'm-5' or body = 'm-100'"
    )  # ids 50 to 99 are no more
    with Patched("_collected", make):
        failures = [failure_of(lambda at=at: put(at, 0)) for at in (numbered(0, 100), half_empty)]
    say("attempt", failures=failures)


def refused() -> None:
    """Null bodies, columns that a queue has not, a second write, a queue that goes away."""
    put = door("refused", sink_id=f"{prefix}.refused")
    null = numbered(0, 5, 1).withColumn("body", F.when(F.col("body") != b"m-3", F.col("body")))
    found = {
        "null": failure_of(lambda: put(null, 0)),
        "column": failure_of(lambda: put(spark.range(1), 0)),
    }

    def twice(frame: DataFrame, batch_id: int) -> None:
        again = door("refused", sink_id=f"{prefix}.twice")
        again(frame, batch_id)
        spark.sparkContext.setJobGroup("nightly", "the program's own name")
        again(frame, batch_id)

    found["twice"] = failure_of(lambda: query_of("refused", twice, rows=5).awaitTermination())
    say("refused", **found)

    deleted = door("deleted", sink_id=f"{prefix}.deleted")
    with before_save(lambda: client.delete_queue(f"{prefix}.deleted")):
        say("deleted", failure=failure_of(lambda: deleted(numbered(0, 50), 0)))


def failing(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Every attempt of a writing task fails."""
    yield from batches
    raise RuntimeError("no write succeeds")


def secrets() -> None:
    """What Spark keeps of its plans, for the UI and the event log."""
    put = door("secret", sink_id=f"{prefix}.secret", username="somebody", password=SECRET)
    put(numbered(0, 5), 0)
    with mapped_rows(failing):
        failure = failure_of(lambda: put(numbered(0, 5), 1))
    status = spark._jsparkSession.sharedState().statusStore()
    executions = status.executionsList()
    kept = [executions.apply(at) for at in range(executions.size())]
    text = "\n".join(
        one.physicalPlanDescription() + one.details() + str(one.modifiedConfigs()) for one in kept
    )
    say("secret", failure=failure, is_kept=SECRET in text, is_about_writes="AppendData" in text)


def stops() -> None:
    """See `connector_stops`."""
    put = door("stops", chunk_messages=20)
    notes = directory / "notes"
    notes.mkdir()
    said = connector_stops.run(
        lambda: query_of("stops", put, files=connector_stops.BATCHES, rows=connector_stops.A_BATCH),
        store.shared(put.args[0].connection).session,  # type: ignore[attr-defined]  # ours
        client.queue(f"{prefix}.stops"),
        notes,
        around_save,
    )
    say("stops", **said)


def nothing_is_left() -> None:
    """What a batch has packed is given back at its end, not when the JVM next collects garbage."""
    kept: list[bool] = []

    def make(unpersist: Any) -> Any:
        def changed(packed: DataFrame) -> None:
            rdd = packed._jdf.queryExecution().logical().rdd()
            context = spark.sparkContext._jsc
            kept.append(context.getPersistentRDDs().containsKey(rdd.id()))
            unpersist(packed)
            kept.append(context.getPersistentRDDs().containsKey(rdd.id()))

        return changed

    with Patched("_unpersist", make):
        door("last", sink_id=f"{prefix}.last")(numbered(0, 5), 0)
    names = [one.name for one in threading.enumerate()]
    say("end", kept=kept, beating=[name for name in names if name.startswith("cassieq-heart")])


if __name__ == "__main__":
    client = cassieq_spark.connect(**connection)
    spark = start_session()
    only = sys.argv[4:]
    for scenario in (
        outside_a_query,
        several_lanes,
        scheduled,
        replays,
        failing_tasks,
        speculation,
        zombie,
        another_attempt,
        refused,
        secrets,
        lost_block,
        stops,
        nothing_is_left,
    ):
        if not only or scenario.__name__ in only:
            scenario()
    spark.stop()
    client.close()
