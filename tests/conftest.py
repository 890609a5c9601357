"""Marks follow from folders and fixtures; nothing a test starts may outlive it."""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
import traceback
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest
from hypothesis import HealthCheck, Phase, settings
from xdist.scheduler import LoadFileScheduling

from cassieq_spark.clock import SystemClock
from cassieq_spark.testing import ConditionNotMet, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from xdist.remote import Producer

pytest_plugins = [
    "tests.fixtures.cassandra",
    "tests.fixtures.histories",
    "tests.fixtures.places",
    "tests.fixtures.processes",
    "tests.fixtures.spark",
]

FOLDER_MARKS = {
    "docs",
    "engine",
    "examples",
    "explicit",
    "fault",
    "node",
    "server",
    "spark",
    "stateful",
    "unit",
}
#: Folders whose tests take long: ``make fault`` runs them. One of each kind carries ``sample``: CI,
#: which has no time for all, runs those first.
LONG_FOLDERS = {"fault"}
#: Files whose tests take long together, one by one or all at once: ``make fault`` runs them, too.
#: What carries ``sample`` is in ``make test`` all the same, which has to end in 10 minutes on two
#: cores.
LONG_FILES = {
    "docs/test_getting_started.py",
    "docs/test_readme.py",
    "docs/test_settle_guide.py",
    "docs/test_spark_samples.py",
    "docs/test_views_guide.py",
    "docs/test_worker_guide.py",
    "node/test_bench_peers.py",
    "node/test_bare_place.py",
    "node/test_cli_complete.py",
    "node/test_cli_dead.py",
    "node/test_cli_guide.py",
    "node/test_cli_load.py",
    "node/test_cli_messages.py",
    "node/test_cli_output.py",
    "node/test_cli_queue.py",
    "node/test_embedded_orphans.py",
    "node/test_install.py",
    "node/test_let_in_again.py",
    "node/test_schema.py",
    "node/test_security.py",
    "node/test_ten_thousand_queues.py",
    "node/test_worker.py",
    "sdks/test_sdks.py",
    "server/test_alerts_live.py",
    "server/test_alerts_of_a_ring.py",
    "server/test_auth_hostile.py",
    "server/test_auth_queues.py",
    "server/test_connections.py",
    "server/test_connections_running.py",
    "server/test_gateways.py",
    "server/test_metrics.py",
    "server/test_rest_auth.py",
    "server/test_rest_keys.py",
    "server/test_rest_keys_hostile.py",
    "server/test_rest_schema.py",
    "server/test_sqs_javascript.py",
    "server/test_tracing.py",
    "server/test_ui_browser.py",
    "server/test_ui_counts.py",
    "server/test_ui_dead.py",
    "server/test_ui_hostile.py",
    "server/test_ui_queue.py",
    "server/test_watching_files.py",
    "spark/test_admission.py",
    "spark/test_columns.py",
    "spark/test_connect.py",
    "spark/test_connector.py",
    "spark/test_drain.py",
    "spark/test_due_sink.py",
    "spark/test_engine_facts.py",
    "spark/test_first_contact.py",
    "spark/test_fixed_lanes.py",
    "spark/test_found.py",
    "spark/test_jobs.py",
    "spark/test_lag.py",
    "spark/test_many_queues.py",
    "spark/test_named_python.py",
    "spark/test_programs.py",
    "spark/test_redrive_job.py",
    "spark/test_refused.py",
    "spark/test_restarts.py",
    "spark/test_scheduled.py",
    "spark/test_secrets.py",
    "spark/test_shared_queue.py",
    "spark/test_sink_stops.py",
    "spark/test_source_errors.py",
    "spark/test_stops.py",
    "spark/test_unsteady_tasks.py",
    "spark/test_views.py",
    "stateful/test_row_machine.py",
    "unit/test_bare_place.py",
}

FIXTURE_MARKS = {
    "cassandra": "node",
    "own_cassandra": "node",
    "ring": "fault",
    "spark": "spark",
}

