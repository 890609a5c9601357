"""A node of three is killed while a batch is written, and is back before it ends or after."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import cassieq_spark as cassieq
from cassieq_spark.model.ids import FIRST_BUCKET
from cassieq_spark.store import portal
from tests.children import sink_doors
from tests.fault.test_replicas import take_down
from tests.fixtures.cassandra import KEYSPACE
from tests.fixtures.queues import drain

if TYPE_CHECKING:
    from collections.abc import Callable

    from cassieq_spark.testing import EmbeddedCassandra
    from tests.fixtures.processes import Script

CHILD = Path(sink_doors.__file__)


@pytest.mark.timeout(600)
@pytest.mark.invariant("I7")
def test_a_batch_in_which_a_node_dies_and_comes_back_is_in_the_queue_once_by_both_doors(
    ring: EmbeddedCassandra,
    queue_name: str,
    start_script: Callable[..., Script],
    tmp_path: Path,
) -> None:
    victim = ring.nodes[2]
    with cassieq.connect(
        ring.contact_points, keyspace=KEYSPACE, datacenter=ring.datacenter
    ) as client:
        client.bootstrap({"class": "NetworkTopologyStrategy", ring.datacenter: 3})
        arrow = client.create_queue(f"{queue_name}.arrow")
        connector = client.create_queue(f"{queue_name}.connector")
        connection = {"contact_points": ring.nodes[0].contact_point, "keyspace": KEYSPACE}
        script = start_script(
            CHILD.read_text(encoding="utf-8"),
            json.dumps(connection),
            *(arrow.name, connector.name, str(tmp_path)),
        )

        def reach(what: str) -> None:
            script.wait_until((tmp_path / what).exists, what, deadline_s=240)

        reach("begun")
        take_down(victim, ring)
        (tmp_path / "go_on.1").touch()
        reach("without")  # a third of it is on two nodes only
        assert [] == arrow.peek(1)
        victim.start()
        (tmp_path / "go_on.2").touch()
        reach("arrow.done")

        script.wait_until(lambda: has_rows(client, connector), "the connector's writes")
        take_down(victim, ring)
        assert not (tmp_path / "connector.done").exists()
        assert [] == connector.peek(1)
        victim.start()
        reach("connector.done")
        assert 0 == script.wait(deadline_s=60)

        for queue in (arrow, connector):
            found = Counter(message.body for message in drain(queue))
            assert sink_doors.MESSAGES == found.total()
            assert 1 == max(found.values())
            assert {sink_doors.body(number) for number in range(sink_doors.MESSAGES)} == set(found)


def has_rows(client: cassieq.Client, queue: cassieq.Queue) -> bool:
    """Whether anything of a batch is stored already."""
    return portal.run(client._store.lane(queue._lane.lane_id).messages.has_any(FIRST_BUCKET))
