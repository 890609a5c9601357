"""The running gateway: its connections end, its memory has a bound, and its files suffice."""

from __future__ import annotations

import re
import resource
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from urllib.parse import urlsplit

import pytest

import cassieq_spark as cassieq
from cassieq_spark.testing import EmbeddedCassandra, wait_until
from tests.fixtures.commands import CommandLine
from tests.fixtures.small_gateway import one_answer, until_closed
from tests.server.conftest import Gateway, running

MIB = 1_048_576
ALIVE = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
API = b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n"
POST = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n"


@pytest.fixture(scope="module")
def brief(
    cassandra: EmbeddedCassandra,
    client: cassieq.Client,  # noqa: ARG001 - it has made the tables
) -> Iterator[Gateway]:
    """A gateway with short deadlines and a port for metrics."""
    flags = ("--request-timeout", "0.5", "--keep-alive", "0.5", "--metrics-port", "0")
    with running(cassandra, *flags) as gateway:
        yield gateway


def connect(gateway: Gateway, *, source: str = "127.0.0.1", buffer: int = 0) -> socket.socket:
    address = urlsplit(gateway.url)
    connection = socket.socket()
    connection.settimeout(30)
    if buffer:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
    connection.bind((source, 0))
    connection.connect((address.hostname, address.port))
    return connection


def connections_of(gateway: Gateway, port: int) -> int:
    """How many established connections the process has at a port."""
    inodes = {
        str(one.readlink())[8:-1]
        for one in Path(f"/proc/{gateway.process.pid}/fd").iterdir()
        if one.is_symlink() and str(one.readlink()).startswith("socket:")
    }
    rows = [row.split() for row in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return sum(
        1
        for row in rows
        if row[9] in inodes and row[3] != "0A" and int(row[1].split(":")[1], 16) == port
    )


@pytest.mark.sample
def test_each_way_to_hold_a_connection_of_a_running_gateway_ends(brief: Gateway) -> None:
    port = urlsplit(brief.url).port or 0
    waits = {
        "nothing": b"",
        "half a request": b"GET /hea",
        "half a body": POST % 10 + b"abc",
        "no more": ALIVE,
        "an empty line": ALIVE + b"\r\n",
        "a line end": ALIVE + b"\n",
        "two empty lines": ALIVE + b"\r\n\r\n",
        "unread answers": 400 * API,
    }
    read: list[socket.socket] = []
    with ExitStack() as stack:
        for sent in waits.values():
            held = stack.enter_context(closing(connect(brief, buffer=4_096)))
            held.sendall(sent)
            if sent != waits["unread answers"]:
                read.append(held)
        for held in read:
            until_closed(held)
        wait_until(lambda: connections_of(brief, port) == 0)
    assert 200 == brief.status("/healthz")


def rss_mib(gateway: Gateway) -> float:
    status = Path(f"/proc/{gateway.process.pid}/status").read_text()
    found = re.search(r"VmRSS:\s+(\d+) kB", status)
    assert found is not None
    return int(found[1]) / 1024


def test_sixty_bodies_that_never_end_take_no_more_memory_than_allowed(
    start: Callable[..., Gateway],
) -> None:
    gateway = start("--no-repair", "--max-memory", str(32 * MIB))
    gateway.wait_until_ready()
    before = rss_mib(gateway)
    body = b"x" * (4 * MIB - 1)
    seen: list[bytes] = []

    def send(connection: socket.socket) -> None:
        try:
            connection.sendall(POST % (4 * MIB) + body)
            connection.settimeout(3)
            seen.append(connection.recv(65_536)[:12])
        except TimeoutError:
            seen.append(b"waits")
        except ConnectionError:
            seen.append(b"HTTP/1.1 503")  # the rest came later than it was taken

    with ExitStack() as stack:
        threads = [
            threading.Thread(target=send, args=(stack.enter_context(closing(connect(gateway))),))
            for _ in range(60)
        ]
        for one in threads:
            one.start()
        for one in threads:
            one.join()
        grown = rss_mib(gateway) - before
        assert {b"HTTP/1.1 503", b"waits"} == set(seen)
        assert 200 == gateway.status("/healthz")
        assert grown < 2 * 32 + 32


def test_it_raises_its_own_limit_of_files(start: Callable[..., Gateway]) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1_024, hard))
    try:
        gateway = start("--no-repair")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    limits = Path(f"/proc/{gateway.process.pid}/limits").read_text()
    assert re.search(r"Max open files\s+2320\s", limits), limits


def test_it_says_that_the_system_allows_too_few_files(cassandra: EmbeddedCassandra) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)

    ended = CommandLine(cassandra.contact_points)("serve", "--max-connections", str(hard))

    assert 1 <= ended.code <= 2
    said = " ".join(ended.err.split())
    assert f"--max-connections {hard:,} needs" in said
    assert f"or say --max-connections {hard - 320}" in said


def metrics_port(gateway: Gateway) -> int:
    (line,) = [one for one in gateway.said if "Metrics are at" in one]
    found = re.search(r":(\d+)/metrics", line)
    assert found is not None
    return int(found[1])


def test_the_port_for_metrics_answers_while_others_hold_it(brief: Gateway) -> None:
    port = metrics_port(brief)
    with ExitStack() as stack:
        for _ in range(50):
            stack.enter_context(closing(socket.create_connection(("127.0.0.1", port), timeout=30)))
        with closing(socket.create_connection(("127.0.0.1", port), timeout=30)) as scrape:
            scrape.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
            assert until_closed(scrape).startswith(b"HTTP/1.0 200")
        threads = len(list(Path(f"/proc/{brief.process.pid}/task").iterdir()))
        assert threads < 50 + 8
        assert connections_of(brief, port) <= 8 + 1


def test_a_poll_of_the_gateway_outlives_the_deadlines_of_others(brief: Gateway, name: str) -> None:
    url = brief.ask("POST", "/", f"Action=CreateQueue&QueueName={name}".encode())
    assert 200 == url[0]
    with closing(connect(brief)) as poll:
        form = f"Action=ReceiveMessage&WaitTimeSeconds=3&QueueUrl={brief.url}/000000000000/{name}"
        poll.sendall(POST % len(form) + form.encode())
        with closing(connect(brief)) as other:
            other.sendall(ALIVE)
            until_closed(other)

        assert one_answer(poll).startswith(b"HTTP/1.1 200")
