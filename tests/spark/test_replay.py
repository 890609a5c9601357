"""A micro-batch has the same rows whenever it is read: again, twice, retried, or restarted (I8)."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.fixtures.processes import CHILDREN
from tests.fixtures.streams import Collected, Streams, bodies, bodies_of, failure_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame

    from tests.fixtures.processes import Script

RETRIED = CHILDREN / "retried_tasks.py"


class _FailsOnce(Collected):
    """Reads its batch, and the first time raises in the batch of that id."""

    def __init__(self, fails_in: int) -> None:
        super().__init__()
        self._fails_in = fails_in

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        super().__call__(frame, batch_id)
        if batch_id == self._fails_in and self.batch_ids.count(batch_id) == 1:
            raise RuntimeError("in the middle of a batch")


@pytest.mark.invariant("I1")
@pytest.mark.invariant("I8")
def test_a_batch_that_failed_is_replayed_under_its_id_with_the_same_rows(streams: Streams) -> None:
    streams.put(streams.numbered(0, 1_000))
    handler = _FailsOnce(fails_in=1)
    source = streams.source(maxMessagesPerTrigger=400)

    assert "in the middle of a batch" in failure_of(streams.start(source, handler))
    assert streams.start(source, handler).awaitTermination(120)

    assert [0, 1, 1, 2] == handler.batch_ids
    _, failed, replayed, last = (rows for _, rows in handler.calls)
    # Whole rows: bodies, ids, receipts and delivery counts.
    assert sorted(failed) == sorted(replayed)
    assert 200 == len(last)
    assert bodies(0, 1_000) + bodies_of(failed) == handler.bodies
    assert streams.is_empty()


@pytest.mark.invariant("I8")
def test_two_actions_and_a_union_with_itself_read_the_same_rows(streams: Streams) -> None:
    streams.put(streams.numbered(0, 700))
    reads: list[list[object]] = []

    def handler(frame: DataFrame, _: int) -> None:
        reads.append(sorted(frame.collect()))
        reads.append(sorted(frame.collect()))
        reads.append(sorted(frame.union(frame).collect()))

    assert streams.start(streams.source(), handler).awaitTermination(120)

    once, again, both = reads
    assert 700 == len(once)
    assert once == again
    assert sorted(once + once) == both
    assert streams.is_empty()


@pytest.mark.long
@pytest.mark.invariant("I8")
def test_a_retried_task_reads_the_same_rows(
    streams: Streams, start_script: Callable[..., Script]
) -> None:
    """In a session of its own: local[2] never retries, local[2,4] does."""
    streams.put(streams.numbered(0, 600))
    result = streams.directory / "result"
    result.mkdir()

    options = {**streams.options, "minPartitions": "2"}
    script = start_script(RETRIED.read_text(encoding="utf-8"), json.dumps(options), str(result))

    assert 0 == script.wait(), script.output
    attempts = {path.name: json.loads(path.read_text()) for path in result.glob("attempt-*")}
    failed = {name[:-1]: rows for name, rows in attempts.items() if name.endswith("0")}
    retried = {name[:-1]: rows for name, rows in attempts.items() if name.endswith("1")}
    assert 2 == len(failed)
    assert failed == retried
    assert 600 == sum(len(rows) for rows in retried.values())
    assert streams.is_empty()
