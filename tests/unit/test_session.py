"""What a session makes of the answers to its requests, by a transport without a node."""

from __future__ import annotations

import asyncio
import signal
import struct
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Set
from datetime import UTC, datetime
from functools import partial
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from cassandra import OperationTimedOut

from cassieq_spark import client
from cassieq_spark.client import Client
from cassieq_spark.clock import SystemClock
from cassieq_spark.errors import (
    CasAmbiguous,
    ClientClosed,
    StoreError,
    StoreTimeout,
    StoreUnavailable,
)
from cassieq_spark.options import ConnectionOptions
from cassieq_spark.store import portal, schema, store
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
from cassieq_spark.testing import ManualClock, wait_until

OPTIONS = ConnectionOptions(
    contact_points=(("nowhere", 9042),), keyspace="k", datacenter="here", connect_timeout_s=1.0
)
NODE = Node(UUID(int=1), "10.0.0.1", "here", is_up=True)
LANE = UUID(int=7)
APPLIED = [(True,)]


def ctrl_c() -> None:
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)


def tasks_of(*names: str) -> set[str]:
    """The tasks under way in the engine's loop that carry out one of these coroutines."""

    async def look() -> set[str]:
        coroutines = [str(one.get_coro()) for one in asyncio.all_tasks()]
        return {one for one in coroutines if any(name in one for name in names)}

    return portal.run(look())


def has_ended(*names: str, others: Set[str] = frozenset()) -> None:
    """Wait for the tasks of these coroutines; others are those of sessions of other tests."""
    wait_until(lambda: not tasks_of(*names) - others, describe=f"no task of {names}")


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
        name = request.statement.name
        if request.statement is READ_NODE_TIME:
            now = datetime.fromtimestamp(self.clock.now_us() / 1e6, UTC).replace(tzinfo=None)
            if name in self.holds:
                if name not in self.held:
                    ctrl_c()
                self.held[name] = lambda: told(Page([SimpleNamespace(now=now)]))
            else:
                told(Page([SimpleNamespace(now=now)]))
            return
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


def test_a_cas_without_an_answer_is_ambiguous_if_its_client_is_closed_before_it_is_sent_again(
    session: CqlSession, node: Paging, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have been applied: who takes that for a refusal sends its change once more (G3)."""
    node.takes_s = 100.0

    async def close(_: float) -> None:
        session.is_closed = True

    monkeypatch.setattr(clock, "sleep", close)
    with pytest.raises(CasAmbiguous, match=r"not sent again: .*the client is closed"):
        portal.run(CasSender(session).answer(RESERVE, (LANE,), ()))
    assert {"reserve": 1} == dict(node.counts)


@pytest.mark.parametrize("error", [StoreTimeout("over"), StoreUnavailable("no node")])
def test_a_cas_that_our_own_error_kept_from_being_sent_is_not_sent_again(
    session: CqlSession, monkeypatch: pytest.MonkeyPatch, error: StoreError
) -> None:
    """Such an error is an OSError, as the driver's are, and does not leave the outcome open."""
    asked: list[Statement] = []

    async def run_once(statement: Statement, *_: Any, **__: Any) -> list[Any]:
        asked.append(statement)
        raise error

    monkeypatch.setattr(session, "run_once", run_once)
    with pytest.raises(type(error)) as raised:
        portal.run(CasSender(session).answer(RESERVE, (LANE,), ()))
    assert error is raised.value
    assert [RESERVE] == asked


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


def test_a_connect_that_a_ctrl_c_ends_leaves_a_closed_session_and_no_task(
    node: Paging, clock: ManualClock
) -> None:
    node.holds = ("read_node_time",)
    others = tasks_of("keep_time")
    session = CqlSession.__new__(CqlSession)
    with pytest.raises(KeyboardInterrupt):
        session.__init__(OPTIONS, transport=node, clock=clock)  # type: ignore[misc]  # to have it

    with pytest.raises(ClientClosed):
        session.check_open()
    portal.portal().loop.call_soon_threadsafe(node.held["read_node_time"])
    has_ended("CqlSession._begin")
    assert set() == tasks_of("keep_time") - others


def test_a_close_that_a_ctrl_c_ends_before_it_begins_leaves_no_task(
    node: Paging, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = tasks_of("keep_time")
    session = CqlSession(OPTIONS, transport=node, clock=clock)
    assert 1 == len(tasks_of("keep_time") - others)

    def interrupted(work: Any) -> None:
        work.close()
        raise KeyboardInterrupt

    with monkeypatch.context() as block:
        block.setattr(portal, "run", interrupted)
        with pytest.raises(KeyboardInterrupt):
            session.close()

    assert session.is_closed
    has_ended("keep_time", others=others)
    session.close()


def test_a_client_whose_close_a_ctrl_c_ends_early_is_closed(
    node: Paging, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise it would hold its connections, and warn that it was never closed."""
    monkeypatch.setattr(client, "CqlSession", partial(CqlSession, transport=node, clock=clock))
    opened = Client(OPTIONS)

    async def drain() -> None:
        ctrl_c()
        await asyncio.sleep(60)

    monkeypatch.setattr(opened, "_drain", drain)
    with pytest.raises(KeyboardInterrupt):
        opened.close()
    with pytest.raises(ClientClosed):
        opened.check()


def test_a_store_whose_check_a_ctrl_c_ends_is_closed(
    node: Paging, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[CqlSession] = []

    async def check(session: CqlSession) -> None:
        made.append(session)
        ctrl_c()
        await asyncio.sleep(60)

    monkeypatch.setattr(store, "CqlSession", partial(CqlSession, transport=node, clock=clock))
    monkeypatch.setattr(schema, "check", check)
    with pytest.raises(KeyboardInterrupt), store.opened(OPTIONS):
        pass
    assert [True] == [one.is_closed for one in made]
