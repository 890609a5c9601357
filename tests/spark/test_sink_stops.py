"""A writing query ends at each statement of a task and of a commit; each batch is there once."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import StreamingQueryException

from tests.children.stopping_sink import SinkStop, StoppingSink
from tests.fixtures.streams import Streams, bodies, bodies_of

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql.streaming import StreamingQuery

A_BATCH = 20
BATCHES = 40
A_BUCKET = 10

#: (step, statement, which of them). A task reserves, opens two buckets, writes two chunks into each
#: and prepares them; a commit is decided by its first update of the sink's row, and then makes two
#: buckets visible.
PLACES = [
    ("write", "insert_sink", 0),
    ("write", "reserve", 0),
    *(("write", "insert_bucket", number) for number in range(2)),
    *(("write", "write_message", number) for number in (0, 1, 3)),
    *(("write", "fill_bucket", number) for number in range(2)),
    ("commit", "update_sink", 0),
    *(("commit", "update_bucket", number) for number in range(2)),
]
STOPS = [
    SinkStop(notes="", step=step, statement=name, number=number, is_sent=is_sent)
    for step, name, number in PLACES
    for is_sent in (False, True)
] + [
    SinkStop(notes="", step="write", statement="write_message", dies=False),
    SinkStop(notes="", step="commit", statement="update_sink", is_sent=True, dies=False),
]


class _Query:
    """One checkpoint, run after run, a file a batch."""

    def __init__(self, streams: Streams) -> None:
        self._streams = streams
        self._files = streams.directory / "files"
        frame = streams.numbered(0, A_BATCH * BATCHES).repartitionByRange(BATCHES, "body")
        frame.write.option("maxRecordsPerFile", A_BATCH).parquet(str(self._files))
        self._number = 0

    def run(self, stop: SinkStop) -> StreamingQuery:
        source = self._streams.spark.readStream.schema("body binary")
        return (
            source.option("maxFilesPerTrigger", 1)
            .parquet(str(self._files))
            .writeStream.format(StoppingSink.name())
            .options(**self._streams.options, stop=stop.to_option(), chunkMessages=5)
            .option("checkpointLocation", str(self._streams.checkpoint()))
            .trigger(availableNow=True)
            .start()
        )

    def notes(self) -> Path:
        self._number += 1
        return self._streams.directory / f"notes{self._number}"


@pytest.mark.invariant("I7")
def test_a_query_that_ends_at_every_write_has_each_batch_in_the_queue_once(
    streams: Streams,
) -> None:
    small = streams.another("small", bucket_size=A_BUCKET)
    small.spark.dataSource.register(StoppingSink)
    query = _Query(small)
    for planned in STOPS:
        stop = replace(planned, notes=str(query.notes()))
        with pytest.raises(StreamingQueryException):
            query.run(stop).awaitTermination(120)
        assert stop.is_reached, stop
        seen = bodies_of(small.look().collect())
        assert set(seen.values()) <= {1}, stop
        assert seen.total() % A_BATCH == 0, stop
    assert query.run(SinkStop(notes=str(query.notes()))).awaitTermination(120)

    assert bodies(0, A_BATCH * BATCHES) == bodies_of(small.look().collect())
