"""Spark uses its Python processes again: each keeps one store, and what it has imported."""

from __future__ import annotations

import ctypes
import gc
import os
from collections.abc import Callable, Iterable, Sequence
from typing import Final, TypeVar

from pyspark import SparkContext, TaskContext

from cassieq_spark.options import ConnectionOptions
from cassieq_spark.spark.boundary import is_process_of_spark
from cassieq_spark.store import store
from cassieq_spark.store.store import Store

W = TypeVar("W")
R = TypeVar("R")

SETTLES_IN_CALL: Final = 2
"""By the second call, Spark and we have imported what the first one needed."""

KEPT_BYTES: Final = 16 * 1024 * 1024
"""Freed memory at the end of an arena goes back to the kernel beyond this: four times what a
task has under way."""

M_TRIM_THRESHOLD: Final = -1
M_MMAP_THRESHOLD: Final = -3
"""Parameters of glibc's ``malloc.h``. A user may have set either by a variable of that name."""

_calls = 0


def task_store(options: ConnectionOptions) -> Store:
    """Return this worker's store; see `store.shared`. Code in tasks calls it once in each."""
    found = store.shared(options)
    settle_in()
    return found


def partition_id() -> int:
    """The task's partition, which says in which shard rows without a key go; 0 outside Spark."""
    context = TaskContext.get()
    return 0 if context is None else context.partitionId()


def in_tasks(
    context: SparkContext,
    work: Callable[[Iterable[W]], Iterable[R]],
    parts: Sequence[W],
    *,
    per_task: int = 1,
    per_core: int = 1,
) -> list[R]:
    """Let tasks work on these parts, and return what they have yielded.

    Args:
        per_task: How many parts a task gets at least, if there are as many.
        per_core: How many tasks there are at most for each core.
    """
    if not parts:
        return []
    tasks = min(per_core * context.defaultParallelism, -(-len(parts) // per_task))
    return context.parallelize(parts, tasks).mapPartitions(work).collect()


def _keep_freed_memory() -> None:
    """Let glibc keep what a task frees: its next request needs as much.

    By itself glibc gives a request's half megabyte back to the kernel, which clears it again for
    the next one: writing 192 MB took 0.29 s of CPU instead of 0.39 (medians of 8 rounds; with more
    kept it was the same). Nothing happens where there is no glibc, and where a user has set it up.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    is_set_up = {"MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_"} & os.environ.keys()
    if mallopt is None or is_set_up or "glibc.malloc." in os.environ.get("GLIBC_TUNABLES", ""):
        return
    mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)
    mallopt(M_MMAP_THRESHOLD, KEPT_BYTES // 2)


def settle_in() -> None:
    """Keep freed memory, and keep permanent objects out of the garbage collector's sight, once.

    Whatever Spark calls first calls it once: in a task, and in the processes that plan and commit
    a write; what commits a stream's batch is asked for the writer first, each time (4.3). Spark
    calls ``gc.collect()`` after each task and each such call, if it uses the process again
    (pyspark/daemon.py, 4.2 and 4.3). That walks through every object of every module: 50 to 110 ms
    of CPU beside pandas and pyarrow, more than reading 100,000 messages takes. Frozen objects are
    freed as ever when nobody refers to them; only cycles among them are not. Nothing happens in a
    process that is not Spark's.
    """
    global _calls  # noqa: PLW0603 - what it counts is the process's
    if TaskContext.get() is None and not is_process_of_spark():
        return
    _calls += 1
    if _calls == 1:
        _keep_freed_memory()
    if _calls == SETTLES_IN_CALL:
        gc.collect()
        gc.freeze()
