"""A verify pass names what broken rules have left behind: each state is made by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from cassieq_spark.cli.repair import show
from cassieq_spark.cli.shell import Out
from cassieq_spark.model import bucket as rules
from cassieq_spark.model.bucket import SinkRef
from cassieq_spark.model.ids import BucketNo, Runs
from cassieq_spark.model.outcome import Applied
from cassieq_spark.queue.sink.writer import insert_writing
from cassieq_spark.repair.report import FINDINGS, Finding, VerifyReport
from cassieq_spark.store import portal
from cassieq_spark.store.tables import sinks
from tests.fixtures.transports import run_cql

if TYPE_CHECKING:
    from tests.fixtures.queues import Door, OpenDoor

FIRST = BucketNo(0)


@pytest.fixture(scope="module")
def keyspace() -> str:
    """Passes over all queues: not over those of all other tests."""
    return "cassieq_verify"


def kinds(door: Door) -> list[tuple[str, int | None]]:
    found = [(one.kind, one.bucket) for one in door.client.verify(door.queue.name).findings]
    assert {kind for kind, _ in found} <= FINDINGS.keys()
    return found


def by_hand(door: Door, manifest: Runs, *rows: tuple[int, list[bytes]]) -> BucketNo:
    """A bulk bucket that is visible: rows of bodies by their first offset."""
    bucket = door.reserve()
    sink = SinkRef(sink_id="by hand", epoch=1, block_end=BucketNo(bucket + 1))
    row = portal.run(insert_writing(door.lane, bucket, sink))
    assert row is not None
    for first, bodies in rows:
        door.write(bucket, first, *bodies)
    now_us = door.clock.now_us()
    filled = rules.prepared(row.value, manifest=manifest, due_us={}, size_bytes=1, now_us=now_us)
    outcome = portal.run(door.lane.buckets.fill(bucket, row, filled))
    assert isinstance(outcome, Applied)
    portal.run(door.lane.change_bucket(bucket, lambda row, *_: rules.published(row, now_us=now_us)))
    return bucket


def numbered(first: int, end: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, end)]


@pytest.mark.invariant("I6")
def test_t1_a_manifest_beyond_its_bucket_is_named_and_a_redrive_gets_its_messages_out(
    open_door: OpenDoor,
) -> None:
    """What a mover of an earlier release has left: two messages under each of five ids."""
    door, target = open_door(), open_door(".target")
    by_hand(door, Runs.span(0, 9), (0, numbered(0, 10)))
    assert [] == kinds(door)
    by_hand(door, Runs.span(0, 14), (0, numbered(10, 18)), (8, numbered(18, 25)))
    by_hand(door, Runs.span(0, 9), (0, numbered(25, 35)))
    assert [("manifest_beyond_bucket", 1)] == kinds(door)
    assert 35 == door.client.redrive(door.queue.name, to=target.queue.name).moved
    assert sorted(numbered(0, 35)) == target.drain()
    assert [] == kinds(target)


@pytest.mark.invariant("I6")
def test_an_id_that_is_stored_twice_is_named(door: Door) -> None:
    by_hand(door, Runs.span(0, 4), (0, numbered(0, 3)), (3, numbered(3, 5)))
    assert [] == kinds(door)
    by_hand(door, Runs.span(0, 3), (0, numbered(0, 3)), (2, numbered(2, 4)))
    assert [("id_stored_twice", 1)] == kinds(door)


@pytest.mark.invariant("I1")
@pytest.mark.parametrize("how", ["lease", "delay", "release"])
def test_t4_what_came_back_behind_the_reader_without_a_hint_is_named_and_repair_mends_it(
    door: Door, how: str
) -> None:
    door.queue.put_many([b"m"] * 10)
    messages = door.queue.get(10, visibility_timeout=5)
    door.queue.put(b"else")
    assert [b"else"] == door.bodies(portal.run(door.reader().get(1)))
    assert portal.run(door.lane.read_pointers()).reader > FIRST
    if how == "delay":
        door.queue.release(messages, delay=5)
    elif how == "release":
        door.queue.release(messages)
    door.clock.advance(6)
    assert [] == kinds(door)
    forget_hints(door)
    assert [("visible_without_hint", 0)] == kinds(door)
    assert [] == portal.run(door.reader().get(10))
    door.client.repair(door.queue.name)
    assert [] == kinds(door)
    assert 10 == len(door.bodies(portal.run(door.reader().get(10))))


def forget_hints(door: Door) -> None:
    now_us = door.clock.now_us()
    for hour in range(now_us // 3_600_000_000 - 1, now_us // 3_600_000_000 + 3):
        forget = "DELETE FROM {ks}.expiry WHERE lane = ? AND hour = ?"
        run_cql(door.session, forget, door.lane.lane_id, hour)


@pytest.mark.invariant("I10")
def test_t2_a_row_above_its_limit_is_named(door: Door) -> None:
    door.put_batch(0, b"a")
    assert [] == kinds(door)
    revisions = tuple((offset, (1 << 62) + offset) for offset in range(80_000))
    portal.run(door.lane.change_bucket(FIRST, lambda row, *_: replace(row, revisions=revisions)))
    assert ("row_too_large", 0) in kinds(door)


@pytest.mark.invariant("I7")
def test_a_sink_whose_bucket_list_is_gone_is_named(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sinks, "LIST_IN_ROW_BYTES", 1)
    door.put_batch(0, b"a")
    assert [] == kinds(door)
    delete_lists(door, door.identity().sink_id)
    assert [("row_corrupt", None)] == kinds(door)


def test_t19_a_bucket_list_whose_sink_has_no_row_is_named_by_a_look_at_all_queues(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sinks, "LIST_IN_ROW_BYTES", 1)
    sink_id = door.identity().sink_id

    def orphans() -> list[str]:
        findings = door.client.verify().findings
        return [one.kind for one in findings if sink_id in one.what and not one.queue]

    door.put_batch(0, b"a")
    assert [] == orphans()
    stored = portal.run(door.store.sinks.read(sink_id))
    assert stored is not None
    of_sink = "SELECT sink_id, list_id, part, data FROM {ks}.sink_list WHERE sink_id = ?"
    lists = run_cql(door.session, of_sink, sink_id)
    portal.run(door.store.sinks.delete(sink_id, stored))
    for row in lists:
        again = "INSERT INTO {ks}.sink_list (sink_id, list_id, part, data) VALUES (?, ?, ?, ?)"
        run_cql(door.session, again, *row)
    assert ["list_without_sink"] == orphans()
    assert [] == kinds(door)  # it belongs to no queue that anybody knows of
    delete_lists(door, sink_id)
    assert [] == orphans()


def delete_lists(door: Door, sink_id: str) -> None:
    run_cql(door.session, "DELETE FROM {ks}.sink_list WHERE sink_id = ?", sink_id)


def test_a_finding_is_shown_with_as_much_of_its_place_as_is_known(
    capsys: pytest.CaptureFixture[str],
) -> None:
    places = [("q", 3), ("q", None), ("", None)]
    found = [Finding(queue=queue, kind="k", bucket=at, what="w") for queue, at in places]
    assert show(VerifyReport(findings=found), Out(as_json=True))
    assert ["k: queue 'q', bucket 3: w", "k: queue 'q': w", "k: w"] == [
        line.rpartition("cassieq: ")[2] for line in capsys.readouterr().err.splitlines()
    ]
    one = Finding(queue="q", kind="k", bucket=3, what="w", lane="1-2")
    assert show(VerifyReport(findings=[one]), Out(as_json=False))
    assert "k: queue 'q', lane 1-2, bucket 3: w" in " ".join(capsys.readouterr().err.split())
