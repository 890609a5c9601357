"""`connect` on a real node: to whom, to whom not, and what is left of a client."""

from __future__ import annotations

import asyncio
import gc
from typing import TYPE_CHECKING, Any

import pytest

import cassieq_spark as cassieq
from cassieq_spark.errors import (
    CassieqError,
    StoreUnavailable,
    UsageError,
)
from tests.fixtures.cassandra import KEYSPACE

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from cassieq_spark.testing import EmbeddedCassandra


def test_a_closed_client_says_so_in_an_error_of_ours(cassandra: EmbeddedCassandra) -> None:
    closed = cassieq.connect(cassandra.contact_points, keyspace=KEYSPACE)
    closed.close()
    closed.close()
    with pytest.raises(CassieqError):
        closed.queues()


def test_a_client_that_nobody_can_close_any_more_warns_of_it(
    cassandra: EmbeddedCassandra,
) -> None:
    lost: list[Any] = []  # so that the connections close in the end

    async def lose() -> None:
        lost.append(cassieq.connect(cassandra.contact_points, keyspace=KEYSPACE)._session)

    async def lose_one() -> None:
        own = cassieq.connect_async(cassandra.contact_points, keyspace=KEYSPACE)
        await own.__aenter__()
        lost.append(own._sync._session)

    text = f"unclosed Client\\('{cassandra.contact_points}', keyspace='{KEYSPACE}'\\)"

    def collect_after(way: Callable[[], Coroutine[Any, Any, None]]) -> None:
        asyncio.run(way())
        gc.collect()

    for way in (lose, lose_one):
        with pytest.warns(ResourceWarning, match=text):
            collect_after(way)
    for session in lost:
        session.close()


def test_a_client_its_queues_and_their_consumers_show_what_they_are_of(
    client: cassieq.Client, queue_name: str, cassandra: EmbeddedCassandra
) -> None:
    where = f"'{cassandra.contact_points}', keyspace='{client.keyspace}'"
    assert f"Client({where})" == repr(client)
    queue = client.create_queue(queue_name)
    assert [f"Queue({queue_name!r})", f"Consumer({queue_name!r})"] == [
        repr(queue),
        repr(queue.consumer()),
    ]

    async def shown() -> list[str]:
        async with cassieq.connect_async(cassandra.contact_points, keyspace=client.keyspace) as own:
            its = await own.queue(queue_name)
            return [repr(own), repr(its), repr(its.consumer())]

    expected = [f"Async{one}" for one in (repr(client), repr(queue), repr(queue.consumer()))]
    assert expected == asyncio.run(shown())


def test_nobody_at_the_address_ends_in_bounded_time_and_names_it() -> None:
    with pytest.raises(StoreUnavailable, match=r"no Cassandra answers at 127\.0\.0\.1:1 "):
        cassieq.connect("127.0.0.1:1", connect_timeout=2)


def test_a_data_centre_that_is_not_there_is_named(cassandra: EmbeddedCassandra) -> None:
    with pytest.raises(UsageError, match=r"no data centre 'dc9'; it has 'datacenter1'"):
        cassieq.connect(cassandra.contact_points, datacenter="dc9")


def test_what_is_not_given_comes_from_the_environment(
    cassandra: EmbeddedCassandra, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CASSIEQ_KEYSPACE", KEYSPACE)
    monkeypatch.setenv("CASSIEQ_DATACENTER", "dc9")
    arguments: dict[str, Any] = {"datacenter": cassandra.datacenter}
    with cassieq.connect(cassandra.contact_points, **arguments) as client:
        assert KEYSPACE == client._session.keyspace
