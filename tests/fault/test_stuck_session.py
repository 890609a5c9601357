"""The connector's driver gets stuck when its control connection is lost at a bad moment: a query
that writes through it goes on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import cassieq_spark as cassieq
from tests.children import stuck_session
from tests.fixtures.cassandra import KEYSPACE
from tests.fixtures.queues import drain

if TYPE_CHECKING:
    from collections.abc import Callable

    from cassieq_spark.testing import EmbeddedCassandra
    from tests.fixtures.processes import Script

CHILD = Path(stuck_session.__file__)


@pytest.mark.timeout(600)
def test_a_query_goes_on_when_the_connectors_session_can_refresh_its_schema_no_more(
    own_cassandra: EmbeddedCassandra,
    queue_name: str,
    start_script: Callable[..., Script],
    tmp_path: Path,
) -> None:
    """Java driver 4.18.1: a refresh that failed without a control connection is the last one."""
    connection = {"contact_points": own_cassandra.contact_points, "keyspace": KEYSPACE}
    with cassieq.connect(**connection) as client:
        client.bootstrap()
        client.create_queue(queue_name)
    script = start_script(
        CHILD.read_text(encoding="utf-8"), json.dumps(connection), queue_name, str(tmp_path / "c")
    )
    script.wait_for("kill", deadline_s=180)
    own_cassandra.kill()
    script.proceed()
    script.wait_for("start")
    own_cassandra.start()
    script.proceed()
    assert 0 == script.wait(deadline_s=300), script.output

    assert "STUCK True" in script.lines, script.output  # else this test shows nothing
    assert "ACTIVE True None" in script.lines, script.output
    with cassieq.connect(**connection) as client:
        bodies = [int(one.body) for one in drain(client.queue(queue_name))]
    assert len(bodies) >= 3 * stuck_session.ROWS_PER_BATCH
    assert list(range(len(bodies))) == sorted(bodies)
