"""What leaves for Spark is one bounded text: no causes, no inner frames, no dump of a driver."""

from __future__ import annotations

import importlib
import inspect
import logging
import pkgutil
import traceback
from typing import TYPE_CHECKING, NoReturn

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import datasource

import cassieq_spark.spark
from cassieq_spark.errors import ReceiptExpired, RowCorrupt, StoreUnavailable
from cassieq_spark.spark import boundary
from cassieq_spark.spark.jobs.redrive import _in_task as redrive_in_task
from cassieq_spark.spark.jobs.redrive import redrive_where
from cassieq_spark.spark.jobs.repair import _heal_in_task, heal
from cassieq_spark.spark.jobs.settle_frame import _in_task as settle_in_task
from cassieq_spark.spark.jobs.settle_frame import settle

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from py4j.java_gateway import JavaObject
    from pyspark.sql import SparkSession

WORDS = "An error occurred while calling"
"""Behind these Spark's pattern begins to recur."""

SAFE = 1_000
"""So many characters behind them a stack of 1 MB holds; of 2,000 it does not always (4.3.0)."""

BASES = (
    datasource.DataSource,
    datasource.DataSourceReader,
    datasource.DataSourceStreamReader,
    datasource.DataSourceWriter,
    datasource.DataSourceStreamWriter,
)


def unavailable() -> NoReturn:
    """As the store raises: from the driver's error, which names every host."""
    dump = OSError("driver dump " * 5_000)
    raise StoreUnavailable("no Cassandra answers at 127.0.0.1:1") from dump


@boundary.spark_facing
class Door:
    """What Spark calls."""

    def write(self) -> None:
        unavailable()

    def read(self) -> Iterator[int]:
        yield 1
        unavailable()


def text_of(action: Callable[[], object]) -> str:
    """All that Spark's worker would print of the error."""
    try:
        action()
    except Exception:  # noqa: BLE001 - whatever it is
        return traceback.format_exc()
    raise AssertionError("nothing was raised")


@pytest.mark.parametrize(
    "action", [Door().write, lambda: list(Door().read())], ids=["write", "read"]
)
def test_an_error_of_ours_leaves_alone(action: Callable[[], object]) -> None:
    text = text_of(action)

    assert text.endswith(
        "cassieq_spark.errors.StoreUnavailable: [cassieq:store_unavailable] no Cassandra answers "
        "at 127.0.0.1:1\n"
    )
    assert 1 == text.count("Traceback")
    assert "driver dump" not in text
    assert "in unavailable" not in text
    assert len(text) < 1_500


def test_what_a_generator_has_yielded_before_its_error_arrives() -> None:
    rows = Door().read()
    assert 1 == next(rows)
    with pytest.raises(StoreUnavailable):
        next(rows)


def test_both_ends_of_a_long_message_are_kept() -> None:
    @boundary.crossing
    def fails() -> NoReturn:
        raise RowCorrupt(f"row 7 is corrupt: {'x' * 100_000}. Run a verify pass")

    with pytest.raises(RowCorrupt) as failed:
        fails()

    text = str(failed.value)
    assert text.startswith("[cassieq:row_corrupt] row 7 is corrupt: xxx")
    assert text.endswith("xxx. Run a verify pass")
    assert "98037 characters left out" in text
    assert len(text) < boundary.MOST_CHARACTERS + 100


def test_an_error_keeps_its_class_and_what_it_names() -> None:
    @boundary.crossing
    def fails() -> NoReturn:
        raise ReceiptExpired("two came back", refused=("a", "b"))

    with pytest.raises(ReceiptExpired) as failed:
        fails()

    assert ("a", "b") == failed.value.refused
    assert failed.value.__cause__ is None


def test_what_is_no_error_of_ours_keeps_its_traceback() -> None:
    @boundary.crossing
    def fails() -> None:
        mistake()

    def mistake() -> NoReturn:
        raise KeyError("a mistake in the package")

    assert "in mistake" in text_of(fails)


def test_what_is_cut_off_is_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, logger="cassieq_spark.spark")

    text_of(Door().write)

    (record,) = [
        one for one in caplog.records if one.__dict__.get("event") == "spark_error_shortened"
    ]
    assert "in unavailable" in record.getMessage()
    assert "driver dump" in record.getMessage()


