"""The port for metrics: whoever comes is answered, whatever the others on it do."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, closing
from urllib.parse import urlsplit

import pytest
from prometheus_client import CollectorRegistry, Metric
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from cassieq_spark.exporter.listen import CONNECTIONS, listening, metrics
from cassieq_spark.testing import wait_until
from tests.fixtures.small_gateway import LARGE, until_closed

SCRAPE = b"GET /metrics HTTP/1.0\r\n\r\n"


class Slow(Collector):
    """Makes an answer when it is told to."""

    def __init__(self) -> None:
        self.go_on = threading.Event()
        self.begun = 0
        self.text = "made at last"

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterable[Metric]:
        self.begun += 1
        assert self.go_on.wait(60)
        yield GaugeMetricFamily("slow", self.text, value=1)


@pytest.fixture
def slow() -> Slow:
    return Slow()


@pytest.fixture
def port(slow: Slow) -> Iterator[int]:
    registry = CollectorRegistry()
    registry.register(slow)
    with listening(metrics(registry), "127.0.0.1", 0, ["Queues.example.com"]) as url:
        yield urlsplit(url).port or 0
        slow.go_on.set()


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=30)


def test_a_scrape_waits_for_answers_that_are_being_made_and_is_answered(
    slow: Slow, port: int
) -> None:
    with ExitStack() as stack:
        for at in range(CONNECTIONS):
            stack.enter_context(closing(connect(port))).sendall(SCRAPE)
            wait_until(lambda at=at: slow.begun == at + 1)  # type: ignore[misc]
        scrape = stack.enter_context(closing(connect(port)))
        scrape.sendall(SCRAPE)
        scrape.settimeout(1.5)
        with pytest.raises(TimeoutError):
            scrape.recv(1)

        slow.go_on.set()

        scrape.settimeout(30)
        assert until_closed(scrape).startswith(b"HTTP/1.0 200")


def test_a_scrape_that_takes_long_keeps_nobody_waiting_while_others_only_hold_connections(
    slow: Slow, port: int
) -> None:
    with ExitStack() as stack:
        stack.enter_context(closing(connect(port))).sendall(SCRAPE)
        wait_until(lambda: slow.begun == 1)
        for _ in range(CONNECTIONS - 1):
            stack.enter_context(closing(connect(port)))
        for at in range(3):
            stack.enter_context(closing(connect(port))).sendall(SCRAPE)
            wait_until(lambda at=at: slow.begun == at + 2)  # type: ignore[misc]


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost:9464", 200),
        ("127.0.0.1:9464", 200),
        ("10.1.2.3", 200),
        ("[::1]:9464", 200),
        ("queues.example.com:9464", 200),
        ("QUEUES.EXAMPLE.COM", 200),
        (None, 200),
        ("evil.example", 403),
        ("evil.example:9464", 403),
        ("localhost.evil.example", 403),
        ("127.0.0.1, evil.example", 403),
        ("127.0.0.1\r\nHost: evil.example", 403),
        ("[::1", 403),
    ],
)
def test_a_page_of_another_site_cannot_read_metrics_by_a_name_of_its_own(
    slow: Slow, port: int, host: str | None, status: int
) -> None:
    slow.go_on.set()
    with closing(connect(port)) as scrape:
        line = "" if host is None else f"Host: {host}\r\n"
        scrape.sendall(f"GET /metrics HTTP/1.0\r\n{line}\r\n".encode())
        answer = until_closed(scrape)
    assert answer.startswith(f"HTTP/1.0 {status} ".encode())
    assert (status == 200) == (b"made at last" in answer)
    assert (status == 403) == (b"--host-name" in answer)


def test_answers_that_nobody_reads_make_room_once_they_are_made(slow: Slow, port: int) -> None:
    slow.text = "x" * LARGE
    with ExitStack() as stack:
        for at in range(CONNECTIONS):
            unread = stack.enter_context(closing(socket.socket()))
            unread.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
            unread.connect(("127.0.0.1", port))
            unread.sendall(SCRAPE)
            wait_until(lambda at=at: slow.begun == at + 1)  # type: ignore[misc]
        scrape = stack.enter_context(closing(connect(port)))
        scrape.sendall(SCRAPE)
        scrape.settimeout(1.5)
        with pytest.raises(TimeoutError):
            scrape.recv(1)  # it waits by now

        slow.go_on.set()

        scrape.settimeout(30)
        assert until_closed(scrape).startswith(b"HTTP/1.0 200")
