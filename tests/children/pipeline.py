"""A Spark driver that runs a storm's queries, and starts each again that ends by an error.

    source      the queue -> foreachBatch, which writes down what it was given
    arrow       numbered rows -> format("cassieq_storm"), the Arrow door
    connector   numbered rows -> foreachBatch, the connector's door

Told what to do by lines of JSON on standard input, until that ends.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tests.children.producer import FAR_S

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

SINKS: Final = ("arrow", "connector")
QUERIES: Final = ("source", *SINKS)
ROWS_PER_BATCH: Final = 60
EVERY: Final = "3 seconds"
"""Each batch starts up to four Python processes, of half a second of a core each."""

FAR_EACH: Final = 12
"""Of so many rows one waits in a due lane, for as long as a producer's."""

STOPPED: Final = b"STOPPED\n"
JARS: Final = "jars"
"""Where the first driver writes which files the connector is: those after it look for none."""

POLL_S: Final = 0.2
PAUSE_S: Final = 0.5


def say(line: str) -> None:
    """Whole, past all buffers."""
    os.write(1, f"{line}\n".encode())


def build_session(contact_points: str, directory: Path) -> SparkSession:
    """Two cores; a task that dies with its worker is run again."""
    from pyspark.sql import SparkSession  # noqa: PLC0415 - the runner imports names from here

    from cassieq_spark.spark import spark_config  # noqa: PLC0415 - as above

    settings = spark_config(contact_points)
    known = directory / JARS
    if known.exists():
        del settings["spark.jars.packages"]
        settings["spark.jars"] = known.read_text("utf-8")
    spark = (
        SparkSession.builder.master("local[2,3]")
        .appName("cassieq storm")
        .config(map={**settings})
        .config("spark.driver.memory", "1g")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.extraJavaOptions", os.environ["TEST_JAVA_OPTIONS"])
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.warehouse.dir", str(directory / "warehouse"))
        .config("spark.local.dir", str(directory / "local"))
        .getOrCreate()
    )
    if not known.exists():
        whole = known.with_suffix(".new")
        whole.write_text(spark.conf.get("spark.jars") or "", "utf-8")
        whole.rename(known)  # it may be killed at any moment
    return spark


def end_of(checkpoint: Path, batch: int) -> dict[str, Any]:
    """The source's offset that Spark has logged for this batch, before it is run."""
    lines = (checkpoint / "offsets" / str(batch)).read_text("utf-8").splitlines()
    end: dict[str, Any] = json.loads(lines[-1])
    return end


