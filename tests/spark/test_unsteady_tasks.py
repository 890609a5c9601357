"""Executors that lose a worker or run a task twice at once read the same rows (I8)."""

from __future__ import annotations

import json
import sys
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from tests.children.stopping import Stop
from tests.fixtures.processes import CHILDREN
from tests.fixtures.streams import Streams, bodies

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.fixtures.processes import Script

CHILD = CHILDREN / "unsteady_tasks.py"


@pytest.mark.invariant("I1")
@pytest.mark.invariant("I8")
@pytest.mark.skipif(sys.platform != "linux", reason="a second loopback address is a second host")
def test_a_killed_worker_and_a_speculative_attempt_change_no_row(
    streams: Streams, start_script: Callable[..., Script]
) -> None:
    """On a cluster of two hosts: batch 0 loses a reading worker, batch 1 has a straggler."""
    streams.put(streams.numbered(0, 600), chunkMessages=20)
    result = streams.directory / "result"
    result.mkdir()
    stop = Stop(notes=str(result / "notes"), how="dies", at="read")
    options = {
        **streams.options,
        "maxMessagesPerTrigger": "300",
        "minPartitions": "2",
        "stop": stop.to_option(),
    }

    script = start_script(CHILD.read_text(encoding="utf-8"), json.dumps(options), str(result))

    assert 0 == script.wait(deadline_s=240), script.output
    assert "read" == stop.reached
    read: dict[str, list[list[list[str]]]] = {}
    for path in sorted(result.glob("attempt-*")):
        _, batch, task, _ = path.name.split("-")
        read.setdefault(f"{batch}-{task}", []).append(json.loads(path.read_text()))
    assert {"0-0", "0-1", "1-0", "1-1"} == read.keys()
    first, second = read["1-0"]
    assert 150 == len(first)
    assert first == second
    # The last attempts: what reads behind a killed worker sees an early end before its task fails.
    rows = [row for attempts in read.values() for row in attempts[-1]]
    assert bodies(0, 600) == Counter(body.encode() for body, _, _ in rows)
    assert streams.is_empty()
