"""The gate: keys are read aside and together, and nobody waits for another's key."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest
from starlette.requests import Request

import cassieq_spark as cassieq
from cassieq_spark.errors import AccessDenied, AuthenticationFailed
from cassieq_spark.model.rights import Grant, Right
from cassieq_spark.server.backend import Backend
from cassieq_spark.server.principal import LOCAL, Gate
from cassieq_spark.testing.faults import FaultyStore
from tests.fixtures.accounts import pair, signed

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from cassieq_spark.testing import EmbeddedCassandra
    from tests.fixtures.accounts import Account

READ = "find_account_key"
URL = "http://gateway.test"


@pytest.fixture
def faults() -> FaultyStore:
    return FaultyStore()


@pytest.fixture
def running(
    cassandra: EmbeddedCassandra,
    client: cassieq.Client,
    account: Account,
    faults: FaultyStore,
) -> Callable[[Callable[[Gate], Awaitable[None]]], None]:
    """``running(work)``: run something on a gate with a client of its own."""

    def open_client() -> cassieq.Client:
        own = cassieq.connect(cassandra.contact_points, keyspace=client.keyspace)
        own._session.interceptor = faults
        return own

    def run(work: Callable[[Gate], Awaitable[None]]) -> None:
        async def on_a_loop() -> None:
            backend = Backend(open_client, threads=2)
            await backend.connect()
            gate = Gate(backend, account.master_key)
            try:
                await work(gate)
            finally:
                gate.close()
                backend.close()

        asyncio.run(on_a_loop())

    return run


def request_of(key: tuple[str, str], body: str = "ListQueues") -> Request:
    made = signed(key, URL, [("Action", body)])
    headers = [("host", urlsplit(URL).netloc), *made.headers.items()]
    scope: dict[str, Any] = {
        "type": "http",
        "method": "POST",
        "path": "/",
        "raw_path": b"/",
        "query_string": b"",
        "headers": [(str(k).lower().encode(), str(v).encode()) for k, v in headers],
    }

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": made.body, "more_body": False}

    return Request(scope, receive)


def test_many_requests_of_one_key_read_it_once(
    running: Callable[..., None], account: Account, faults: FaultyStore
) -> None:
    async def work(gate: Gate) -> None:
        who = await asyncio.gather(
            *(gate.authenticate(request_of(account.key)) for _ in range(500))
        )
        assert {account.name} == {one.account for one in who}
        assert {"read_account_key": 0, READ: 1} == {
            name: faults._seen[name] for name in ("read_account_key", READ)
        }

    running(work)


def test_a_key_that_is_slow_to_read_keeps_nobody_else_waiting(
    running: Callable[..., None], account: Account, faults: FaultyStore
) -> None:
    slow, go_on = account.new_key(*account.first.grants), threading.Event()

    async def work(gate: Gate) -> None:
        await gate.authenticate(request_of(account.key))
        faults.before(READ, lambda: go_on.wait(60))
        waits = asyncio.ensure_future(gate.authenticate(request_of(pair(slow))))
        leaves = asyncio.ensure_future(gate.authenticate(request_of(pair(slow))))
        for _ in range(20):
            await gate.authenticate(request_of(account.key))
        leaves.cancel()
        assert not waits.done()
        go_on.set()
        assert slow.key_id == (await waits).key_id

    running(work)


def test_a_caller_is_confirmed_as_long_as_its_key_may(
    running: Callable[..., None], account: Account
) -> None:
    read = Grant(rights=frozenset({Right.READ}), patterns=("orders",))
    made = account.new_key(read)

    async def work(gate: Gate) -> None:
        who = await gate.authenticate(request_of(pair(made)))
        await gate.confirm(who, Right.READ, who.full_name("orders"))
        with pytest.raises(AccessDenied, match="'put'"):
            await gate.confirm(who, Right.PUT, who.full_name("orders"))
        # As if ten seconds had passed.
        assert gate._authenticator is not None
        gate._authenticator._keys._known.clear()
        account.admin.delete_key(account.name, made.key_id)
        with pytest.raises(AuthenticationFailed, match="while the request waited"):
            await gate.confirm(who, Right.READ, who.full_name("orders"))

    running(work)


def test_without_a_master_key_everybody_is_local_and_no_body_is_read(
    client: cassieq.Client,
) -> None:
    async def work() -> None:
        gate = Gate(Backend(lambda: client, threads=1), None)
        assert LOCAL is await gate.authenticate(Request({"type": "http", "headers": []}))
        await gate.confirm(LOCAL, Right.READ, "orders")
        gate.close()

    asyncio.run(work())
