"""Spark's Python workers keep one store per process between tasks."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Final

from pyspark import TaskContext

from cassieq_spark.store import store

if TYPE_CHECKING:
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
