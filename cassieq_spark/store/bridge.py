"""`Bridge` sends statements through the driver and brings its answers to an event loop."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter, deque
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from cassieq_spark import metrics
from cassieq_spark.store import driver
from cassieq_spark.store.caller import in_a_thread
from cassieq_spark.store.translate import DRIVER_ERRORS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from cassandra.cluster import Session
    from cassandra.query import PreparedStatement

    from cassieq_spark.clock import ClusterClock
    from cassieq_spark.store.sent import Interceptor
    from cassieq_spark.store.statements import Statement

T = TypeVar("T")

Answer = asyncio.Future["list[Any] | BaseException"]
"""The rows of all pages, or the driver's error: as a value, since not every answer is awaited."""


class Bridge:
    """Sends requests from an event loop, and wakes it once for all answers that came together.

    Attributes:
        counts: Statements sent, by name.
        interceptor: See `Interceptor`.
    """

    def __init__(
        self,
        session: Session,
        keyspace: str,
        *,
        request_s: Callable[[], float],
        check_open: Callable[[], None],
        clock: ClusterClock,
    ) -> None:
        """Prepare.

        Args:
            request_s: Returns the timeout of a request that begins now.
            check_open: Raises UsageError if nothing may be sent any more.
        """
        self._session = session
        self._keyspace = keyspace
        self._request_s = request_s
        self._check_open = check_open
        self._clock = clock
        self._prepared: dict[str, PreparedStatement] = {}
        self._preparing: dict[str, asyncio.Task[PreparedStatement]] = {}
        self._lock = threading.Lock()
        self._told: deque[tuple[Answer, list[Any] | BaseException]] = deque()
        self._is_woken = False
        self.counts: Counter[str] = Counter()
        self.interceptor: Interceptor | None = None

    def send(self, statement: Statement, rows: Sequence[tuple[Any, ...]]) -> Answer:
        """Send rows of one partition in one request; at once if the statement is prepared.

        Nobody cancels a statement that was sent: its outcome would be unknown.
        """
        prepared = self._prepared.get(statement.name)
        if prepared is None or self.interceptor is not None or self._clock.is_in_doubt:
            return asyncio.get_running_loop().create_task(self._sent_later(statement, rows))
        self._check_open()
        return self._sent(statement, prepared, rows)

    async def prepare(self, statement: Statement) -> PreparedStatement:
        """Prepare a statement in a thread, because the driver blocks; keep the result."""
        self._check_open()
        name = statement.name
        if (prepared := self._prepared.get(name)) is not None:
            return prepared
        if name not in self._preparing:
            prepare = partial(driver.prepare, self._session, statement, self._keyspace)
            self._preparing[name] = asyncio.get_running_loop().create_task(
                self._kept(name, prepare)
            )
        return await self._preparing[name]

    async def _kept(self, name: str, prepare: Callable[[], PreparedStatement]) -> PreparedStatement:
        try:
            prepared = self._prepared[name] = await in_a_thread(prepare)
        finally:
            del self._preparing[name]
        return prepared

    async def _sent_later(
        self, statement: Statement, rows: Sequence[tuple[Any, ...]]
    ) -> list[Any] | BaseException:
        """Send after what has to be done first; see `send`."""
        if self._clock.is_in_doubt:
            # The statement may be a claim, by the time after this (I2) [T13].
            await in_a_thread(self._clock.settle)
        try:
            prepared = await self.prepare(statement)
        except DRIVER_ERRORS as error:
            return error
        interceptor = self.interceptor
        if interceptor is None:
            return await self._sent(statement, prepared, rows)

        def proceed() -> list[Any]:
            self._count(statement, 1)
            answer = self._session.execute(prepared, rows[0], timeout=self._request_s())
            return list(answer)

        try:  # sent as a fault test wants it: in a thread, since tests may block
            return list(await in_a_thread(partial(interceptor.around, statement, rows[0], proceed)))
        except DRIVER_ERRORS as error:
            return error

    def _sent(
        self,
        statement: Statement,
        prepared: PreparedStatement,
        rows: Sequence[tuple[Any, ...]],
    ) -> Answer:
        self._count(statement, len(rows))
        loop = asyncio.get_running_loop()
        answer: Answer = loop.create_future()
        found: list[Any] = []

        # This runs in the driver's thread, or here if the request has failed already.
        def note(page: Sequence[Any] | None) -> None:
            found.extend(page or ())
            if not response.has_more_pages:
                self._tell(loop, answer, found)
                return
            try:
                response.start_fetching_next_page()
            except DRIVER_ERRORS as error:
                self._tell(loop, answer, error)

        try:
            request = driver.request(prepared, rows)
            response = self._session.execute_async(*request, timeout=self._request_s())
        except DRIVER_ERRORS as error:
            answer.set_result(error)
            return answer
        response.add_callbacks(note, lambda error: self._tell(loop, answer, error))
        return answer

    def _count(self, statement: Statement, times: int) -> None:
        self.counts[statement.name] += times
        metrics.STATEMENTS.inc(statement.name, times)

    def _tell(
        self, loop: asyncio.AbstractEventLoop, answer: Answer, found: list[Any] | BaseException
    ) -> None:
        with self._lock:
            self._told.append((answer, found))
            is_woken, self._is_woken = self._is_woken, True
        if not is_woken:
            loop.call_soon_threadsafe(self._hand_out)

    def _hand_out(self) -> None:
        with self._lock:
            told, self._told = self._told, deque()
            self._is_woken = False
        for answer, found in told:
            if not answer.done():
                answer.set_result(found)


def spawn(work: Callable[[], object]) -> None:
    """Run ``work`` in the background, in a thread of its own."""
    threading.Thread(target=work, name="cassieq-clock", daemon=True).start()
