"""A driver gets SIGKILL at each step between two queues; its restart loses and doubles nothing."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from cassieq_spark.testing import wait_until
from tests.children.blocking import VARIABLE
from tests.fixtures.processes import CHILDREN
from tests.fixtures.streams import Streams, bodies, bodies_of, busy_client, streams

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.fixtures.processes import Script

__all__ = ["busy_client", "streams"]

CHILD = CHILDREN / "queue_to_queue.py"

#: (where the driver dies, in which batch): between the claim and the offset log; between the
#: offset log and the tasks; with half of a task written; with all tasks done and nothing
#: committed; behind the sink's commit point and before Spark's commit log.
POINTS = [
    ("claimed", 1),
    ("planned", 0),
    ("in_a_task", 1),
    ("prepared", 1),
    pytest.param("committed", 1, marks=pytest.mark.sample),
]


@pytest.mark.invariant("I1")
@pytest.mark.invariant("I7")
@pytest.mark.invariant("I8")
@pytest.mark.parametrize(("point", "batch"), POINTS)
def test_a_driver_killed_in_mid_batch_loses_and_doubles_nothing(
    streams: Streams, start_script: Callable[..., Script], point: str, batch: int
) -> None:
    target = streams.another("target", bucket_size=200)
    streams.put(streams.numbered(0, 1_300))
    # Only a claim that no offset names must wait for its lease to end.
    visibility = "1s" if point == "claimed" else "30d"
    options = {"maxMessagesPerTrigger": "500", "visibilityTimeout": visibility}
    announced = target.directory / f"{point}.{batch}"
    target.directory.mkdir()

    script = start_script(
        CHILD.read_text(encoding="utf-8"),
        json.dumps({**streams.options, **options}),
        json.dumps({**target.options, "chunkMessages": "100"}),
        json.dumps(str(target.checkpoint())),
        env={VARIABLE: str(announced)},
    )
    script.wait_for(announced.name)
    moved = 500 * (batch + (point == "committed"))
    assert moved == target.queue.stats().visible
    assert 1_300 - 500 * batch == streams.queue.stats().visible + streams.queue.stats().in_flight
    script.kill()

    assert moved == target.look().count()

    def drained() -> bool:
        assert target.into(streams.source(**options)).awaitTermination(120)
        return streams.is_empty()

    wait_until(drained, deadline_s=60, describe=lambda: str(streams.queue.stats()))
    assert bodies(0, 1_300) == bodies_of(target.look().collect())
    assert bodies(0, 1_300) == target.drain(checkpoint="reader").bodies
    assert target.holds_nothing(), target.queue.stats()