class Queries:
    """The three of one seed."""

    def __init__(
        self, spark: SparkSession, options: dict[str, str], directory: Path, priorities: int
    ) -> None:
        from tests.storm.history import Recorder  # noqa: PLC0415 - as in build_session

        self._spark = spark
        self._options = options
        self._directory = directory
        self._priorities = priorities
        self._record = Recorder(directory, "driver")
        self._is_over = threading.Event()
        starts: dict[str, Callable[[], StreamingQuery]] = {
            "source": self._source,
            "arrow": self._arrow,
            "connector": self._connector,
        }
        self._threads = [
            threading.Thread(target=self._keep, args=(name, start), name=name, daemon=True)
            for name, start in starts.items()
        ]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """All of them."""
        self._is_over.set()
        for thread in self._threads:
            thread.join()
        self._record.close()

    def _keep(self, name: str, start: Callable[[], StreamingQuery]) -> None:
        # Makes the session active in this thread: without, it knows no Python data source.
        self._spark.createDataFrame([], "id long")
        while not self._is_over.is_set():
            try:
                query = start()
                while query.isActive and not self._is_over.wait(POLL_S):
                    pass
                query.stop()
                query.awaitTermination()  # raises what has ended it
            except Exception as error:  # noqa: BLE001 - whatever it was, the query starts again
                self._record.say("failed", query=name, error=str(error)[:3_000])
            self._is_over.wait(PAUSE_S)

    def _source(self) -> StreamingQuery:
        from tests.storm.doors import DIRECTORY, FORMAT, HOLD_S  # noqa: PLC0415 - as above

        frame = (
            self._spark.readStream.format(FORMAT)
            .options(**self._options)
            .option(DIRECTORY, str(self._directory))
            .option("visibilityTimeout", f"{HOLD_S:g}s")
            .option("maxMessagesPerTrigger", "120")
            .schema("id long, lane string, body binary, delivery_count int")
            .load()
        )
        return self._started("source", frame.writeStream.foreachBatch(self._note))

    def _note(self, frame: DataFrame, batch: int) -> None:
        """Write down what it was given."""
        from tests.children.consumer import key_of, place_of  # noqa: PLC0415 - as above

        run = frame.sparkSession.sparkContext.getLocalProperty("spark.jobGroup.id")
        named = sorted(
            (key_of(bytes(row.body)), place_of(row.lane, row.id), row.delivery_count)
            for row in frame.collect()
        )
        about: dict[str, Any] = {"stream": "source", "batch": batch, "run": run}
        seq = end_of(self._directory / "source", batch)["seq"]
        self._record.say("rows", queue=self._options["queue"], named=named, seq=seq, **about)
        self._record.say("done", **about)

    def _numbered(self, sink: str) -> DataFrame:
        """The same rows in each batch of that number, whoever asks."""
        return (
            self._spark.readStream.format("rate-micro-batch")
            .option("rowsPerBatch", ROWS_PER_BATCH)
            .option("numPartitions", 2)
            .load()
            .selectExpr(
                f"cast(concat('{sink}:', value) as binary) as body",
                f"value % {self._priorities} as priority",
                "if(value % 3 = 0, null, concat('k', value % 5)) as key",
                # Of the batch: the same when it is run again.
                f"if(value % {FAR_EACH} = 0, current_timestamp() + interval {FAR_S} seconds, null) "
                "as due_at",
            )
        )

    def _arrow(self) -> StreamingQuery:
        from tests.storm.doors import FORMAT  # noqa: PLC0415 - as above

        self._record.say("scheduling", sink="arrow", each=FAR_EACH, delay=FAR_S)
        writer = self._numbered("arrow").writeStream.format(FORMAT).options(**self._options)
        return self._started("arrow", writer)

    def _connector(self) -> StreamingQuery:
        from cassieq_spark.spark import foreach_batch  # noqa: PLC0415 - as above

        door = foreach_batch(
            queue=self._options["queue"],
            contact_points=self._options["contactPoints"],
            keyspace=self._options["keyspace"],
        )
        self._record.say("scheduling", sink="connector", each=FAR_EACH, delay=FAR_S)
        writer = self._numbered("connector").writeStream.foreachBatch(door)
        return self._started("connector", writer)

    def _started(self, name: str, writer: Any) -> StreamingQuery:
        checkpoint = str(self._directory / name)
        query: StreamingQuery = (
            writer.option("checkpointLocation", checkpoint).trigger(processingTime=EVERY).start()
        )
        return query


def main(contact_points: str, keyspace: str, directory: str) -> None:
    """Until standard input ends."""
    from tests.storm.doors import StormSource  # noqa: PLC0415 - it installs the dials

    spark = build_session(contact_points, Path(directory))
    spark.dataSource.register(StormSource)
    spark.range(1).selectExpr("id").collect()
    say("READY")
    running: Queries | None = None
    for line in sys.stdin:
        request = json.loads(line)
        if request["do"] == "start" and running is None:
            options = {
                "contactPoints": contact_points,
                "keyspace": keyspace,
                "queue": request["queue"],
            }
            running = Queries(spark, options, Path(request["directory"]), request["priorities"])
        elif request["do"] == "stop":
            if running is not None:
                running.stop()
                running = None
            say(STOPPED.decode().strip())
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
