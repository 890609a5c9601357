"""How Spark comes to know the format, and what it says about a Python that lacks something."""

from __future__ import annotations

import sys
import venv
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from py4j.protocol import Py4JJavaError

from cassieq_spark.spark import register
from tests.fixtures.processes import CHILDREN

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.fixtures.processes import Script
    from tests.fixtures.streams import Streams

REGISTER = CHILDREN / "register.py"


def test_the_format_is_found_without_registration(streams: Streams) -> None:
    streams.put(streams.numbered(0, 5))
    fresh = streams.spark.newSession()

    assert 5 == fresh.read.format("cassieq").options(**streams.options).load().count()


def test_the_format_can_be_registered_by_hand_and_again(streams: Streams) -> None:
    streams.put(streams.numbered(0, 5))
    fresh = streams.spark.newSession()
    for _ in range(2):
        register(fresh)

    assert 5 == fresh.read.format("cassieq").options(**streams.options).load().count()


def test_a_thread_finds_it_once_it_has_registered(streams: Streams) -> None:
    """A probe: without, Spark 4.3 tells a thread of one's own that there is no such format."""

    def write(*, after_register: bool) -> None:
        if after_register:
            register(streams.spark)
        frame.write.format("cassieq").options(**streams.options).mode("append").save()

    frame = streams.numbered(0, 5)
    with ThreadPoolExecutor(1) as fresh, pytest.raises(Py4JJavaError, match="DATA_SOURCE_NOT_FOU"):
        fresh.submit(write, after_register=False).result()
    with ThreadPoolExecutor(1) as fresh:
        fresh.submit(write, after_register=True).result()

    assert 5 == streams.queue.stats().visible


def test_a_format_of_another_name_is_not_ours(spark: SparkSession) -> None:
    """Else the two tests above would show nothing."""
    with pytest.raises(Py4JJavaError, match="DATA_SOURCE_NOT_FOUND"):
        spark.read.format("cassieq2").load()


def test_a_program_in_an_environment_that_was_not_activated_registers_the_format(
    start_script: Callable[..., Script], streams: Streams, tmp_path: Path
) -> None:
    """Its ``python3`` is another one, and nobody has said which Spark is to run."""
    streams.put(streams.numbered(0, 5))
    venv.create(tmp_path / "other", with_pip=False)
    script = start_script(
        f"""
        import os
        for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
            os.environ.pop(name)
        os.environ["PATH"] = {str(tmp_path / "other" / "bin")!r} + ":" + os.environ["PATH"]

        from cassieq_spark.spark import register
        from pyspark.sql import SparkSession

        spark = (
            SparkSession.builder.master("local[1]")
            .config("spark.ui.enabled", "false")
            .config("spark.driver.bindAddress", "127.0.0.1")
            .getOrCreate()
        )
        register(spark)
        print("COUNT", spark.read.format("cassieq").options(**{streams.options!r}).load().count())
        """
    )

    assert 0 == script.wait(), script.output
    assert "COUNT 5" in script.lines


def test_workers_with_a_wrong_python_are_told_plainly(
    start_script: Callable[..., Script], tmp_path: Path
) -> None:
    """Spark itself would end in a stack trace of a worker."""
    venv.create(tmp_path / "bare", with_pip=False)
    bare = tmp_path / "bare" / "bin" / "python"

    script = start_script(
        REGISTER.read_text(encoding="utf-8"),
        env={"PYSPARK_PYTHON": str(bare), "PYSPARK_DRIVER_PYTHON": sys.executable},
    )

    assert 0 == script.wait(), script.output
    [said] = [line for line in script.lines if line.startswith("SAID ")]
    assert said.startswith(f"SAID [cassieq:worker_environment] Spark's Python workers run {bare}")
    assert "has no pyarrow" in said
    assert "Set PYSPARK_PYTHON" in said
