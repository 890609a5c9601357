"""A task's first record batch is on its way while the task is admitted."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Iterator

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, StructField, StructType

from cassieq_spark.errors import UsageError
from cassieq_spark.options import parse_sink
from cassieq_spark.spark.sink import Ahead, StreamWriter
from cassieq_spark.testing import wait_until


def batch(number: int) -> pa.RecordBatch:
    return pa.record_batch({"body": pa.array([b"%d" % number], pa.binary())})


def test_all_batches_come_in_their_order() -> None:
    assert [batch(0), batch(1), batch(2)] == list(Ahead(iter([batch(0), batch(1), batch(2)])))


def test_an_empty_input_has_none() -> None:
    assert [] == list(Ahead(iter([])))


def test_the_first_batch_is_made_before_anybody_asks_for_it_and_no_other() -> None:
    made: list[int] = []

    def some() -> Iterator[pa.RecordBatch]:
        for number in range(3):
            made.append(number)
            yield batch(number)

    ahead = Ahead(some())
    ahead.wait()
    assert [0] == made
    assert 3 == len(list(ahead))


def test_the_first_batch_is_not_kept_while_others_come() -> None:
    first: list[weakref.ref[pa.RecordBatch]] = []

    def some() -> Iterator[pa.RecordBatch]:
        made = batch(0)
        first.append(weakref.ref(made))
        yield made
        del made
        yield batch(1)

    batches = iter(Ahead(some()))
    assert batch(0) == next(batches)
    assert batch(1) == next(batches)
    gc.collect()
    assert first[0]() is None


def test_what_the_input_raises_comes_where_its_rows_are_read() -> None:
    def broken() -> Iterator[pa.RecordBatch]:
        raise ArithmeticError("upstream")
        yield

    ahead = Ahead(broken())
    ahead.wait()
    with pytest.raises(ArithmeticError, match="upstream"):
        list(ahead)


def test_a_refused_task_does_not_wait_for_its_first_row() -> None:
    """Here it is refused because Spark has not said which query it is of."""
    asked, let_go = threading.Event(), threading.Event()

    def slow() -> Iterator[pa.RecordBatch]:
        asked.set()
        let_go.wait()
        yield batch(0)

    schema = StructType([StructField("body", BinaryType())])
    options = parse_sink({"queue": "orders", "contactPoints": "127.0.0.1"})
    writer = StreamWriter(options, schema, None)
    try:
        with pytest.raises(UsageError, match="outside a Spark task"):
            writer.write(slow())
        assert asked.wait(60)
        assert any(one.name == "cassieq-work" and one.daemon for one in threading.enumerate())
    finally:
        let_go.set()
    wait_until(
        lambda: all(one.name != "cassieq-work" for one in threading.enumerate()),
        describe="the thread ends with its input",
    )
