"""Spark's Python workers: check their environment, and keep one store per process between tasks."""

from __future__ import annotations

import gc
import importlib.util
import os
import sys
from typing import TYPE_CHECKING, Final

from pyspark import TaskContext

from cassieq_spark.errors import WorkerEnvironment
from cassieq_spark.store import store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from cassieq_spark.options import ConnectionOptions
    from cassieq_spark.store.store import Store

SETTLES_IN_TASK: Final = 2
"""By the second task, Spark and we have imported what the first task needed."""

_tasks_begun = 0


def task_store(options: ConnectionOptions) -> Store:
    """This worker's store; see `store.shared`. Code that runs in tasks calls it once in each."""
    found = store.shared(options)
    if TaskContext.get() is not None:
        _settle_in()
    return found


def _settle_in() -> None:
    """Keep the worker's permanent objects out of the garbage collector's sight, once.

    Spark calls ``gc.collect()`` after every task of a worker that it uses again (pyspark/daemon.py,
    4.2 and 4.3). It then walks through every object of every module: 75 ms of CPU a task beside
    pandas and pyarrow, more than reading 100,000 messages takes. Frozen objects are freed as ever
    when nobody refers to them; only cycles among them are not.
    """
    global _tasks_begun  # noqa: PLW0603 - what it counts is the process's
    _tasks_begun += 1
    if _tasks_begun == SETTLES_IN_TASK:
        gc.collect()
        gc.freeze()


OLDEST_PYTHON: Final = (3, 11)
NEEDED: Final = ("pyarrow", "numpy", "cassandra", "msgpack", "cassieq_spark")


def problems() -> list[str]:
    """List what this interpreter lacks. It runs inside Spark's tasks too, so it imports nothing."""
    found = [f"has no {name}" for name in NEEDED if importlib.util.find_spec(name) is None]
    if sys.version_info < OLDEST_PYTHON:
        found.append(
            f"is Python {sys.version_info.major}.{sys.version_info.minor}, which is too old"
        )
    return found


def check_here() -> None:
    """Check this interpreter: Spark runs it for the driver's side of a data source.

    Raises:
        WorkerEnvironment: Something is missing; the error says what, where, and what to do.
    """
    _raise_for(sys.executable, problems())


def prefer_this_python(spark: SparkSession) -> None:
    """Let workers on this machine run the driver's interpreter, if nobody has said which.

    On a cluster the driver's path may mean nothing: there, nothing is changed.
    """
    context = spark.sparkContext
    is_local = (context.master or "").startswith("local")
    is_said = "PYSPARK_PYTHON" in os.environ or context.getConf().contains("spark.pyspark.python")
    if is_local and not is_said:
        context.pythonExec = sys.executable


def check_workers(spark: SparkSession) -> None:
    """Check the interpreter that tasks run in, by one small job that needs no pyarrow itself.

    Raises:
        WorkerEnvironment: See `check_here`.
    """

    def look(_: object) -> tuple[str, list[str]]:
        needed = ("pyarrow", "numpy", "cassandra", "msgpack", "cassieq_spark")
        missing = [f"has no {name}" for name in needed if importlib.util.find_spec(name) is None]
        return sys.executable, missing

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
