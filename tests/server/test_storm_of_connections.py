"""A storm of connections from one address: others are let in at their turn."""

from __future__ import annotations

import asyncio
import errno
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from typing import Any

import pytest

from cassieq_spark.server.connection import Connection, Wire
from cassieq_spark.server.entrance import ACCEPTED, AGAIN_S, LET_IN, TOLD
from cassieq_spark.server.settings import GatewaySettings
from cassieq_spark.testing import wait_until
from tests.fixtures.small_gateway import SmallGateway, one_answer, small_gateway

HELLO = b"GET /hello HTTP/1.1\r\nHost: x\r\n\r\n"
GREEDY = "127.0.0.2"
OTHER = "127.0.0.3"
RESET = struct.pack("ii", 1, 0)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The addresses of connections, in the order in which they were made."""
    found: list[str] = []
    make = Connection.connection_made

    def making(self: Connection, transport: Any) -> None:
        found.append((transport.get_extra_info("peername") or ("gone",))[0])
        make(self, transport)

    monkeypatch.setattr(Connection, "connection_made", making)
    return found


@contextmanager
def held(gateway: SmallGateway, made: list[str]) -> Iterator[list[int]]:
    """The event loop does nothing meanwhile; yields how many were made by each turn after that."""
    with closing(gateway.connect()) as one:
        one.sendall(HELLO)
        one_answer(one)
        (connection,) = gateway.server.server_state.connections
        loop: asyncio.AbstractEventLoop = connection.loop
    gateway.wait_until_alone()
    made.clear()
    turns: list[int] = []
    is_held, go_on = threading.Event(), threading.Event()

    def hold() -> None:
        is_held.set()
        go_on.wait(60)
        count()

    def count() -> None:
        turns.append(len(made))
        if not gateway.server.should_exit:
            loop.call_soon(count)

    loop.call_soon_threadsafe(hold)
    assert is_held.wait(30)
    try:
        yield turns
    finally:
        go_on.set()


def test_connections_are_made_by_address_in_turn(made: list[str]) -> None:
    """Else whoever comes last waits until all before it are made, a third of a millisecond each."""
    with small_gateway(GatewaySettings(port=0)) as gateway, ExitStack() as stack:
        with held(gateway, made):
            for _ in range(2 * ACCEPTED):
                stack.enter_context(closing(gateway.connect(source=GREEDY)))
            other = stack.enter_context(closing(gateway.connect(source=OTHER)))
            other.sendall(HELLO)
        assert one_answer(other).endswith(b"hello")

        assert made.index(OTHER) <= 4 * LET_IN
        wait_until(lambda: made.count(GREEDY) == 2 * ACCEPTED)


def test_connections_above_a_share_cost_others_no_turn_and_are_not_made(made: list[str]) -> None:
    settings = GatewaySettings(port=0, max_connections=10)
    with small_gateway(settings) as gateway, ExitStack() as stack:
        with held(gateway, made) as turns:
            for _ in range(ACCEPTED):
                stack.enter_context(closing(gateway.connect(source=GREEDY)))
            other = stack.enter_context(closing(gateway.connect(source=OTHER)))
            other.sendall(HELLO)
        assert one_answer(other).endswith(b"hello")

        assert sum(count <= made.index(OTHER) for count in turns) < 10
        # A share, and as many as one address may have that are told that there are too many.
        assert 5 < made.count(GREEDY) <= 5 + TOLD // 2


def test_a_gateway_whose_system_has_no_file_takes_who_waits_when_there_is_one(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody is refused meanwhile, and the loop does not spin: the system keeps who waits."""
    accept, times = socket.socket.accept, 0
    has_files = threading.Event()

    def accepting(self: socket.socket) -> Any:
        nonlocal times
        times += 1
        if not has_files.is_set():
            raise OSError(errno.EMFILE, "Too many open files")
        return accept(self)

    with small_gateway(GatewaySettings(port=0)) as gateway:
        monkeypatch.setattr(socket.socket, "accept", accepting)
        began_s = time.monotonic()
        with closing(gateway.connect()) as client:
            client.sendall(HELLO)
            wait_until(lambda: times >= 2)
            assert times <= 1 + (time.monotonic() - began_s) / AGAIN_S
            assert "cannot accept" in caplog.text
            has_files.set()
            assert one_answer(client).endswith(b"hello")


def test_a_client_that_goes_while_it_is_refused_leaves_no_error(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    end = Wire.end
    ended = threading.Event()
    with small_gateway(GatewaySettings(port=0)) as gateway, closing(gateway.connect()) as client:

        def ending(self: Wire, *, keeps_reading: bool) -> None:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            client.close()
            end(self, keeps_reading=keeps_reading)
            ended.set()

        monkeypatch.setattr(Wire, "end", ending)
        client.sendall(b"no request\r\n\r\n")
        assert ended.wait(30)
        gateway.wait_until_alone()
    assert [] == [one.getMessage() for one in caplog.records if one.name == "asyncio"]