def test_every_door_that_spark_calls_is_one() -> None:
    """Each method of Spark's that a class of ours writes anew, and what it calls or ships."""
    found = []
    for module in pkgutil.walk_packages(cassieq_spark.spark.__path__, "cassieq_spark.spark."):
        for name, cls in vars(importlib.import_module(module.name)).items():
            if inspect.isclass(cls) and cls.__module__.startswith("cassieq_spark."):
                found += [
                    (f"{name}.{method}", member)
                    for base in BASES
                    if issubclass(cls, base)
                    for method, member in vars(cls).items()
                    if inspect.isfunction(member) and hasattr(base, method) and method[0] != "_"
                ]
    assert {"StreamReader.latestOffset", "BatchWriter.commit", "ViewReader.read"} <= dict(
        found
    ).keys()
    found += [
        (function.__name__, function)
        for function in (settle, settle_in_task, redrive_where, redrive_in_task, heal)
    ]
    found += [("_heal_in_task", _heal_in_task)]
    assert [] == [name for name, member in found if not hasattr(member, "__wrapped__")]


# What Spark itself does with long texts.


def java_error(spark: SparkSession, message: str, *, kind: str = "Py4JException") -> JavaObject:
    package = spark._jvm.py4j if kind == "Py4JException" else spark._jvm.java.lang
    return getattr(package, kind)(message)


def is_taken_for_an_interruption(spark: SparkSession, text: str) -> bool:
    """What a query that was told to stop asks about its function's error."""
    package = spark._jvm.org.apache.spark.sql.execution.streaming.runtime
    streams = getattr(getattr(package, "StreamExecution$"), "MODULE$")
    error = java_error(spark, text)
    return streams.isInterruptionException(error, spark.sparkContext._jsc.sc())


def test_spark_looks_for_interruptions_by_a_pattern_that_overflows_a_stack(
    spark: SparkSession,
) -> None:
    """No fault of ours; where it is mended, our texts could be longer."""
    assert not is_taken_for_an_interruption(
        spark, f"py4j.protocol.Py4JJavaError: {WORDS}" + "x" * SAFE
    )
    with pytest.raises(Py4JJavaError, match=r"StackOverflowError(.|\n)*java\.util\.regex"):
        is_taken_for_an_interruption(spark, f"py4j.protocol.Py4JJavaError: {WORDS}" + "x" * 100_000)
    assert not is_taken_for_an_interruption(spark, "x" * 1_000_000)


def test_the_error_of_a_job_leaves_without_the_words_that_begin_the_pattern(
    spark: SparkSession,
) -> None:
    def job() -> None:
        spark.sparkContext.textFile("/no/such/file").count()

    with pytest.raises(Py4JJavaError) as raw:
        job()
    assert WORDS in str(raw.value)
    assert len(str(raw.value)) > 2 * SAFE

    text = text_of(boundary.crossing(job))

    assert "PySparkRuntimeError: org.apache.hadoop.mapred.InvalidInputException: Input" in text
    assert "/no/such/file" in text
    assert WORDS not in text
    assert "\tat org.apache.spark" not in text
    assert 1 == text.count("Traceback")
    assert not is_taken_for_an_interruption(spark, text)


def test_a_long_error_of_a_job_is_bounded() -> None:
    said = boundary._of_job(f"{WORDS} o1.count.\n: java.io.IOException: {'y' * 50_000}\n\tat A.b")

    assert said.startswith("java.io.IOException: yyy")
    assert "characters left out" in said
    assert len(said) < boundary.MOST_CHARACTERS + 100


@pytest.mark.parametrize("name", boundary.INTERRUPTIONS)
def test_an_interrupted_job_is_known_to_spark_by_a_short_text(
    spark: SparkSession, name: str
) -> None:
    thrown = f"{WORDS} o1.collect.\n: {name}\n" + "\tat org.apache.spark.Something\n" * 500

    short = boundary._of_job(thrown)

    assert len(short) < SAFE
    assert is_taken_for_an_interruption(spark, f"Traceback ...\n{short}\n")


def test_a_cancelled_job_still_names_its_group(spark: SparkSession) -> None:
    """By which Spark knows that its query was stopped."""
    context = spark.sparkContext
    context.setLocalProperty("spark.jobGroup.id", "a-run")
    try:
        text = boundary._of_job(
            f"{WORDS} o1.collect.\n: org.apache.spark.SparkException: [SPARK_JOB_CANCELLED] Job 3 "
            "cancelled part of cancelled job group a-run SQLSTATE: XXKDA\n"
            + "\tat org.apache.spark.Something\n"
            * 500
        )
        assert is_taken_for_an_interruption(spark, text)
    finally:
        context.setLocalProperty("spark.jobGroup.id", None)
