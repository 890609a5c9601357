"""A client works in the process and the event loop that opened it, and says so elsewhere."""

from __future__ import annotations

import asyncio
import copy
import json
import os
import pickle
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

import cassieq_spark as cassieq
from cassieq_spark.errors import UsageError
from tests.fixtures.cassandra import KEYSPACE

if TYPE_CHECKING:
    from cassieq_spark.testing import EmbeddedCassandra


@pytest.mark.parametrize("time", ["measured", "unknown"])
def test_a_forked_child_is_told_at_once_and_ends_quietly_and_its_parent_goes_on(
    client: cassieq.Client, cassandra: EmbeddedCassandra, queue_name: str, time: str
) -> None:
    client.create_queue(queue_name).put_many([b"1", b"2", b"3"])
    ended = subprocess.run(
        [
            sys.executable,
            *("-W", "ignore::DeprecationWarning"),  # Python 3.12 warns of forks with threads
            *("-m", "tests.children.forked"),
            *(cassandra.contact_points, KEYSPACE, queue_name, time),
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    assert 0 == ended.returncode, ended.stderr
    report = json.loads(ended.stdout)
    odd = {
        use: told
        for use, told in report["child"].items()
        if not told.startswith("UsageError: [cassieq:") or "Open a client in each" not in told
    }
    assert {} == odd
    assert 10 == len(report["child"])
    assert 7 == os.waitstatus_to_exitcode(report["status"])
    assert report["parent"]


def test_what_has_connections_and_threads_says_why_it_does_not_pickle(
    client: cassieq.Client, cassandra: EmbeddedCassandra, queue_name: str
) -> None:
    queue = client.create_queue(queue_name)

    def check(name: str, one: object) -> None:
        for take in (pickle.dumps, copy.copy):
            with pytest.raises(UsageError, match=f"{name} does not pickle: .*connect in the"):
                take(one)

    async def check_async() -> None:
        async with cassieq.connect_async(cassandra.contact_points, keyspace=KEYSPACE) as own:
            check("AsyncClient", own)
            opened = await own.queue(queue_name)
            check("AsyncQueue", opened)
            check("AsyncConsumer", opened.consumer())

    check("Client", client)
    check("Queue", queue)
    check("Consumer", queue.consumer())
    asyncio.run(check_async())
