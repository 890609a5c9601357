"""`jobs/redrive.py` as it stands, in the tests' session."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import cassieq_spark as cassieq
from cassieq_spark.errors import StoreUnavailable
from cassieq_spark.model.ids import Runs
from cassieq_spark.repair import dead
from cassieq_spark.spark.jobs import redrive
from cassieq_spark.store import store
from tests.fixtures.cassandra import KEYSPACE
from tests.fixtures.streams import bodies
from tests.spark.test_views import pushdown_on

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.fixtures.streams import Streams

JOB = Path(__file__).resolve().parents[2] / "jobs" / "redrive.py"


@pytest.fixture(autouse=True)
def _no_shared_store() -> Iterator[None]:
    """The job keeps its session, as a driver's program would want it."""
    yield
    store.close_shared()


@pytest.fixture
def graves(streams: Streams) -> Streams:
    """The dead-letter queue of `streams`, whose buckets hold 100."""
    graves = streams.another("dead", bucket_size=100)
    streams.client.alter_queue(streams.queue.name, dead_letter_queue=graves.queue.name)
    return graves


def die(streams: Streams, first: int, end: int, reason: str) -> None:
    """Messages ``m-<first>`` to ``m-<end - 1>``, rejected and moved."""
    queue = streams.client.queue(streams.queue.name)
    queue.put_many([b"m-%d" % number for number in range(first, end)])
    while messages := queue.get(10_000):
        queue.reject(messages, reason=reason)
    streams.client.repair(queue.name)


def run(graves: Streams, *more: str) -> tuple[int, Any]:
    """(exit code, report)."""
    report = graves.checkpoint("report.json")
    report.parent.mkdir(exist_ok=True)
    report.unlink(missing_ok=True)
    main = runpy.run_path(str(JOB))["main"]
    where = ["--contact-points", graves.options["contactPoints"], "--keyspace", KEYSPACE]
    code = main([*where, "--queue", graves.queue.name, "--report", str(report), *more])
    return code, json.loads(report.read_text()) if report.exists() else None


def got(queue: cassieq.Queue) -> list[bytes]:
    found: list[bytes] = []
    while messages := queue.get(10_000):
        found += [one.body for one in messages]
        queue.ack(messages)
    return sorted(found)


def test_sql_chooses_and_tasks_redrive_many_buckets_once(
    streams: Streams, graves: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redrive, "BUCKETS_PER_TASK", 1)
    die(streams, 0, 450, "timeout")
    die(streams, 450, 500, "no such customer")
    where = "reason = 'timeout' and last_time <= now() and id % 2 = 0 and deliveries = 1"
    ids = [one.id for one in graves.queue.peek(1_000)]
    assert 500 == len(ids)
    wanted = sorted(
        one.body
        for one in graves.queue.peek(1_000)
        if one.id % 2 == 0 and one.headers["cassieq-reason"] == "timeout"
    )

    foreseen = run(graves, "--where", where, "--dry-run")
    assert (0, {streams.queue.name: len(wanted)}, 0) == (
        foreseen[0],
        foreseen[1]["by_target"],
        foreseen[1]["moved"],
    )
    assert 500 == graves.queue.stats().visible

    code, report = run(graves, "--where", where)
    assert (0, len(wanted), 0, []) == (
        code,
        report["moved"],
        report["waiting"],
        report["problems"],
    )
    assert 0 < len(wanted) < 450
    assert wanted == got(streams.queue)
    assert (0, 0) == (run(graves, "--where", where)[0], run(graves, "--where", where)[1]["moved"])

    assert 500 - len(wanted) == run(graves)[1]["moved"]
    assert sorted([*wanted, *got(streams.queue)]) == sorted(bodies(0, 500).elements())
    assert [] == graves.client.verify(graves.queue.name).findings


