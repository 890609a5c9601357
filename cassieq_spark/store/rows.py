"""`Rows` changes bucket rows: tasks around one `RowWriter` for each row (ADR 39).

    a caller queues an intent  ->  a task carries out the writer's outputs  ->  the answer

A task reads the row, writes hints, sends the CAS, or pauses; no caller's limit ends it. Intents
that come meanwhile are folded into the next CAS. Holds I2, I3, I4.
"""

from __future__ import annotations

from collections import OrderedDict
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Final

from cassieq_spark.model.rows.events import End
from cassieq_spark.store.row import Row
from cassieq_spark.store.row_port import error_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from cassieq_spark.clock import Clock
    from cassieq_spark.errors import CassieqError
    from cassieq_spark.model.bucket import Bucket
    from cassieq_spark.model.ids import BucketNo, LaneId
    from cassieq_spark.model.rows.events import Answer
    from cassieq_spark.model.rows.intents import Intent
    from cassieq_spark.store.cas import CasSender, Stored
    from cassieq_spark.store.row_port import Company, Port
    from cassieq_spark.store.session import CqlSession

    Key = tuple[LaneId, BucketNo]

KEPT_ROWS: Final = 64
"""The number of rows that are kept as the last CAS left them: a program's leases at a time are
mostly in one or two buckets."""

KEPT_WRITERS: Final = 1_024
"""The most rows whose writers are kept, which know whether others change the row."""


class Rows:
    """The writers of the rows that one client changes, in all lanes."""

    def __init__(self, session: CqlSession, sender: CasSender, clock: Callable[[], Clock]) -> None:
        self._session = session
        self._sender = sender
        self._clock = clock
        self._rows: OrderedDict[Key, Row] = OrderedDict()
        self._kept: OrderedDict[Key, None] = OrderedDict()
        self._offers: dict[Key, Callable[[], Company | None]] = {}

    def offer(self, key: Key, company: Callable[[], Company | None]) -> None:
        """Register ``company``, which is asked once for an intent to join the row's next change."""
        self._offers[key] = company

    def left(self, key: Key) -> Stored[Bucket] | None:
        """Return the row as this client left it, if no other client seems to change it."""
        row = self._rows.get(key)
        return None if row is None else row.left()

    async def apply(
        self, key: Key, port: Port, intent: Intent, known: Stored[Bucket] | None = None
    ) -> tuple[Answer, CassieqError | None]:
        """Change a row as soon as its turn comes, together with other intents for it.

        Args:
            known: The row as the caller has just read it, or as `left` returned it.

        Returns:
            The answer, and the error if it has no result.
        """
        with self._session.call() as call, self._using(key, port) as row:
            offered = self._offers.pop(key, None)
            company = None if offered is None else offered()
            answer = await row.apply(intent, known, company)
            if answer.end in {End.DONE, End.LOST}:
                call.heard()
                return answer, None
            return answer, error_of(answer, row.doubt)

    @asynccontextmanager
    async def turn(
        self, key: Key, port: Port
    ) -> AsyncIterator[Callable[[Stored[Bucket] | None], None]]:
        """See `Row.turn`.

        Raises:
            StoreTimeout: Other calls of this client use the row, and were not answered in time.
        """
        with self._session.call(), self._using(key, port) as row:
            async with row.turn() as leave:
                yield leave

    @contextmanager
    def _using(self, key: Key, port: Port) -> Iterator[Row]:
        self._clock().now_us()  # raises if the time is unknown
        row = self._rows.get(key)
        if row is None or row.is_broken:
            row = self._rows[key] = Row(self._session, self._sender, self._clock, port)
        row.users += 1
        try:
            yield row
        finally:
            self._note_used(key, row)

    def _note_used(self, key: Key, row: Row) -> None:
        """Keep a row that was used, and forget the oldest beyond the limits."""
        row.users -= 1
        if self._rows.get(key) is not row:
            return
        self._rows.move_to_end(key)
        if row.is_large:
            self._kept.pop(key, None)
            row.forget()
        else:
            self._kept[key] = None
            self._kept.move_to_end(key)
        if len(self._kept) > KEPT_ROWS:
            oldest, _ = self._kept.popitem(last=False)
            if not self._rows[oldest].users:
                self._rows[oldest].forget()
        if len(self._rows) > KEPT_WRITERS:
            idle = next((one for one, its in self._rows.items() if not its.users), None)
            if idle is not None:
                del self._rows[idle]
                self._kept.pop(idle, None)
                self._offers.pop(idle, None)
