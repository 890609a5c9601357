"""Passes over queues tell how far they are, on a real node."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import cassieq_spark as cassieq
from cassieq_spark import metrics
from cassieq_spark.errors import CassieqError

if TYPE_CHECKING:
    from collections.abc import Callable

    from cassieq_spark import Progress
    from tests.fixtures.queues import Door, OpenDoor

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "operations" / "repair.md"


def redriven(door: Door, **told: Any) -> Any:
    """It is nobody's dead-letter queue: without a target a redrive is refused."""
    target = door.client.create_queue(f"{door.queue.name}.to")
    return door.client.redrive(door.queue.name, to=target.name, dry_run=True, **told)


PASSES: dict[str, Callable[..., Any]] = {
    "repair": lambda door, **told: door.client.repair(door.queue.name, **told),
    "dry run": lambda door, **told: door.client.repair(door.queue.name, dry_run=True, **told),
    "verify": lambda door, **told: door.client.verify(door.queue.name, **told),
    "redrive": redriven,
}


@pytest.fixture(scope="module")
def keyspace() -> str:
    """Passes over all queues: not over those of all other tests."""
    return "cassieq_progress"


def filled(open_door: OpenDoor, name: str = "", **settings: Any) -> Door:
    """Ten buckets: each of these puts is at the end of its own."""
    door = open_door(name, bucket_size=2, **settings)
    for number in range(10):
        door.put(b"%d" % number)
    return door


@pytest.mark.parametrize("name", PASSES)
def test_a_pass_over_a_queue_counts_its_buckets_to_the_end(open_door: OpenDoor, name: str) -> None:
    door = filled(open_door)
    seen: list[Progress] = []

    PASSES[name](door, on_progress=seen.append)

    of_queue = [one for one in seen if one.queue]
    assert {door.queue.name} == {one.queue for one in of_queue}
    assert (10, 10) == (of_queue[-1].buckets_done, of_queue[-1].buckets)
    assert (0, 10) in [(one.buckets_done, one.buckets) for one in of_queue]
    assert ("", 1, 1, 1.0) == (
        seen[-1].queue,
        seen[-1].queues_done,
        seen[-1].queues,
        seen[-1].share,
    )


@pytest.mark.parametrize("name", PASSES)
def test_a_queue_of_many_lanes_never_falls_back(open_door: OpenDoor, name: str) -> None:
    door = open_door(bucket_size=2, priorities=3, shards=4)
    for number in range(24):
        door.queue.put(b"m", key=str(number), priority=number % 3)
    seen: list[Progress] = []

    PASSES[name](door, on_progress=seen.append)

    shares = [one.share for one in seen]
    assert sorted(shares) == shares
    last = [one for one in seen if one.queue][-1]
    assert (1.0, 0) == (last.share, last.buckets - last.buckets_done)
    assert last.buckets >= 12


def test_a_pass_over_all_queues_counts_them(open_door: OpenDoor) -> None:
    door, _ = filled(open_door, ".one"), filled(open_door, ".two")
    seen: list[Progress] = []

    door.client.verify(on_progress=seen.append)

    queues = len(door.client.queues())
    assert list(range(queues + 1)) == sorted({one.queues_done for one in seen})
    assert {queues} == {one.queues for one in seen}


@pytest.mark.parametrize(
    ("name", "more"), [("repair", 0), ("dry run", 0), ("verify", 0), ("redrive", 2)]
)
def test_who_is_told_costs_no_statement_but_two_of_a_redrive(
    open_door: OpenDoor, name: str, more: int
) -> None:
    door = filled(open_door)
    PASSES[name](door)
    counts = []
    for told in ({}, {"on_progress": lambda _: None}):
        before = metrics.STATEMENTS.value
        PASSES[name](door, **told)
        counts.append(metrics.STATEMENTS.value - before)

    assert counts[0] + more == counts[1]


@pytest.mark.parametrize("name", PASSES)
def test_what_the_callback_raises_ends_the_pass_and_it_can_run_again(
    open_door: OpenDoor, name: str
) -> None:
    door = filled(open_door)

    def refuse(now: Progress) -> None:
        if now.buckets_done:
            raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough"):
        PASSES[name](door, on_progress=refuse)

    assert not issubclass(RuntimeError, CassieqError)
    PASSES[name](door)
    assert [] == door.client.verify(door.queue.name).findings
    assert 10 == door.queue.stats().visible


def test_the_example_of_the_guide_shows_each_queue(
    open_door: OpenDoor, capsys: pytest.CaptureFixture[str]
) -> None:
    door = filled(open_door)
    (example,) = re.findall(r"```python\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)

    exec(example, {"cassieq": cassieq, "client": door.client})  # noqa: S102 - what a reader runs

    said = capsys.readouterr().out.splitlines()
    assert f"queue {door.queue.name}: 10 of 10 buckets" in "\n".join(said)
    assert said[-1].startswith("100%")
