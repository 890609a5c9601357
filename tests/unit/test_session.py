"""What a session makes of the answers to its requests, by a transport without a node."""

from __future__ import annotations

import asyncio
import struct
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from cassandra import OperationTimedOut

from cassieq_spark.clock import SystemClock
from cassieq_spark.errors import StoreTimeout
from cassieq_spark.options import ConnectionOptions
from cassieq_spark.store import portal
from cassieq_spark.store.cas import CasSender
from cassieq_spark.store.driver import DriverTransport
from cassieq_spark.store.session import CqlSession
from cassieq_spark.store.statements import (
    DELETE_MONOTON,
    LIST_BUCKETS,
    READ_NODE_TIME,
    READ_POINTERS,
    RESERVE,
    Statement,
)
from cassieq_spark.store.transport import Node, Page, Request, Told
from cassieq_spark.testing import ManualClock

OPTIONS = ConnectionOptions(
    contact_points=(("nowhere", 9042),), keyspace="k", datacenter="here", connect_timeout_s=1.0
)
NODE = Node(UUID(int=1), "10.0.0.1", "here", is_up=True)
LANE = UUID(int=7)
APPLIED = [(True,)]


class Paging:
    """A `Transport` to one node; each page takes a time, by a clock that goes on by itself, too."""

    datacenter = "here"
    is_connected = True

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.takes_s = 0.0
        self.pages = 1
        self.rows: list[Any] = []
        self.timeouts_s: list[float] = []
        self.held: dict[str, Callable[[], object]] = {}
        self.holds: tuple[str, ...] = ()
        self.counts: Counter[str] = Counter()
        self.failures: Mapping[Any, BaseException] = {}

    def is_ready(self, _: Statement) -> bool:
        return True

    async def prepare(self, _: Statement, timeout_s: float) -> None:
        del timeout_s

    def nodes(self) -> list[Node]:
        return [NODE]

    async def define(self, ddl: str, timeout_s: float) -> None:
        raise NotImplementedError

    def close(self) -> None:
        """Nothing is open."""

    def send(self, request: Request, told: Told) -> None:
        if request.statement is READ_NODE_TIME:
            now = datetime.fromtimestamp(self.clock.now_us() / 1e6, UTC).replace(tzinfo=None)
            told(Page([SimpleNamespace(now=now)]))
            return
        name = request.statement.name
        self.counts[name] += 1
        self.timeouts_s.append(request.timeout_s)
        self.clock.advance(min(self.takes_s, request.timeout_s))
        number = int(request.page or b"1")
        following = None if number >= self.pages else b"%d" % (number + 1)
        answer: Page | BaseException = Page(self.rows, following)
        if request.timeout_s < self.takes_s:
            answer = OperationTimedOut("it takes longer")
        if name in self.holds:
            self.held[name] = lambda: told(answer)
        else:
            told(answer)


class Undecoded(DriverTransport):
    """The driver's, around a session of the driver that does as the test says."""

    def __init__(self, clock: ManualClock, driver: Any) -> None:
        self._inner = Paging(clock)
        self.session = driver
        self.datacenter = "here"
        self.counts = Counter()
        self.failures = {}
        self._ready = dict.fromkeys(["read_pointers"])  # type: ignore[arg-type]

    def nodes(self) -> list[Node]:
        return [NODE]

    async def prepare(self, statement: Statement, timeout_s: float) -> None:
        del statement, timeout_s

    def send(self, request: Request, told: Told) -> None:
        if request.statement is READ_NODE_TIME:
            self._inner.send(request, told)
        else:
            super().send(request, told)

    def close(self) -> None:
        """Nothing is open."""


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(SystemClock())


@pytest.fixture
def node(clock: ManualClock) -> Paging:
    return Paging(clock)


@pytest.fixture
def session(node: Paging, clock: ManualClock) -> Iterator[CqlSession]:
    with CqlSession(OPTIONS, transport=node, clock=clock) as made:
        yield made


def test_all_pages_of_a_read_have_one_limit_together(session: CqlSession, node: Paging) -> None:
    """`within` promises when a block ends, however many pages its reads have."""
    node.pages, node.takes_s = 9, 1.0
    with session.within(2.5), pytest.raises(StoreTimeout):
        portal.run(session.run(READ_POINTERS, (LANE,)))
    assert [2.5, 1.5, 0.5] == pytest.approx(node.timeouts_s, abs=0.3)


def test_the_pages_of_a_key_end_with_the_time_of_a_statement(
    session: CqlSession, node: Paging
) -> None:
    node.pages, node.takes_s = 1_000, 1.0
    with pytest.raises(StoreTimeout):
        portal.run(session.run(READ_POINTERS, (LANE,)))
    assert 19 <= len(node.timeouts_s) <= 22
    assert 6.0 == max(node.timeouts_s)


def test_a_scan_takes_as_long_as_its_table(session: CqlSession, node: Paging) -> None:
    node.pages, node.takes_s, node.rows = 100, 1.0, ["row"]
    assert ["row"] * 100 == portal.run(session.run(LIST_BUCKETS))
    assert {6.0} == set(node.timeouts_s)


def test_a_client_has_one_cas_at_a_time_on_a_row_whatever_it_does(
    session: CqlSession, node: Paging
) -> None:
    """A tag stands for one CAS of a client: the next one on the row replaces it (G2)."""
    sender = CasSender(session)
    node.rows, node.holds = APPLIED, ("reserve", "delete_monoton")

    async def both() -> None:
        one = asyncio.ensure_future(sender.answer(RESERVE, (LANE,), ()))
        other = asyncio.ensure_future(sender.delete(DELETE_MONOTON, (LANE,)))
        for _ in range(100):
            await asyncio.sleep(0)
        assert ["reserve"] == list(node.held)
        node.held["reserve"]()
        assert await one
        while "delete_monoton" not in node.held:
            await asyncio.sleep(0)
        node.held["delete_monoton"]()
        assert await other

    portal.run(both())


def test_an_answer_that_the_driver_cannot_decode_is_asked_for_again(clock: ManualClock) -> None:
    """It says nothing of what was sent."""
    answers: list[Any] = [struct.error("unpack requires a buffer of 8 bytes"), ["row"]]

    class Response:
        _paging_state = None

        def add_callbacks(self, note: Callable[[Any], None], fail: Callable[[Any], None]) -> None:
            answer = answers.pop(0)
            (fail if isinstance(answer, Exception) else note)(answer)

        def clear_callbacks(self) -> None:
            """Forget who is told."""

    driver = SimpleNamespace(execute_async=lambda *_, **__: Response())
    with CqlSession(OPTIONS, transport=Undecoded(clock, driver), clock=clock) as session:
        assert ["row"] == portal.run(session.run(READ_POINTERS, (LANE,)))
    assert [] == answers
