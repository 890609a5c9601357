"""`connect_async` on a real node: what is left when it fails, and what a first use loads."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

import cassieq_spark as cassieq
from cassieq_spark.errors import StoreUnavailable
from tests.fixtures.cassandra import KEYSPACE
from tests.fixtures.processes import CHILDREN

if TYPE_CHECKING:
    from cassieq_spark.testing import EmbeddedCassandra


def test_a_client_that_cannot_connect_says_so_and_leaves_nothing(
    cassandra: EmbeddedCassandra,
) -> None:
    async def inside() -> None:
        with pytest.raises(StoreUnavailable):
            async with cassieq.connect_async("127.0.0.1:1", keyspace=KEYSPACE):
                pytest.fail("connected")
        for delay_s in (0, 0.005, 0.01, 0.02, 0.03, 0.05):
            own = cassieq.connect_async(cassandra.contact_points, keyspace=KEYSPACE)
            connecting = asyncio.create_task(own.__aenter__())
            await asyncio.sleep(delay_s)
            connecting.cancel()
            try:
                await connecting
            except asyncio.CancelledError:
                continue
            await own.close()  # it was faster

    asyncio.run(inside())  # the threads of a client that was left open would fail this test


def test_a_first_use_in_a_coroutine_imports_only_what_is_light_in_the_event_loop(
    cassandra: EmbeddedCassandra, queue_name: str
) -> None:
    """Whoever imports the driver, NumPy or PyArrow there stops all tasks for half a second."""
    done = subprocess.run(
        [
            sys.executable,
            CHILDREN / "first_use_on_loop.py",
            cassandra.contact_points,
            KEYSPACE,
            queue_name,
        ],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert 0 == done.returncode, done.stderr

    names = [name.split(".") for name in json.loads(done.stdout)]
    others = {name[0] for name in names} - sys.stdlib_module_names
    rooms = {name[1] for name in names if name[0] == "cassieq_spark" and len(name) > 1}
    assert {"cassieq_spark"} == others
    assert {"connecting", "errors", "interpreter", "lazy", "model", "options"} >= rooms
