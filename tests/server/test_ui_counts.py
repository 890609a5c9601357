"""The list of queues: a hundred visitors cost the store what one does."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from math import inf
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.routing import Mount

import cassieq_spark as cassieq
from cassieq_spark import metrics
from cassieq_spark.entropy import new_uuid
from cassieq_spark.errors import StoreUnavailable
from cassieq_spark.server.beside import Rates, RepairLog
from cassieq_spark.server.guards import UI as PREFIX
from cassieq_spark.server.principal import Gate
from cassieq_spark.server.ui import counts as counted
from cassieq_spark.server.ui.door import UiDoor
from cassieq_spark.store.call import acting
from tests.fixtures.backends import connected, unconnected

QUEUES = 3


@pytest.fixture
def prefix(client: cassieq.Client) -> Iterator[str]:
    """Of a few queues, with a message each."""
    found = f"counted-{new_uuid().hex[:12]}-"
    made = [client.create_queue(f"{found}{at}", linger=0) for at in range(QUEUES)]
    for queue in made:
        queue.put(b"one")
    yield found
    for one in client.queues():
        if one.name.startswith(found):
            client.delete_queue(one.name)


def looking(client: cassieq.Client, work: Callable[[httpx.AsyncClient], Awaitable[Any]]) -> Any:
    """Visit a page in this process, where the statements of the client are counted."""

    async def run() -> Any:
        async with connected(client) as backend:
            page = UiDoor(backend, Gate(backend, None), RepairLog(None), Rates())
            transport = httpx.ASGITransport(Starlette(routes=[Mount(PREFIX, page)]))
            async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
                return await work(http)

    return asyncio.run(run())


def statements() -> int:
    return sum(metrics.STATEMENTS.values.values())


def visible(shown: httpx.Response, queue: str) -> str | None:
    """The number of visible messages that the list shows."""
    assert 200 == shown.status_code, shown.text
    _, _, after = shown.text.partition(f">{queue}</a>")
    _, _, cell = after.partition('data-label="Visible">')
    return cell.partition("<")[0] if cell else None


def test_a_hundred_visits_cost_the_store_what_one_does(
    client: cassieq.Client, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counted, "REMEMBERED_S", inf)  # however long they take

    async def work(http: httpx.AsyncClient) -> tuple[int, int]:
        before = statements()
        first = await http.get(f"/ui/?prefix={prefix}")
        one = statements() - before
        assert "1" == visible(first, f"{prefix}0")
        for _ in range(50):
            await http.get(f"/ui/?prefix={prefix}")
        await asyncio.gather(*(http.get(f"/ui/?prefix={prefix}") for _ in range(50)))
        return one, statements() - before

    one, all_of_them = looking(client, work)

    assert one > QUEUES
    assert one == all_of_them


def test_visitors_who_come_together_share_what_is_counted(
    client: cassieq.Client, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counted, "REMEMBERED_S", inf)

    async def work(http: httpx.AsyncClient) -> tuple[int, int]:
        before = statements()
        await asyncio.gather(*(http.get(f"/ui/?prefix={prefix}") for _ in range(20)))
        return statements() - before

    alone, together = (
        looking(client, lambda http: counted_alone(http, prefix)),
        looking(client, work),
    )

    assert together <= alone


async def counted_alone(http: httpx.AsyncClient, prefix: str) -> int:
    before = statements()
    await http.get(f"/ui/?prefix={prefix}")
    return statements() - before


def test_the_figures_are_counted_again_when_they_are_old(
    client: cassieq.Client, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = f"{prefix}1"

    async def work(http: httpx.AsyncClient) -> list[str | None]:
        found = [visible(await http.get(f"/ui/?prefix={prefix}"), queue)]
        await asyncio.to_thread(client.queue(queue).put, b"two")
        found.append(visible(await http.get(f"/ui/?prefix={prefix}"), queue))
        monkeypatch.setattr(counted, "REMEMBERED_S", -1.0)
        return [*found, visible(await http.get(f"/ui/?prefix={prefix}"), queue)]

    assert ["1", "1", "2"] == looking(client, work)


def test_a_visitor_who_deletes_a_queue_does_not_see_it_any_more(
    client: cassieq.Client, prefix: str
) -> None:
    queue = f"{prefix}2"

    async def work(http: httpx.AsyncClient) -> list[str | None]:
        found = [visible(await http.get(f"/ui/?prefix={prefix}"), queue)]
        asked = await http.get(f"/ui/queues/{queue}/delete")
        mark = asked.text.partition('name="csrf" value="')[2][:64]
        done = await http.post(f"/ui/queues/{queue}/delete", data={"csrf": mark, "name": queue})
        assert (303, "/ui/") == (done.status_code, done.headers["location"]), done.text
        return [*found, visible(await http.get(f"/ui/?prefix={prefix}"), queue)]

    assert ["1", None] == looking(client, work)


def test_a_failure_is_not_remembered(client: cassieq.Client, prefix: str) -> None:
    async def run() -> tuple[str, list[str]]:
        backend = unconnected(client)
        counts = counted.Counts(backend)
        principal = await Gate(backend, None).by_token("", Request({"type": "http", "headers": []}))
        try:
            with pytest.raises(StoreUnavailable) as refused:
                await counts.names(principal, prefix)
            await backend.connect()
            return refused.value.code, await counts.names(principal, prefix)
        finally:
            await backend.close()

    assert ("store_unavailable", [f"{prefix}{at}" for at in range(QUEUES)]) == asyncio.run(run())


def test_an_account_whose_queues_are_slow_to_count_keeps_no_other_waiting(
    client: cassieq.Client, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> tuple[counted.Counted | None, int]:
        backend = unconnected(client, calls=8)
        await backend.connect()
        counts, go_on, begun = counted.Counts(backend), asyncio.Event(), list[str]()
        on_queue = backend.on_queue

        async def slow(name: str, work: Any) -> Any:
            if name != f"{prefix}0":
                begun.append(name)
                await go_on.wait()
            return await on_queue(name, work)

        monkeypatch.setattr(backend, "on_queue", slow)

        async def ask(account: str, queue: str) -> counted.Counted | None:
            acting.set(account)
            return await counts.of(queue)

        greedy = [asyncio.create_task(ask("a", f"{prefix}{at}")) for at in range(1, 9)]
        try:
            async with asyncio.timeout(30):
                found = await asyncio.create_task(ask("b", f"{prefix}0"))
            return found, len(begun)
        finally:
            go_on.set()
            await asyncio.gather(*greedy)
            await backend.close()

    found, begun = asyncio.run(run())
    assert found is not None
    assert found.stats is not None
    assert (1, counted.AT_ONCE // 2) == (found.stats.visible, begun)