#: Fixtures whose tests kill nodes and start them again, and the wider one that owns the cluster.
RESTARTED = {"ring": "_ring", "centres": "centres"}

#: What starts several nodes: one process runs all of them, one after the other.
RING_FILES = {
    "test_alerts_of_a_ring.py",
    "test_datacenters.py",
    "test_embedded_ring.py",
    "test_node_clocks.py",
    "test_replicas.py",
    "test_simulated_ring.py",
    "test_sink_replicas.py",
    "test_storm.py",
}

DAY_US = 86_400_000_000
BEGAN = pytest.StashKey[float]()

#: Threads that serve the whole process once something has needed them: the driver's reactor, and
#: the connections between Spark's two halves.
SHARED_THREAD_MODULES = (
    "cassieq_spark.log",
    "cassieq_spark.store.portal",
    "cassandra.io.",
    "py4j.",
    "pyspark.",
    "socketserver",
)

# A shared machine is slow now and then: hypothesis' own deadlines would be time assertions. In CI
# the examples are the same in every run, so a red run is red again.
# The phase that explains a failure traces every line of each run, also of those that pass: four
# fifths of the time.
PHASES = [phase for phase in Phase if phase is not Phase.explain]
settings.register_profile("local", deadline=None, phases=PHASES)
settings.register_profile(
    "ci",
    deadline=None,
    derandomize=True,
    phases=PHASES,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("ci" if os.environ.get("CI") else "local")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    tests: Path = config.rootpath / "tests"
    for item in items:
        marks = set(item.path.relative_to(tests).parts[:-1]) & FOLDER_MARKS
        marks |= {
            mark
            for fixture, mark in FIXTURE_MARKS.items()
            if fixture in getattr(item, "fixturenames", ())
        }
        if "engine" in marks and config.getoption("real"):
            marks.add("node")
        is_sample = item.get_closest_marker("sample") is not None
        is_in_long_file = str(item.path.relative_to(tests)) in LONG_FILES
        if marks & LONG_FOLDERS or (is_in_long_file and not is_sample):
            marks.add("long")
        for mark in sorted(marks):
            item.add_marker(mark)
        if not RESTARTED.keys().isdisjoint(getattr(item, "fixturenames", ())):
            assert item.path.name in RING_FILES, f"{item.path.name} is missing in RING_FILES"
    if config.getoption("fit") is not None:
        # Samples come first. Then another file is the first one each day: what does not fit today
        # is run another day.
        files = list(dict.fromkeys(item.path for item in items))
        first = SystemClock().now_us() // DAY_US % max(1, len(files))
        order = {path: at for at, path in enumerate([*files[first:], *files[:first]])}
        items.sort(key=lambda item: (item.get_closest_marker("sample") is None, order[item.path]))


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--fit`: for a run that must end in time, as CI's. `--real`: for `make test-real`."""
    parser.addoption(
        "--fit", type=float, metavar="SECONDS", help="begin no test after so many seconds"
    )
    parser.addoption(
        "--real", action="store_true", help="run tests/engine on a real node, not a simulated one"
    )


def pytest_sessionstart(session: pytest.Session) -> None:
    """When the seconds of `--fit` begin."""
    session.config.stash[BEGAN] = time.monotonic()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what `--fit` has no time for."""
    fit_s = item.config.getoption("fit")
    if fit_s is not None and time.monotonic() - item.config.stash[BEGAN] > fit_s:
        pytest.skip(f"no time left of {fit_s:.0f} s: make fault runs it")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadFileScheduling:
    """By file, as fixtures are shared in files; all rings in one process."""
    return ByFile(config, log)


class ByFile(LoadFileScheduling):
    """A file is one unit of work, and so are the files of `RING_FILES` together."""

    def _split_scope(self, nodeid: str) -> str:
        file: str = super()._split_scope(nodeid)
        return "rings" if file.rpartition("/")[2] in RING_FILES else file


@pytest.fixture(autouse=True)
def _gets_are_counted_from_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    """The get that goes by id is the last one of so many, and not any one of them."""
    monkeypatch.setattr("cassieq_spark.queue.get.choice.first_count", lambda _: 0)


@pytest.fixture(autouse=True)
def _logs_as_before() -> Iterator[None]:
    """A command that a test runs in this process sets up logs, which the next test would show."""
    loggers = [logging.getLogger(name) for name in ("cassieq_spark", "cassieq_spark.access")]
    before = [(one, one.level, list(one.handlers)) for one in loggers]
    yield
    for one, level, handlers in before:
        one.setLevel(level)
        one.handlers[:] = handlers


@pytest.fixture(autouse=True)
def _nothing_left_behind(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test that leaves a thread, a child process or a streaming query behind.

    What fixtures of a wider scope run is not the test's: they are set up before this one.
    """
    pools = {_pool(thread) for thread in threading.enumerate()}
    children = set(_children())
    rings = [
        request.getfixturevalue(owner).data_dir
        for name, owner in RESTARTED.items()
        if name in request.fixturenames
    ]
    yield
    left = _stop_streaming_queries() if "spark" in request.fixturenames else []
    try:
        wait_until(lambda: not _left_threads(pools), deadline_s=10)
        wait_until(lambda: not _left_children(children, rings), deadline_s=10)
    except ConditionNotMet:
        left += [_describe_thread(thread) for thread in _left_threads(pools)]
        left += [f"process {child}" for child in _left_children(children, rings)]
    if left:
        pytest.fail("the test left behind:\n" + "\n".join(left), pytrace=False)


def _stop_streaming_queries() -> list[str]:
    from pyspark.sql import SparkSession  # noqa: PLC0415 - only tests with Spark pay for it

    session = SparkSession.getActiveSession()
    queries = session.streams.active if session is not None else []
    names = [f"streaming query {query.name or query.id}" for query in queries]
    for query in queries:
        query.stop()
    return names


def _left_threads(pools_before: set[str]) -> list[threading.Thread]:
    return [
        thread
        for thread in threading.enumerate()
        if _pool(thread) not in pools_before and not _is_shared(thread)
    ]


def _pool(thread: threading.Thread) -> str:
    """A pool's threads are named prefix_0, prefix_1, ...; it adds to them as work comes in."""
    pool, _, number = thread.name.rpartition("_")
    return pool if number.isdigit() else f"{thread.name} {thread.ident}"


def _is_shared(thread: threading.Thread) -> bool:
    if thread.name == "cassieq-work":
        return True  # the portal's, which is one for all tests of a process
    target = getattr(thread, "_target", None)
    modules = (type(thread).__module__, getattr(target, "__module__", None) or "")
    return any(module.startswith(SHARED_THREAD_MODULES) for module in modules)


def _children() -> list[psutil.Process]:
    """This process's. Where Linux tells them, `psutil` need not look at every process there is."""
    found: list[psutil.Process] = []
    if not Path("/proc/thread-self/children").exists():
        return psutil.Process().children()
    for thread in Path("/proc/self/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError, psutil.NoSuchProcess):  # it has ended
            found += [psutil.Process(int(one)) for one in (thread / "children").read_text().split()]
    return found


def _left_children(before: set[psutil.Process], rings: list[Path]) -> list[psutil.Process]:
    """A shared ring's nodes may be others than before: a test that kills one starts it again."""
    return [
        child
        for child in _children()
        if child not in before and not any(_command_names(child, ring) for ring in rings)
    ]


def _command_names(process: psutil.Process, directory: Path) -> bool:
    try:
        return any(str(directory) in argument for argument in process.cmdline())
    except psutil.NoSuchProcess:
        return False


def _describe_thread(thread: threading.Thread) -> str:
    frame = sys._current_frames().get(thread.ident or 0)
    stack = "".join(traceback.format_stack(frame)) if frame is not None else ""
    return f"thread {thread.name} ({thread!r})\n{stack}"
