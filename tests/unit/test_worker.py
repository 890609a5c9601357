"""What a task of ours does to the Python worker it runs in."""

from __future__ import annotations

import gc
import os
import platform
import resource
import subprocess
import sys
import weakref
from collections.abc import Iterator, Mapping
from types import SimpleNamespace

import pytest
from cassandra.query import named_tuple_factory

from cassieq_spark.spark import worker
from cassieq_spark.store.driver import rows_of


@pytest.fixture(autouse=True)
def _thawed() -> Iterator[None]:
    yield
    gc.unfreeze()


@pytest.fixture(autouse=True)
def _first_task(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "_calls", 0)
    monkeypatch.setattr(worker.store, "shared", lambda options: options)


class Knot:
    """A cycle, which only the collector frees."""

    def __init__(self) -> None:
        self.me = self


def test_the_second_task_of_a_worker_freezes_what_is_there_and_no_later_one_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(worker, "TaskContext", _InTask)
    frozen = []
    for _ in range(4):
        assert "options" == worker.task_store("options")  # type: ignore[comparison-overlap,arg-type]
        frozen.append(gc.get_freeze_count())

    assert 0 == frozen[0]
    assert 10_000 < frozen[1]
    assert frozen[3] <= frozen[1]


def test_what_comes_after_it_is_collected_as_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "TaskContext", _InTask)
    for _ in range(2):
        worker.task_store("options")  # type: ignore[arg-type]
    knot = weakref.ref(Knot())
    gc.collect()

    assert knot() is None


def test_a_process_that_plans_or_commits_for_spark_freezes_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    main = SimpleNamespace(__spec__=SimpleNamespace(name="pyspark.daemon"))
    monkeypatch.setitem(sys.modules, "__main__", main)  # type: ignore[arg-type]
    frozen = []
    for _ in range(2):
        worker.settle_in()
        frozen.append(gc.get_freeze_count())

    assert 0 == frozen[0]
    assert 10_000 < frozen[1]


def test_outside_of_sparks_processes_nothing_is_frozen() -> None:
    for _ in range(3):
        worker.task_store("options")  # type: ignore[arg-type]
        worker.settle_in()

    assert 0 == gc.get_freeze_count()


class _InTask:
    @staticmethod
    def get() -> object:
        return object()


def test_rows_are_the_drivers_named_tuples_with_one_class_for_all_results() -> None:
    names, rows = (
        ["[applied]", "system.now()", "first", "class"],
        [(True, 1, 2, 3), (None, 4, 5, 6)],
    )
    expected = named_tuple_factory(names, rows)
    found = rows_of(names, rows)

    assert expected == found
    assert [row._fields for row in expected] == [row._fields for row in found]
    assert type(rows_of(names, rows)[0]) is type(found[0])
    assert [] == rows_of(names, [])


_FAULTS = """
import resource
from types import SimpleNamespace
from cassieq_spark.spark import worker

worker.store = SimpleNamespace(shared=lambda options: options)
worker.TaskContext = SimpleNamespace(get=lambda: "a task's")
worker.task_store("options")

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(50):
        requests = [b"x" * 480_000 for _ in range(8)]
        del requests
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

faults()
print(faults())
"""
"""Page faults of a process that makes and frees 50 times what a task has under way."""


def _without_its_settings(environment: Mapping[str, str]) -> dict[str, str]:
    names = ("MALLOC_", "GLIBC_TUNABLES", "LD_PRELOAD")
    return {name: value for name, value in environment.items() if not name.startswith(names)}


def _faults(**environment: str) -> int:
    done = subprocess.run(
        [sys.executable, "-c", _FAULTS],
        env={**_without_its_settings(os.environ), **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    return int(done.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc's setting")
@pytest.mark.parametrize(
    "own",
    [
        {"MALLOC_TRIM_THRESHOLD_": "131072"},
        {"MALLOC_MMAP_THRESHOLD_": "131072"},
        {"GLIBC_TUNABLES": "glibc.malloc.trim_threshold=131072"},
    ],
)
def test_a_worker_keeps_the_memory_that_a_task_frees_unless_a_user_has_set_it_up(
    own: dict[str, str],
) -> None:
    in_all = 50 * 8 * 480_000 // resource.getpagesize()

    assert _faults() < in_all // 20
    assert _faults(**own) > in_all // 2
