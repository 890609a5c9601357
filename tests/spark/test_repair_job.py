"""`jobs/repair.py` as it stands, in the tests' session; and its work spread over tasks."""

from __future__ import annotations

import json
import re
import runpy
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from cassieq_spark.jobs import repair as job
from cassieq_spark.model.ids import BucketNo, Runs
from cassieq_spark.model.sink_txn import Identity
from cassieq_spark.options import parse_connection
from cassieq_spark.queue.sink import transaction
from cassieq_spark.repair.lead import leading
from cassieq_spark.spark.jobs import repair
from cassieq_spark.store import portal
from cassieq_spark.testing import wait_until
from tests.fixtures.cassandra import KEYSPACE
from tests.fixtures.rows import leased_twice

if TYPE_CHECKING:
    from tests.fixtures.streams import Streams

JOB = Path(__file__).resolve().parents[2] / "jobs" / "repair.py"


def run(streams: Streams, *more: str, once: bool = True) -> tuple[int, Any]:
    """(exit code, report)."""
    report = streams.directory / "report.json"
    main = runpy.run_path(str(JOB))["main"]
    where = ["--contact-points", streams.options["contactPoints"], "--keyspace", KEYSPACE]
    code = main(
        [
            *where,
            *("--queue", streams.queue.name),
            *("--report", str(report)),
            *(["--once"] if once else []),
            *more,
        ]
    )
    return code, json.loads(report.read_text()) if report.exists() else None


def test_the_job_heals_and_says_what_it_would_do_and_did(streams: Streams) -> None:
    sink_id = streams.queue.name
    portal.run(
        transaction.admit(streams.lane, Identity(sink_id=sink_id, lane=streams.lane.lane_id), 0)
    )
    streams.client.alter_queue(streams.queue.name, repair_timeout=0.2, gap_timeout=0.1)
    streams.write_buckets(sink_id, 1, [b"of a driver that died"])
    wait_until(lambda: run(streams, "--dry-run")[1]["queues"][0]["aborted"] == 1)
    code, report = run(streams)
    assert (0, []) == (code, report["queues"][0]["problems"])
    assert 1 == report["queues"][0]["aborted"]
    wait_until(lambda: run(streams, "--dry-run")[1]["queues"][0]["dropped"] == 1)
    assert 1 == run(streams)[1]["queues"][0]["dropped"]
    assert {} == streams.queue.stats().buckets


