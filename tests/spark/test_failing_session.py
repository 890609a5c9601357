"""A failing query does not harm its session: what comes after it in that session does its work."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from tests.fixtures.processes import CHILDREN

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import cassieq_spark as cassieq
    from cassieq_spark.testing import EmbeddedCassandra
    from tests.fixtures.processes import Script

ROUNDS = 5
"""Of all writes; the streams are spread over them."""

CHILD = CHILDREN / "failing_session.py"

WRITES = {
    "never_there": "[cassieq:queue_not_found]",
    "misspelt": "[cassieq:option_unknown]",
    "of_a_wrong_schema": "[cassieq:option_invalid]",
    "without_cassandra": "[cassieq:store_unavailable]",
    "without_a_keyspace": "[cassieq:schema_missing]",
    "with_a_null": "[cassieq:body_invalid]",
    "under_a_used_id": "[cassieq:sink_id_reused]",
    "with_a_task_that_fails": "PythonException",
    "deleted_under_its_tasks": "[cassieq:queue_deleted]",
    "deleted_before_its_tasks": "[cassieq:queue_not_found]",
}

STREAMS = {
    "misspelt_source": ["[cassieq:option_unknown]"],
    "source_never_there": ["[cassieq:queue_not_found]"],
    "deleted_while_it_waits": ["[cassieq:queue_deleted]"],
    "deleted_in_its_batch": ["[cassieq:data_loss]"],
    "replayed_from_another_release": ["[cassieq:offset_unreadable]"],
    "handler_with_long_causes": ["StreamingQueryException"],
    "handler_whose_write_fails": [
        said if said.startswith("[cassieq:") else "StreamingQueryException"
        for said in WRITES.values()
    ],
    "handler_whose_verdicts_are_none": ["[cassieq:option_invalid]"],
    "handler_without_a_connector": ["[cassieq:connector_missing]"],
    "sink_with_a_null": ["[cassieq:body_invalid]"],
    "sink_that_fails": ["StreamingQueryException"] * 2,
}


@pytest.mark.long
@pytest.mark.timeout(900)
def test_after_fifty_failed_writes_and_streams_of_every_kind_a_session_works_as_before(
    client: cassieq.Client,  # noqa: ARG001 - it has made the tables
    cassandra: EmbeddedCassandra,
    start_script: Callable[..., Script],
    tmp_path: Path,
) -> None:
    """A good collect, write and stream between each round of them; then stopped ones, as well."""
    script = start_script(
        CHILD.read_text(encoding="utf-8"), cassandra.contact_points, str(tmp_path), str(ROUNDS)
    )

    code = script.wait(deadline_s=840)

    told = [line for line in script.lines if line.split(" ")[0].isupper()]
    assert 0 == code, script.output[-20_000:]
    of = {
        kind: [line.partition(" ")[2] for line in told if line.startswith(f"{kind} ")]
        for kind in ("WRITE", "STREAM", "STOPPED", "ENDED")
    }
    writes = Counter(tuple(json.loads(one)) for one in of["WRITE"])
    assert Counter(dict.fromkeys(WRITES.items(), ROUNDS)) == writes
    assert 50 == writes.total()
    streams = Counter(tuple(json.loads(one)) for one in of["STREAM"])
    assert (
        Counter((name, said) for name, all_said in STREAMS.items() for said in all_said) == streams
    )
    # What the pattern of Spark looks at is short: see tests/spark/test_boundary.py.
    assert [True] * 3 == [int(length) < 1_000 for length in of["STOPPED"]]
    assert 1 + ROUNDS + 3 == script.lines.count("GOOD")
    assert ["[]"] == of["ENDED"]
    assert "StackOverflowError" not in script.output
    assert 'Exception in thread "' not in script.output
