"""Check the Python that Spark runs: for the driver's side of a data source, and for tasks."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from typing import Final

import pyspark
from pyspark import SparkContext
from pyspark.sql import SparkSession

from cassieq_spark.errors import UsageError, WorkerEnvironment
from cassieq_spark.interpreter import for_spark, is_this, launcher_in
from cassieq_spark.log import event, get_logger

_logger = get_logger("spark")

NEEDED: Final = ("pyarrow", "numpy", "cassandra", "msgpack", "cassieq_spark")


def check_here() -> None:
    """Check this interpreter: Spark runs it for the driver's side of a data source.

    Raises:
        WorkerEnvironment: Something is missing; the error says what, where, and what to do.
    """
    _raise_for(sys.executable, _missing())


def _missing() -> list[str]:
    return [f"has no {name}" for name in NEEDED if importlib.util.find_spec(name) is None]


def is_connect(spark: SparkSession) -> bool:
    """Whether this is a session of Spark Connect, whose driver is another process."""
    return type(spark).__module__.startswith("pyspark.sql.connect.")


def driver_context(spark: SparkSession, what: str, instead: str) -> SparkContext:
    """The context of a session whose driver is this process.

    Args:
        what: What needs it, as an error says.
        instead: A sentence that says what to do without it.

    Raises:
        UsageError: It is a session of Spark Connect.
    """
    if is_connect(spark):
        raise UsageError(
            f"{what} needs the driver's own Spark session, which Spark Connect does not have. "
            f"{instead}"
        )
    return spark.sparkContext


def prefer_this_python(spark: SparkSession) -> None:
    """Let workers on this machine run the driver's interpreter, unless another one is named.

    They get its launcher, if there is one: see `for_spark`. Spark takes no notice of
    ``spark.pyspark.python`` in a program that spark-submit did not start. On a cluster
    the driver's path may mean nothing: there, nothing is changed. Spark Connect has no way to say
    it.
    """
    if is_connect(spark):
        return
    context = spark.sparkContext
    named = context.getConf().get("spark.pyspark.python") or os.environ.get("PYSPARK_PYTHON")
    if (context.master or "").startswith("local"):
        context.pythonExec = named if named and not is_this(named) else for_spark()


def tell_if_slow() -> None:
    """Say what to set where Spark's Python processes import PySpark from its zip.

    Each of them then compiles all that it imports. Only an installed PySpark has the same code
    elsewhere, and only where this package is installed beside it there is a launcher that uses it.
    """
    zipped, is_zip, _ = (pyspark.__file__ or "").partition("/pyspark.zip/")
    package = Path(zipped).parents[1] if is_zip else None
    if package is None or not (package / "__init__.py").is_file():
        return
    launcher = launcher_in(str(package.parents[3] / "bin"))
    if launcher is not None:
        event(_logger, "pyspark_zip_imported", interpreter=sys.executable, set_to=launcher)


def check_workers(spark: SparkSession) -> None:
    """Check the interpreter that tasks run in, by one small job that needs no pyarrow there.

    Raises:
        WorkerEnvironment: See `check_here`.
    """

    def look(_: object) -> tuple[str, list[str]]:
        # Spark pickles what this names by value: workers may not have this package.
        missing = [f"has no {name}" for name in NEEDED if importlib.util.find_spec(name) is None]
        return sys.executable, missing

    if is_connect(spark):
        from pyspark.sql import functions as F  # noqa: N812, PLC0415 - only Connect needs them

        ask = F.udf(lambda: [look(None)[0], *look(None)[1]], "array<string>", useArrow=False)
        [[[executable, *missing]]] = spark.range(1).select(ask().alias("said")).collect()
    else:
        executable, missing = spark.sparkContext.parallelize([0], 1).map(look).first()
    _raise_for(executable, missing)


def _raise_for(executable: str, missing: list[str]) -> None:
    if missing:
        raise WorkerEnvironment(
            f"Spark's Python workers run {executable}, which {', '.join(missing)}. Set "
            "PYSPARK_PYTHON (or spark.pyspark.python) to an interpreter in which "
            '"cassieq_spark[spark]" is installed, or "cassieq_spark[cluster]" where Spark itself '
            "brings PySpark, on every node"
        )
