"""The gate: keys are read aside and together, and nobody waits for another's key."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import urlsplit

import pytest
from starlette.requests import Request

import cassieq_spark as cassieq
from cassieq_spark.errors import AccessDenied, AuthenticationFailed
from cassieq_spark.model.rights import Grant, Principal, Right
from cassieq_spark.server.backend import Backend
from cassieq_spark.server.principal import LOCAL, READS, Gate
from cassieq_spark.store import caller, portal
from cassieq_spark.store.call import acting
from cassieq_spark.testing import EmbeddedCassandra, wait_until
from tests.fixtures.accounts import Account, pair, signed
from tests.fixtures.faults import FaultyStore
from tests.fixtures.transports import intercept

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
        intercept(own._session, faults)
        return own

    def run(work: Callable[[Gate], Awaitable[None]]) -> None:
        async def on_a_loop() -> None:
            backend = Backend(open_client, calls=2)
            await backend.connect()
            gate = Gate(backend, account.master_key)
            try:
                await work(gate)
            finally:
                gate.close()
                await backend.close()

        asyncio.run(on_a_loop())

    return run


def request_of(
    key: tuple[str, str], body: str = "ListQueues", *, address: str = "192.0.2.1"
) -> Request:
    made = signed(key, URL, [("Action", body)])
    headers = [("host", urlsplit(URL).netloc), *made.headers.items()]
    scope: dict[str, Any] = {
        "type": "http",
        "method": "POST",
        "path": "/",
        "raw_path": b"/",
        "query_string": b"",
        "client": (address, 1),
        "headers": [(str(k).lower().encode(), str(v).encode()) for k, v in headers],
    }

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": made.body, "more_body": False}

    return Request(scope, receive)


def anything(_: Principal) -> None:
    """What may be asked by everybody."""


def test_many_requests_of_one_key_read_it_once(
    running: Callable[..., None], account: Account, faults: FaultyStore
) -> None:
    async def work(gate: Gate) -> None:
        who = await asyncio.gather(
            *(gate.authenticate(request_of(account.key), may=anything) for _ in range(500))
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
        await gate.authenticate(request_of(account.key), may=anything)
        faults.before(READ, lambda: go_on.wait(60))
        waits = asyncio.ensure_future(gate.authenticate(request_of(pair(slow)), may=anything))
        leaves = asyncio.ensure_future(gate.authenticate(request_of(pair(slow)), may=anything))
        for _ in range(20):
            await gate.authenticate(request_of(account.key), may=anything)
        leaves.cancel()
        assert not waits.done()
        go_on.set()
        assert slow.key_id == (await waits).key_id

    running(work)


def test_a_known_key_is_read_again_while_many_made_up_ones_are(
    running: Callable[..., None], account: Account, faults: FaultyStore
) -> None:
    go_on = threading.Event()

    async def work(gate: Gate) -> None:
        await gate.authenticate(request_of(account.key), may=anything)
        # As if ten seconds had passed.
        assert gate._authenticator is not None
        known = gate._authenticator._known
        known[account.key[0]] = (0.0, known[account.key[0]][1])
        for at in range(READS):
            faults.before(READ, lambda: go_on.wait(60), after=at)
        made_up = [
            asyncio.ensure_future(
                gate.authenticate(
                    request_of(("CQAK" + 16 * chr(65 + at), "s" * 40), address=f"192.0.2.{at}"),
                    may=anything,
                )
            )
            for at in range(3 * READS)
        ]
        while faults._seen[READ] < 1 + READS:
            await asyncio.sleep(0)
        try:
            await asyncio.wait_for(gate.authenticate(request_of(account.key), may=anything), 30)
            assert not any(one.done() for one in made_up)
        finally:
            go_on.set()
        for refused in await asyncio.gather(*made_up, return_exceptions=True):
            assert isinstance(refused, AuthenticationFailed)

    running(work)


def test_a_new_key_is_read_while_one_address_makes_keys_up(
    running: Callable[..., None], account: Account, faults: FaultyStore
) -> None:
    go_on = threading.Event()

    async def work(gate: Gate) -> None:
        for at in range(READS // 2):
            faults.before(READ, lambda: go_on.wait(60), after=at)
        made_up = [
            asyncio.ensure_future(
                gate.authenticate(
                    request_of(("CQAK" + f"{at:X}" * 16, "s" * 40), address=f"2001:db8::{at:x}"),
                    may=anything,
                )
            )
            for at in range(10, 16)
        ]
        # The same key, in the name of whoever has it.
        made_up.append(
            asyncio.ensure_future(
                gate.authenticate(
                    request_of((account.key[0], "s" * 40), address="2001:db8::1"), may=anything
                )
            )
        )
        while faults._seen[READ] < READS // 2:
            await asyncio.sleep(0)
        try:
            async with asyncio.timeout(30):
                who = await gate.authenticate(request_of(account.key), may=anything)
            assert account.name == who.account
            assert not any(one.done() for one in made_up)
        finally:
            go_on.set()
            for refused in await asyncio.gather(*made_up, return_exceptions=True):
                assert isinstance(refused, AuthenticationFailed)

    running(work)


def test_what_one_account_administers_keeps_neither_keys_nor_other_accounts_waiting(
    running: Callable[..., None], account: Account
) -> None:
    go_on, begun = threading.Event(), list[str]()

    async def slow(*_: object) -> None:
        begun.append("slow")
        await caller.in_a_thread(lambda: go_on.wait(60))

    async def work(gate: Gate) -> None:
        acting.set("greedy")
        greedy = [asyncio.ensure_future(gate.administer(slow)) for _ in range(3 * READS)]
        await asyncio.to_thread(wait_until, lambda: bool(begun))
        try:
            async with asyncio.timeout(30):
                who = await gate.authenticate(request_of(account.key), may=anything)
                assert account.name == acting.get() == who.account
                found = await gate.administer(lambda admin, _: admin.keys(account.name))
            assert account.key[0] in [one.key_id for one in found]
            assert ["slow"] == begun
        finally:
            go_on.set()
            await asyncio.gather(*greedy)

    running(work)


def test_the_body_of_a_made_up_key_is_not_read(
    running: Callable[..., None], account: Account
) -> None:
    async def work(gate: Gate) -> None:
        for key, is_read in ((("CQAK" + "A" * 16, "s" * 40), False), (account.key, True)):
            request, body = request_of(key), asyncio.Event()
            receive = request._receive

            async def noted(receive: Any = receive, body: asyncio.Event = body) -> Any:
                body.set()
                return await receive()

            asked = gate.authenticate(Request(request.scope, noted), may=anything)
            (found,) = await asyncio.gather(asked, return_exceptions=True)
            assert is_read == body.is_set() == isinstance(found, Principal)

    running(work)


def test_a_caller_is_confirmed_as_long_as_its_key_may(
    running: Callable[..., None], account: Account
) -> None:
    read = Grant(rights=frozenset({Right.READ}), patterns=("orders",))
    made = account.new_key(read)

    async def work(gate: Gate) -> None:
        who = await gate.authenticate(request_of(pair(made)), may=anything)
        await gate.confirm(who, Right.READ, who.full_name("orders"))
        with pytest.raises(AccessDenied, match="'put'"):
            await gate.confirm(who, Right.PUT, who.full_name("orders"))
        # As if ten seconds had passed.
        assert gate._authenticator is not None
        gate._authenticator._known.clear()
        await portal.asked(account.admin.delete_key(account.name, made.key_id))
        with pytest.raises(AuthenticationFailed, match="while the request waited"):
            await gate.confirm(who, Right.READ, who.full_name("orders"))

    running(work)


def test_without_a_master_key_everybody_is_local_and_no_body_is_read(
    client: cassieq.Client,
) -> None:
    async def work() -> None:
        gate = Gate(Backend(lambda: client, calls=1), None)
        assert LOCAL is await gate.authenticate(
            Request({"type": "http", "headers": []}), may=anything
        )
        await gate.confirm(LOCAL, Right.READ, "orders")
        gate.close()

    asyncio.run(work())
