"""What an error says of the time that was waited: the real one, with all tries."""

from __future__ import annotations

import asyncio
import logging
import re
from typing import TYPE_CHECKING, Any

import pytest
from cassandra import OperationTimedOut

from cassieq_spark.errors import StoreTimeout
from cassieq_spark.store import portal
from cassieq_spark.store.statements import READ_QUEUE
from tests.fixtures.faults import Fault, FaultyStore
from tests.fixtures.transports import Around, driver_of

if TYPE_CHECKING:
    from collections.abc import Callable

    import cassieq_spark as cassieq
    from cassieq_spark.store.call import Sent
    from cassieq_spark.store.session import CqlSession
    from cassieq_spark.store.statements import Statement
    from cassieq_spark.store.transport import Request, Told

TRIES = re.compile(r"(?P<seconds>\d+\.\d) s, sent (?P<sent>\d+) times")


def test_an_outage_is_one_event_a_try_and_its_error_names_the_time_waited(
    client: cassieq.Client, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, logger="cassieq_spark.store")  # else one a second
    session = client._session
    store = FaultyStore()
    store.plan("read_queue", Fault.TIMEOUT_BEFORE, times=1_000)
    began_s = session.clock.monotonic()
    with store.on(session), session.within(1.5), pytest.raises(StoreTimeout) as caught:
        client.queue("orders")
    took_s = session.clock.monotonic() - began_s

    found = TRIES.search(str(caught.value))
    assert found is not None, caught.value
    assert 1.5 <= float(found["seconds"]) + 0.05 <= took_s + 0.1
    events = [one for one in caplog.records if vars(one).get("event") == "statement_retried"]
    assert int(found["sent"]) == len(events) + 1
    assert list(range(1, len(events) + 1)) == [vars(one)["fields"]["attempt"] for one in events]


class Noting(Around):
    """Notes how long each request may take."""

    interceptor: Slow

    def send(self, request: Request, told: Told) -> None:
        self.interceptor.timeouts_s.append(request.timeout_s)
        super().send(request, told)


class Slow:
    """Each sending takes a time, by a clock that stands still otherwise; the first one fails."""

    def __init__(
        self, session: CqlSession, monkeypatch: pytest.MonkeyPatch, takes_s: float
    ) -> None:
        self.now_s = 1_000.0
        self.timeouts_s: list[float] = []
        self._session = session
        self._takes_s = takes_s
        monkeypatch.setattr(session.clock, "monotonic", lambda: self.now_s)
        monkeypatch.setattr(session, "transport", Noting(driver_of(session), self))

    def begin(self) -> Sent:
        """Send a statement that may take two seconds."""

        async def sent() -> Sent:
            with self._session.within(each_s=2.0):
                one = self._session.start(READ_QUEUE, ("orders",))
            await asyncio.wait([one.answer])
            return one

        return portal.run(sent())

    def around(
        self, statement: Statement, params: tuple[Any, ...], proceed: Callable[[], Any]
    ) -> Any:
        del statement, params
        if len(self.timeouts_s) > 1:
            return proceed()
        self.now_s += self._takes_s
        raise OperationTimedOut("lost on the way")


def test_what_the_first_sending_took_is_part_of_the_limit(
    client: cassieq.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`within` promises that a statement takes no longer, however it is sent."""
    session = client._session
    slow = Slow(session, monkeypatch, 1.5)
    with session.within(each_s=2.0):
        portal.run(session.run(READ_QUEUE, ("orders",)))
    assert [2.0, 0.5] == slow.timeouts_s

    slow = Slow(session, monkeypatch, 1.5)
    portal.run(session.finish(slow.begin()))
    assert [2.0, 0.5] == slow.timeouts_s

    slow = Slow(session, monkeypatch, 2.0)
    sent = slow.begin()
    with pytest.raises(StoreTimeout, match=r"2\.0 s, sent once"):
        portal.run(session.finish(sent))
    assert [2.0] == slow.timeouts_s


def test_for_how_long_nobody_waited_is_no_part_of_the_limit(
    client: cassieq.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task writes chunks, and may compute for minutes before it asks what became of them."""
    session = client._session
    slow = Slow(session, monkeypatch, 1.5)
    sent = slow.begin()
    slow.now_s += 300
    portal.run(session.finish(sent))
    assert [2.0, 0.5] == slow.timeouts_s