def test_what_somebody_holds_stays_and_the_rest_goes_elsewhere(
    streams: Streams, graves: Streams
) -> None:
    die(streams, 0, 20, "timeout")
    other = streams.another("other")
    held = graves.queue.get(5)
    code, report = run(graves, "--to", other.queue.name, "--where", "source_queue like '%'")
    assert (0, 15, {other.queue.name: 15}) == (code, report["moved"], report["by_target"])
    graves.queue.ack(held)
    assert sorted(bodies(0, 20).elements()) == sorted(
        [*got(other.queue), *(one.body for one in held)]
    )


def test_what_waits_for_repair_is_in_view_dead_with_its_target(
    streams: Streams, graves: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    die(streams, 0, 3, "timeout")

    def away(*_: object) -> int:
        raise StoreUnavailable("nobody is there")

    with monkeypatch.context() as context:
        context.setattr(dead, "move", away)
        done = graves.client.redrive(graves.queue.name)
    assert (0, 3) == (done.moved, done.waiting)

    rows = graves.look(view="dead").collect()
    assert [("redrive", streams.queue.name)] * 3 == [(row.reason, row.target) for row in rows]
    with pushdown_on(graves.spark):
        pushed = graves.look(view="dead", pushFilters=True)
        assert [3, 0] == [
            len(pushed.where(f"target = '{target}'").collect())
            for target in (streams.queue.name, "another")
        ]
    assert 3 == graves.client.repair(graves.queue.name).queues[0].redriven
    assert [b"m-0", b"m-1", b"m-2"] == got(streams.queue)


def test_a_wrong_argument_is_named_and_nothing_is_taken(
    streams: Streams, graves: Streams, capsys: pytest.CaptureFixture[str]
) -> None:
    die(streams, 0, 3, "timeout")
    for flags, code, named in [
        (("--where", "colour = 'red'"), 2, "colour"),
        (("--where", "reason ="), 2, "reason"),
        (("--to", graves.queue.name), 2, "which has the messages already"),
        (("--to", "a b"), 2, "not a queue name"),
        (("--to", "missing"), 1, "[cassieq:queue_not_found]"),
        (("--queue", streams.queue.name), 2, "name a queue with"),
    ]:
        assert (code, None) == run(graves, *flags), flags
        assert named in capsys.readouterr().err
    main = runpy.run_path(str(JOB))["main"]
    for flags, code, named in [
        (("--contact-points", "no-such-host.invalid"), 1, "no address of 'no-such-host.invalid'"),
        (("--report", "/no/such/folder/x"), 2, "--report /no/such/folder/x"),
    ]:
        where = ("--contact-points", graves.options["contactPoints"], "--keyspace", KEYSPACE)
        assert code == main([*where, "--queue", graves.queue.name, *flags])
        said = capsys.readouterr()
        assert ("", 1) == (said.out, said.err.count("\n")), said.err
        assert named in said.err
    graves.queue.put(b"put there by hand")
    code, report = run(graves)
    assert (1, 3, 1) == (code, report["moved"], report["homeless"])
    assert "1 messages stay" in capsys.readouterr().err


def test_the_level_and_form_of_what_is_logged_are_flags(
    graves: Streams, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (1, None) == run(graves, "--to", "missing")
    assert "spark_error_shortened" not in capsys.readouterr().err

    asked = ("--log-level", "debug", "--log-format", "json")
    assert (1, None) == run(graves, "--to", "missing", *asked)
    lines = capsys.readouterr().err.splitlines()
    logged = [json.loads(line) for line in lines if line[0] == "{"]
    (told,) = [one for one in logged if one.get("event") == "spark_error_shortened"]
    assert ("DEBUG", True) == (told["level"], "QueueNotFound" in told["fields"]["error"])
    assert "[cassieq:queue_not_found]" in lines[-1]


@given(st.lists(st.integers(0, 60)), st.integers(1, 20))
def test_ids_are_put_together_by_bucket(ids: list[int], bucket_size: int) -> None:
    found = dict(redrive.by_bucket(np.array(ids, dtype=np.int64), bucket_size))
    expected: dict[int, set[int]] = {}
    for one in ids:
        expected.setdefault(one // bucket_size, set()).add(one % bucket_size)
    assert {bucket: Runs.from_offsets(some) for bucket, some in expected.items()} == found
