"""A node of three is killed while a batch is written, and is back before it ends or after."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import cassieq_spark as cassieq
from cassieq_spark.model.ids import FIRST_BUCKET
from cassieq_spark.testing import wait_until
from tests.fault.children import sink_doors
from tests.fault.test_replicas import take_down
from tests.fixtures.cassandra import KEYSPACE

if TYPE_CHECKING:
    from cassieq_spark.testing import EmbeddedCassandra

CHILD = Path(sink_doors.__file__)


@pytest.mark.timeout(600)
@pytest.mark.invariant("I7")
def test_a_batch_in_which_a_node_dies_and_comes_back_is_in_the_queue_once_by_both_doors(
    ring: EmbeddedCassandra,
    queue_name: str,
    spark_environment: dict[str, str],
    pytestconfig: pytest.Config,
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
        log = tmp_path / "log"
        with log.open("w") as said:
            child = subprocess.Popen(
                [
                    *(sys.executable, str(CHILD), json.dumps(connection)),
                    *(arrow.name, connector.name, str(tmp_path)),
                ],
                stdout=said,
                stderr=said,
                cwd=tmp_path,
                env={**os.environ, **spark_environment, "PYTHONPATH": str(pytestconfig.rootpath)},
            )

            def reach(what: str) -> None:
                def is_there() -> bool:
                    if child.poll():
                        pytest.fail(f"the child has failed:\n{log.read_text()[-10_000:]}")
                    return (tmp_path / what).exists()

                wait_until(is_there, deadline_s=240, describe=what)

            try:
                reach("begun")
                take_down(victim, ring)
                (tmp_path / "go_on.1").touch()
                reach("without")  # a third of it is on two nodes only
                assert [] == arrow.peek(1)
                victim.start()
                (tmp_path / "go_on.2").touch()
                reach("arrow.done")

                wait_until(lambda: has_rows(client, connector), deadline_s=120)
                take_down(victim, ring)
                assert not (tmp_path / "connector.done").exists()
                assert [] == connector.peek(1)
                victim.start()
                reach("connector.done")
                assert 0 == child.wait(60)
            finally:
                child.kill()
                child.wait()

        for queue in (arrow, connector):
            found = drained(queue)
            assert sink_doors.MESSAGES == found.total()
            assert 1 == max(found.values())
            assert {sink_doors.body(number) for number in range(sink_doors.MESSAGES)} == set(found)


def has_rows(client: cassieq.Client, queue: cassieq.Queue) -> bool:
    """Whether anything of a batch is stored already."""
    return client._store.messages.has_any(queue._lane.lane_id, FIRST_BUCKET)


def drained(queue: cassieq.Queue) -> Counter[bytes]:
    found: Counter[bytes] = Counter()
    while messages := queue.get(1_000):
        found.update(message.body for message in messages)
        queue.ack(messages)
    return found