def test_tasks_heal_what_a_driver_alone_would(
    streams: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dead messages in many buckets, moved by tasks, each once."""
    monkeypatch.setattr(repair, "BUCKETS_PER_SHARE", 1)
    dead = streams.client.create_queue(f"{streams.queue.name}.dead", bucket_size=500)
    streams.client.alter_queue(
        streams.queue.name, dead_letter_queue=dead.name, max_deliveries=1, visibility_timeout=0.1
    )
    queue = streams.client.queue(streams.queue.name)
    streams.put(streams.numbered(0, 4_000))
    while queue.get(10_000):
        pass
    connection = parse_connection(
        {"contactPoints": streams.options["contactPoints"], "keyspace": KEYSPACE}
    )
    report = repair.heal(streams.spark, connection, [queue._lane.queue])
    assert [] == report.problems
    moved = report.queues[0].moved_dead
    while moved < 4_000:
        moved += repair.heal(streams.spark, connection, [queue._lane.queue]).queues[0].moved_dead
    assert 4_000 == dead.stats().visible
    assert 0 == queue.stats().dead


def test_another_leader_is_left_to_work(
    streams: Streams, capsys: pytest.CaptureFixture[str]
) -> None:
    with portal.entered(leading(streams.lane.store)) as is_leader:
        assert is_leader
        assert (0, None) == run(streams)
        assert "another repair is at work" in capsys.readouterr().err
        code, report = run(streams, "--no-leader")
        assert (0, streams.queue.name) == (code, report["queues"][0]["queue"])
    assert run(streams)[1] is not None


def break_a_bucket(streams: Streams) -> None:
    """One bucket's row says two things of a message, and the messages of it are gone."""
    lane = streams.lane
    (bucket,) = (
        at
        for at in range(8)
        if (row := portal.run(lane.buckets.read(BucketNo(at)))) and row.value.fresh
    )
    portal.run(
        lane.change_bucket(BucketNo(bucket), lambda row, *_: leased_twice(row, Runs.span(0, 3)))
    )
    portal.run(lane.messages.drop(BucketNo(bucket)))


def test_a_verify_says_what_is_broken_and_changes_nothing(
    streams: Streams, capsys: pytest.CaptureFixture[str]
) -> None:
    streams.put(streams.numbered(0, 500).coalesce(1))
    code, report = run(streams, "--verify")
    assert (0, []) == (code, report["findings"])
    assert (500, 500) == (report["messages"], report["unacked"])

    break_a_bucket(streams)
    code, report = run(streams, "--verify")
    assert 1 == code
    assert {"message_in_two_states", "manifest_without_rows"} == {
        one["kind"] for one in report["findings"]
    }
    assert "message_in_two_states: queue" in capsys.readouterr().err


@pytest.mark.parametrize("form", ["text", "json"])
def test_each_line_of_a_job_that_repeats_has_its_time(
    streams: Streams, form: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Another repair leads, Cassandra refuses, and verify finds something."""
    for waits, flags in ((2, ()), (1, ("--verify",)), (1, ("--keyspace", "nowhere"))):
        monkeypatch.setattr(job, "SystemClock", lambda waits=waits: Passes(waits))
        if flags == ("--verify",):
            streams.put(streams.numbered(0, 500).coalesce(1))
            break_a_bucket(streams)
        where = ["--contact-points", streams.options["contactPoints"], "--keyspace", KEYSPACE]
        with portal.entered(leading(streams.lane.store)), pytest.raises(Passes.Over):
            job.main([*where, "--queue", streams.queue.name, *flags, "--log-format", form])
        lines = capsys.readouterr().err.splitlines()
        assert lines, flags
        for line in lines:
            moment = json.loads(line)["time"] if form == "json" else line.partition(" ")[0]
            assert re.fullmatch(r"\d{4}-\d\d-\d\dT[\d:.]+Z", moment), line


class Passes:
    """A clock that ends a job after so many passes."""

    class Over(Exception):
        """They were made."""

    def __init__(self, count: int) -> None:
        self._left = count

    def wait(self, _: float) -> None:
        self._left -= 1
        if not self._left:
            raise Passes.Over


def test_a_wrong_argument_is_named(streams: Streams, capsys: pytest.CaptureFixture[str]) -> None:
    main = runpy.run_path(str(JOB))["main"]
    assert 2 == main(["--contact-points", "a b", "--once"])
    assert "--contact-points is 'a b'" in capsys.readouterr().err
    code, _ = run(streams, "--queue", "missing")
    assert 1 == code
    assert "[cassieq:queue_not_found]" in capsys.readouterr().err
    for flags, named in [
        (("--interval", "soon"), "--interval is 'soon', allowed: a time from 1 s to 1 d"),
        (("--once", "--datacenter", "nowhere"), "no data centre 'nowhere'"),
        (("--once", "--report", "/no/such/folder/report"), "--report /no/such/folder/report"),
    ]:
        code, _ = run(streams, *flags, once=False)
        assert (2, 1) == (code, (said := capsys.readouterr().err).count("\n")), said
        assert named in said


@pytest.mark.parametrize("flags", [(), ("--dry-run",), ("--verify",), ("--no-leader",)])
def test_a_host_without_an_address_is_one_line_and_exit_code_1(
    flags: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    main = runpy.run_path(str(JOB))["main"]
    assert 1 == main(["--contact-points", "no-such-host.invalid", "--once", *flags])
    said = capsys.readouterr()
    assert ("", 1) == (said.out, said.err.count("\n"))
    assert "knows no address of 'no-such-host.invalid'" in said.err
