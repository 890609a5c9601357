"""A query ends at each step between a claim and its ack, time and again; nothing is lost."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import StreamingQueryException

from cassieq_spark.testing import wait_until
from tests.children.stopping import NEVER, Stop, StoppingSource
from tests.fixtures.streams import AN_HOUR_S, Collected, Streams, bodies, bodies_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row

MESSAGES = 1_200
A_BUCKET = 20
A_BATCH = 30
"""So a batch is of two buckets, and shares one of them with the next."""

#: Per way to end, where the runs of one checkpoint end, one after the other: at a named point, or
#: before the nth write of that run. The first writes of a run that has a batch to replay take its
#: leases over; else they ack, and hint and claim the next batch.
ENDS: dict[str, list[str | int]] = {
    "dies": [
        "claimed",  # and in no offset
        *(1, 3),
        "planned",  # in the offset log
        *(0, 2, 3, 4, 5),
        "read",  # a worker, in mid-task
        6,
        "uncommitted",  # all is processed, and not in the commit log
        "asked",  # it is, and nothing is acked
    ],
    "raises": ["claimed", 3, "planned", 2, "read", "handled", 5],
    "is_stopped": [3, "planned", 3, "read", "committing"],
}


class _Handler(Collected):
    """Raises behind its batch when it is told to."""

    raises = False

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        super().__call__(frame, batch_id)
        if self.raises:
            raise RuntimeError("the handler failed")


class _Query:
    """One checkpoint, run after run."""

    def __init__(self, streams: Streams, way: str) -> None:
        self._streams = streams
        self._way = way
        self._handler = _Handler()
        self.ends: list[str] = []

    @property
    def attempts(self) -> dict[int, list[list[Row]]]:
        """The rows of each batch, as often as it ran."""
        found: dict[int, list[list[Row]]] = {}
        for batch_id, rows in self._handler.calls:
            found.setdefault(batch_id, []).append(sorted(rows))
        return found

    @property
    def committed(self) -> int:
        """Messages in batches that Spark has committed."""
        log = self._streams.checkpoint() / "commits"
        done = {int(file.name) for file in log.glob("[0-9]*")}
        return sum(len(rows[0]) for batch_id, rows in self.attempts.items() if batch_id in done)

    @property
    def acked(self) -> int:
        stats = self._streams.queue.stats()
        return MESSAGES - stats.visible - stats.in_flight

    def run_until(self, end: str | int) -> None:
        """One run, which does not get beyond that end."""
        stop = Stop(
            notes=str(self._streams.directory / f"notes{len(self.ends)}"),
            how={"is_stopped": "waits"}.get(self._way, self._way),
            at="asked" if end == "uncommitted" else end if isinstance(end, str) else "",
            write=end if isinstance(end, int) else NEVER,
        )
        self._handler.raises = end == "handled"
        query = self._streams.start(self._source(stop, A_BATCH), self._handler)
        wait_until(lambda: stop.reached is not None or not query.isActive, deadline_s=120)
        if self._way == "is_stopped":
            query.stop()
        else:
            with pytest.raises(StreamingQueryException):
                query.awaitTermination(120)
        if end == "uncommitted":
            # As if it had died one step earlier: it has not asked for anything since.
            log = self._streams.checkpoint() / "commits"
            last = max(int(file.name) for file in log.glob("[0-9]*"))
            for name in (str(last), f".{last}.crc"):
                (log / name).unlink()
        self.ends.append("handled" if end == "handled" else stop.reached or "")

    def run_to_the_end(self) -> None:
        """One run that also gets what earlier ones had claimed and in no offset named."""
        stop = Stop(notes=str(self._streams.directory / "notes"), ahead_s=AN_HOUR_S)
        query = self._streams.start(self._source(stop, MESSAGES), self._handler)
        assert query.awaitTermination(120)

    def _source(self, stop: Stop, at_most: int) -> DataFrame:
        return (
            self._streams.spark.readStream.format(StoppingSource.name())
            .options(**self._streams.options, stop=stop.to_option())
            .options(maxMessagesPerTrigger=at_most, visibilityTimeout="30m")
            .load()
        )


@pytest.mark.invariant("I1")
@pytest.mark.invariant("I4")
@pytest.mark.invariant("I8")
@pytest.mark.parametrize(
    "way",
    ["raises", *(pytest.param(way, marks=pytest.mark.long) for way in ENDS if way != "raises")],
)
def test_a_query_that_ends_at_every_step_has_each_message_in_one_batch_with_the_same_rows(
    streams: Streams, way: str
) -> None:
    small = streams.another("small", bucket_size=A_BUCKET)
    small.spark.dataSource.register(StoppingSource)
    small.put(small.numbered(0, MESSAGES), chunkMessages=A_BUCKET // 2)
    query = _Query(small, way)

    for end in ENDS[way]:
        query.run_until(end)
        assert query.ends[-1], f"it ended before {end!r}, behind {query.ends}"
        assert query.acked <= query.committed, query.ends
    query.run_to_the_end()

    for batch_id, attempts in query.attempts.items():
        assert all(rows == attempts[0] for rows in attempts), (batch_id, query.ends)
    assert bodies(0, MESSAGES) == sum(
        (bodies_of(attempts[0]) for attempts in query.attempts.values()), Counter()
    )
    assert small.is_empty(), small.queue.stats()
    # Of take-over, ack and claim each write was one that the query did not come to.
    steps = {f"partitions {name}" for name in ("write_hint", "update_bucket")}
    steps |= {f"latestOffset {name}" for name in ("write_hint", "update_bucket")}
    assert way != "dies" or steps <= set(query.ends)
