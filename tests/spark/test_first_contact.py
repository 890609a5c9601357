"""What somebody sees who uses the format for the first time, and gets something wrong.

A mistake is named in `load()` or `save()` where Spark lets us speak there, and our line is first.
Nothing is connected to before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import AnalysisException, PySparkException

from tests.fixtures.streams import failure_of

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, DataFrameWriter, SparkSession

NOWHERE = {"contactPoints": "127.0.0.1:1", "queue": "orders"}


def bodies(spark: SparkSession, name: str = "body") -> DataFrame:
    return spark.sql(f"select cast('x' as binary) as {name}")


def writer(frame: DataFrame) -> DataFrameWriter:
    return frame.write.format("cassieq").options(**NOWHERE).mode("append")


@pytest.mark.parametrize("door", ["read", "readStream"])
@pytest.mark.parametrize(
    ("options", "says"),
    [
        (
            {"maxMesages": 1},
            "OptionUnknown: [cassieq:option_unknown] 'maxmesages' is not an option of the cassieq "
            "source or the cassieq batch reader. Did you mean 'maxMessagesPerTrigger'?",
        ),
        (
            {"minPartitions": "many"},
            "OptionInvalid: [cassieq:option_invalid] option 'minPartitions' of the cassieq source "
            "is 'many', allowed: ",
        ),
        (
            {"queuePattern": "a.*"},
            "OptionInvalid: [cassieq:option_invalid] options 'queue' and 'queuePattern'",
        ),
    ],
)
def test_load_refuses_a_wrong_option_in_its_first_line(
    spark: SparkSession, door: str, options: dict[str, Any], says: str
) -> None:
    reader = getattr(spark, door).format("cassieq").options(**NOWHERE, **options)
    with pytest.raises(AnalysisException) as refused:
        reader.load()
    first = str(refused.value).splitlines()[0]
    assert first.startswith("[PYTHON_DATA_SOURCE_ERROR]")
    assert f": cassieq_spark.errors.{says}" in first
    assert "Traceback" not in str(refused.value)


@pytest.mark.parametrize("trigger", [{"availableNow": True}, {"processingTime": "0 seconds"}])
def test_a_query_whose_load_has_a_schema_is_refused_at_its_start_in_its_first_line(
    spark: SparkSession, tmp_path: Path, trigger: dict[str, Any]
) -> None:
    """`load` asks nothing of us then."""
    frame = (
        spark.readStream.format("cassieq").options(**NOWHERE).schema("boddy binary, tag string")
    ).load()
    stream = frame.writeStream.format("noop").option("checkpointLocation", str(tmp_path))
    failure = failure_of(stream.trigger(**trigger).start())
    first = failure.splitlines()[0]
    assert ": cassieq_spark.errors.OptionInvalid: [cassieq:option_invalid] unknown column" in first
    assert "unknown column 'boddy' in the schema. Did you mean 'body'? A queue has: " in first
    assert "UnboundLocalError" not in failure
    assert "Traceback" not in failure


def test_save_refuses_before_a_task_runs_in_its_first_line(spark: SparkSession) -> None:
    frame = spark.range(1).selectExpr(
        "cast('x' as binary) as body", "raise_error('computed ' || id) as tagg"
    )
    with pytest.raises(PySparkException) as refused:
        writer(frame).save()
    first = str(refused.value).splitlines()[0]
    assert "errors.OptionInvalid: [cassieq:option_invalid] unknown column 'tagg'" in first
    assert "Did you mean 'tag'?" in first
    assert "Traceback" not in str(refused.value)


def test_a_body_by_another_name_is_suggested(spark: SparkSession) -> None:
    says = r"column 'body' \(binary\) is missing.* Did you mean 'boddy'\?"
    with pytest.raises(PySparkException, match=says):
        writer(bodies(spark, "boddy")).save()


def test_a_path_is_refused(spark: SparkSession) -> None:
    says = r"option 'path' is 'orders', but a path means nothing here\. .* option 'queue'"
    reader = spark.read.format("cassieq").options(**NOWHERE)
    with pytest.raises(AnalysisException, match=says):
        reader.load("orders")
    with pytest.raises(AnalysisException, match=says):
        reader.schema("body binary").load("orders").count()
    with pytest.raises(AnalysisException, match=says):
        writer(bodies(spark)).save("orders")


@pytest.mark.parametrize("mode", ["errorifexists", "ignore"])
def test_a_write_without_append_is_refused_by_spark_itself(spark: SparkSession, mode: str) -> None:
    """Our code is not called, so the guide says what to do."""
    with pytest.raises(AnalysisException, match=r"UNSUPPORTED_DATA_SOURCE_SAVE_MODE.*Append"):
        writer(bodies(spark)).mode(mode).save()
