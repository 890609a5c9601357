"""The client in memory is the engine on a simulated node, with a clock that a test moves."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import warnings
from typing import Any

import pytest

from cassieq_spark.errors import QueueNotFound, ReceiptExpired, SchemaMismatch
from cassieq_spark.model.moments import us_of
from cassieq_spark.store import portal, schema
from cassieq_spark.store.statements import Kind, Statement
from cassieq_spark.testing import ManualClock, MemoryClient, memory_client, wait_until
from cassieq_spark.testing.simulated.paxos import Variant
from cassieq_spark.testing.simulated.server import Server
from cassieq_spark.testing.simulated.transport import SimulatedTransport

PROGRAM = """
import warnings
from cassieq_spark.testing import memory_client
with warnings.catch_warnings(record=True) as found:
    warnings.simplefilter("always")
    memory_client().close()
print([one.category.__name__ for one in found], "for tests" in str(found[0].message))
"""


def server_of(client: MemoryClient) -> Server:
    transport = client._session.transport
    assert isinstance(transport, SimulatedTransport)
    return transport.server


def test_a_lease_runs_out_when_a_test_lets_time_pass(cassieq_memory: MemoryClient) -> None:
    queue = cassieq_memory.create_queue("orders", visibility_timeout=30)
    queue.put(b"hello", headers={"a": "b"})
    [first] = queue.get()
    assert (b"hello", 1, {"a": "b"}) == (first.body, first.delivery_count, dict(first.headers))
    assert [] == queue.get()
    cassieq_memory.clock.advance(31)
    [second] = queue.get()
    assert 2 == second.delivery_count
    with pytest.raises(ReceiptExpired):
        queue.ack(first)
    queue.ack(second)
    cassieq_memory.clock.advance(3_600)
    assert [] == queue.get()
    assert 0 == queue.stats().in_flight


@pytest.mark.invariant("I10")
def test_r21_a_client_that_stood_still_in_its_first_cas_leases_for_no_longer(
    cassieq_memory: MemoryClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a client whose machine slept then leases all that follows for days."""
    session = cassieq_memory._session
    run_once = session.run_once

    async def slept(statement: Statement, *args: Any, **kwargs: Any) -> Any:
        rows = await run_once(statement, *args, **kwargs)
        if statement.kind is Kind.CAS:
            ManualClock.advance(cassieq_memory.clock, 86_400)  # no timer rings before the answer
        return rows

    with monkeypatch.context() as patch:
        patch.setattr(session, "run_once", slept)
        queue = cassieq_memory.create_queue("orders", visibility_timeout=30)
    queue.put(b"hello")
    [message] = queue.get()
    left_us = us_of(message.visible_until) - cassieq_memory.clock.now_us()
    assert left_us <= 31_000_000


def test_a_wait_ends_when_the_time_of_a_delayed_message_has_come(
    cassieq_memory: MemoryClient,
) -> None:
    queue = cassieq_memory.create_queue("orders")
    queue.put(b"later", delay=600)
    found: list[bytes] = []
    waiting = threading.Thread(
        target=lambda: found.extend(one.body for one in queue.get(wait=20_000))
    )
    waiting.start()
    wait_until(lambda: queue.stats().delayed == 1)
    assert [] == found
    cassieq_memory.clock.advance(601)
    waiting.join(30)
    assert [b"later"] == found


def test_two_clients_share_queues_and_clock(cassieq_memory: MemoryClient) -> None:
    with memory_client(beside=cassieq_memory) as other:
        cassieq_memory.create_queue("orders").put(b"1")
        [message] = other.queue("orders").get(visibility_timeout=5)
        assert [] == cassieq_memory.queue("orders").get()
        cassieq_memory.clock.advance(6)
        assert [message.id] == [one.id for one in cassieq_memory.queue("orders").get()]


def test_tasks_use_it_as_a_client_for_asyncio(cassieq_memory: MemoryClient) -> None:
    async def work() -> list[bytes]:
        client = cassieq_memory.for_tasks()
        queue = await client.create_queue("orders")
        await queue.put_many([b"a", b"b"])
        messages = await queue.get()
        await queue.ack(messages)
        return [one.body for one in messages]

    assert [b"a", b"b"] == asyncio.run(work())


async def test_a_block_of_tasks_neither_connects_elsewhere_nor_ends_the_client(
    cassieq_memory: MemoryClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CASSIEQ_PASSWORD", "of another cluster")

    async with cassieq_memory.for_tasks() as client:
        await (await client.create_queue("orders")).put(b"a")

    assert [b"a"] == [one.body for one in cassieq_memory.queue("orders").get()]
    with memory_client(beside=cassieq_memory) as other:
        assert ["orders"] == [one.name for one in other.queues()]


def test_repair_and_verify_work_there(cassieq_memory: MemoryClient) -> None:
    cassieq_memory.create_queue("dead")
    queue = cassieq_memory.create_queue("orders", max_deliveries=1, dead_letter_queue="dead")
    queue.put(b"bad")
    queue.get(visibility_timeout=5)
    cassieq_memory.clock.advance(6)
    report = cassieq_memory.repair(full=True)
    assert 1 == sum(one.moved_dead for one in report.queues)
    assert [b"bad"] == [one.body for one in cassieq_memory.queue("dead").get()]
    assert [] == cassieq_memory.verify().findings


def test_each_client_has_queues_of_its_own(cassieq_memory: MemoryClient) -> None:
    cassieq_memory.create_queue("orders")
    with memory_client() as other, pytest.raises(QueueNotFound):
        other.queue("orders")


def test_it_warns_outside_of_tests_and_only_there() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        memory_client().close()
    found = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=True
    )
    assert "['UserWarning'] True\n" == found.stdout


@pytest.mark.parametrize("variant", [Variant.V1_UNSAFE, Variant.V2_UNSAFE])
def test_bootstrap_refuses_a_variant_of_paxos_that_leaves_rounds_open(variant: Variant) -> None:
    with MemoryClient() as client:
        server_of(client).variant = variant
        with pytest.raises(SchemaMismatch, match="variant"):
            client.bootstrap()


def test_bootstrap_warns_of_v1(caplog: pytest.LogCaptureFixture) -> None:
    with MemoryClient() as client:
        server_of(client).variant = Variant.V1
        client.bootstrap()
        portal.run(schema.check(client._session))
    assert "paxos_variant_v1" in caplog.text
