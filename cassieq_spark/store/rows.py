"""`Rows` changes bucket rows: tasks around one `RowWriter` for each row (ADR 39).

    a caller queues an intent  ->  a task carries out the writer's outputs  ->  the answer

A task reads the row, writes hints, sends the CAS, or pauses; no caller's limit ends it. Intents
that come meanwhile are folded into the next CAS. Holds I2, I3, I4.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from math import inf
from typing import Any, Final, NamedTuple
from uuid import UUID

from cassieq_spark.clock import Clock
from cassieq_spark.entropy import Entropy
from cassieq_spark.errors import CasAmbiguous, CassieqError, StoreTimeout
from cassieq_spark.log import get_logger
from cassieq_spark.model.bucket import Bucket
from cassieq_spark.model.ids import BucketNo, LaneId
from cassieq_spark.model.outcome import Applied, Evicted, Outcome, Refused, Stored, Version
from cassieq_spark.model.rows import events
from cassieq_spark.model.rows.events import Answer, End, Event, Fate, Output
from cassieq_spark.model.rows.intents import Claimed, Intent, Moment, Turn
from cassieq_spark.model.rows.writer import RowWriter
from cassieq_spark.store.call import LEAST_S, Timer, present
from cassieq_spark.store.caller import copied
from cassieq_spark.store.cas import CasSender
from cassieq_spark.store.session import CqlSession
from cassieq_spark.store.side_by_side import begin_for_all

Key = tuple[LaneId, BucketNo]

_logger = get_logger("store")

KEPT_BYTES: Final = 1 << 14
"""The most bytes of claims with which a row is kept."""

KEPT_ROWS: Final = 64
"""The number of rows that are kept as the last CAS left them: a program's leases at a time are
mostly in one or two buckets."""

KEPT_WRITERS: Final = 1_024
"""The most rows whose writers are kept, which know whether others change the row."""

STATEMENTS: Final = 3
"""The statements of a row's change: a read, its hints and a CAS; each has a block's limit."""

RACE_PAUSE_S: Final = 0.002
RACE_DOUBLINGS: Final = 5
"""The pause after a lost race: about the time of a CAS, then doubled up to 64 ms."""

FATES: Final = {Applied: Fate.APPLIED, Refused: Fate.REFUSED, Evicted: Fate.EVICTED}


def race_pause_s(entropy: Entropy, attempt: int) -> float:
    """Return the seconds to pause after a lost race; longer each time [P28]."""
    return entropy.jitter(RACE_PAUSE_S, min(attempt, RACE_DOUBLINGS))


class Port(NamedTuple):
    """The functions by which a bucket row is read and written.

    Attributes:
        read: Reads the row by quorum.
        send: Sends one CAS; returns its outcome, and the bytes of claims that it wrote.
        hint: Writes a hint for each of these times, unless this client has written it before.
        passed: The minute of the time pointer, as this client last read it.
    """

    read: Callable[[], Awaitable[Stored[Bucket] | None]]
    send: Callable[[Version, Bucket, UUID], Awaitable[tuple[Outcome[Bucket], int]]]
    hint: Callable[[Iterable[int], int], Awaitable[None]]
    passed: Callable[[], int]


class Company(NamedTuple):
    """An intent that joins the next CAS of a row, whoever sends it.

    Attributes:
        intent: Acks, which are not as urgent as a claim.
        tell: Called once, with its answer, or with None: the outcome is unknown, so ask again.
    """

    intent: Intent
    tell: Callable[[Answer | None], None]


def is_late_hint(output: Output) -> bool:
    """Whether the output is a hint of a CAS that has taken effect: no caller waits for it [T4]."""
    return isinstance(output, events.WriteHints) and not output.tickets


def error_of(answer: Answer, doubt: CassieqError | None) -> CassieqError:
    """Return the error of an answer without a result: the store's, or a timeout."""
    if answer.end is End.AMBIGUOUS:
        why = answer.error if isinstance(answer.error, CassieqError) else doubt
        return CasAmbiguous(
            "a change of a row was not answered. It may have been applied, or may still be"
            if why is None
            else why.message
        )
    if isinstance(answer.error, CassieqError):
        return copied(answer.error)  # others get it too, and each raises its own copy
    return StoreTimeout(
        "other calls of this client work on the row, and were not answered in time. Nothing was "
        "sent. Try again"
    )


class Row:
    """The writer of one row, and the callers that wait for it.

    Attributes:
        writer: Decides what is done next.
        size: The bytes of claims that were written last.
        users: The number of callers that use it or are about to.
        doubt: The error of a CAS whose outcome is unknown.
    """

    def __init__(
        self,
        session: CqlSession,
        sender: CasSender,
        clock: Callable[[], Clock],
        port: Port,
    ) -> None:
        self._session = session
        self._sender = sender
        self._clock = clock
        self._port = port
        self.writer = RowWriter()
        self._callers: dict[int, tuple[asyncio.Future[Answer | events.Granted], float]] = {}
        self._withheld: dict[int, Answer] = {}
        self._company: dict[int, Company] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._new: list[events.Queued] = []
        self._timer = Timer(session.clock, self._end_overdue)
        self._last = 0
        self.size = 0
        self._failure: BaseException | None = None
        self.users = 0
        self.doubt: CassieqError | None = None

    @property
    def is_broken(self) -> bool:
        """Whether one of its rules has failed: then it is of no more use."""
        return self._failure is not None

    async def apply(
        self, intent: Intent, known: Stored[Bucket] | None, company: Company | None
    ) -> Answer:
        """Queue an intent, and wait for its answer; ``company`` goes with it."""
        ticket = 0
        if company is not None:
            # It is folded when the next one comes.
            ticket = self._queue(company.intent, self._deadline_s(), company_until_s=inf)
            self._company[ticket] = company
        try:
            answer: Any = await self._answered(intent, known)
        finally:
            self._give_back(ticket)
        if isinstance(answer.result, Claimed):
            self._step(events.Taken(ticket=answer.ticket))
        return answer  # type: ignore[no-any-return]  # only a turn is granted

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[Callable[[Stored[Bucket] | None], None]]:
        """Send a statement of one's own in this block; give the row it left to what is yielded."""
        row: Stored[Bucket] | None = None

        def leave(now: Stored[Bucket] | None) -> None:
            nonlocal row
            row = now

        answer = await self._answered(Turn(), None)
        if not isinstance(answer, events.Granted):
            raise error_of(answer, self.doubt)
        try:
            yield leave
        finally:
            self._step(events.TurnOver(row=row))

    def _give_back(self, ticket: int) -> None:
        """Let company go whose answer has not come: it asks again by itself."""
        if (company := self._company.pop(ticket, None)) is not None:
            _tell(company, None)
            self._step(events.Left(ticket=ticket))

    def _deadline_s(self) -> float:
        """Return until when a caller waits: a change of a row is three statements at most."""
        now, limits = self._session.clock.monotonic(), present()
        block_s = max(LEAST_S, min(limits.until - now, STATEMENTS * limits.each_s))
        return now + min(block_s, limits.of_call_s)

    async def _answered(
        self, intent: Intent, known: Stored[Bucket] | None
    ) -> Answer | events.Granted:
        """Queue an intent; return its answer, or that it was not sent within its caller's limit."""
        deadline_s = self._deadline_s()
        ticket = self._queue(intent, deadline_s, known=known)
        answer: asyncio.Future[Answer | events.Granted] = asyncio.get_running_loop().create_future()
        self._callers[ticket] = answer, deadline_s
        try:
            with present().waiting():
                return await answer
        except BaseException:
            self._step(events.Left(ticket=ticket))
            raise
        finally:
            del self._callers[ticket]

    def _end_overdue(self) -> None:
        """End the waits of callers whose time is over."""
        if not self._callers:
            return
        self._step(events.Tick())
        now = self._session.clock.monotonic()
        for ticket, (answer, deadline_s) in list(self._callers.items()):
            if deadline_s > now or answer.done():
                continue
            if (known := self._withheld.get(ticket)) is not None:
                answer.set_result(known)  # its CAS has ended
            else:
                answer.set_result(events.Answer(ticket=ticket, end=End.NOT_SENT))
                self._step(events.Left(ticket=ticket))
        self._set_timer()

    def _set_timer(self) -> None:
        """Let the next wait end in time. What was set before stays: it may be over for nothing."""
        withheld = (self._callers[one] for one in self._withheld if one in self._callers)
        times = (deadline_s for answer, deadline_s in withheld if not answer.done())
        if (at := min(self.writer.wake_at_s, min(times, default=inf))) < inf and self._callers:
            self._timer.set(at)

    async def _carry_out(self, output: Output) -> None:
        """Carry out one output of the writer, and report the outcome to it."""
        if isinstance(output, events.WriteHints):
            for ticket in list(self._company):
                self._give_back(ticket)  # acks do not wait for a claim's hint
        try:
            ended = await self._carried_out(output)
        except BaseException as error:  # noqa: BLE001 - the waiting callers get it
            self._fail(error)
        else:
            self._step(ended)

    async def _carried_out(self, output: Output) -> Event:
        session, port = self._session, self._port
        match output:
            case events.ReadRow(until_s=until_s):
                try:
                    with session.within(until_s - session.clock.monotonic()):
                        return events.RowRead(row=await port.read())
                except CassieqError as error:
                    return events.RowRead(error=error)
            case events.WriteHints(minutes=minutes, times_us=times_us):
                try:
                    await port.hint(times_us, self._clock().now_us())
                except CassieqError as error:
                    return events.Hinted(minutes=minutes, error=error)
                return events.Hinted(minutes=minutes)
            case events.SendCas():
                return await self._sent(output)
            case events.Pause(attempt=attempt):
                if self._callers:  # otherwise there is no caller to keep from retrying
                    await session.clock.sleep(race_pause_s(session.entropy, attempt))
                return events.PauseOver()
        raise TypeError(f"{output} is nothing to do")

    async def _sent(self, cas: events.SendCas) -> Event:
        session = self._session
        self.doubt = None
        try:
            with session.within(cas.until_s - session.clock.monotonic()):
                outcome, self.size = await self._port.send(cas.before, cas.row, cas.mark)
        except CasAmbiguous as error:
            self.doubt = error
            return events.CasEnded(fate=Fate.OPEN)
        except CassieqError as error:
            return events.CasEnded(fate=Fate.REFUSED, error=error)
        return events.CasEnded(fate=FATES[type(outcome)], now=outcome.now)

    def _queue(
        self,
        intent: Intent,
        deadline_s: float,
        *,
        known: Stored[Bucket] | None = None,
        company_until_s: float = -inf,
    ) -> int:
        """Let an intent go with all that come in this turn of the loop; return its ticket."""
        if not self._new:
            asyncio.get_running_loop().call_soon(self._step, events.Tick())
        self._last += 1
        self._new.append(
            events.Queued(
                ticket=self._last,
                intent=intent,
                deadline_s=deadline_s,
                company_until_s=company_until_s,
                known=known,
                more_come=True,
            )
        )
        return self._last

    def _step(self, event: Event) -> None:
        """Pass an event to the writer, hand out its answers, and begin its outputs."""
        if self._failure is not None:
            return
        new, self._new = self._new, []
        try:
            moment = self._moment()
            outputs = [one for told in (*new, event) for one in self.writer.step(told, moment)]
        except Exception as error:  # noqa: BLE001 - as above
            self._fail(error)
            return
        answers = [one for one in outputs if isinstance(one, events.Answer | events.Granted)]
        late = [one for one in outputs if is_late_hint(one)]
        for output in outputs:
            if output not in late and not isinstance(output, events.Answer | events.Granted):
                begin_for_all(self._carry_out(output), self._tasks)
        held = [one for one in answers if late and isinstance(one, events.Answer)]
        self._hand_out(one for one in answers if one not in held)
        if late:
            self._withheld.update({one.ticket: one for one in held})
            begin_for_all(self._after(late, held), self._tasks)
        self._set_timer()

    def _fail(self, error: BaseException) -> None:
        """Fail all waiting callers: a rule, or something that should never fail, has failed."""
        self._failure = error
        for waiting, _ in self._callers.values():
            if not waiting.done():
                waiting.set_exception(copied(error) if isinstance(error, Exception) else error)
        for ticket in list(self._company):
            _tell(self._company.pop(ticket), None)

    async def _after(self, late: Iterable[Output], held: Iterable[Answer]) -> None:
        """Write hints of a CAS that has taken effect, before its answers are used [T4]."""
        try:
            for output in late:
                await self._carry_out(output)
        finally:
            for answer in held:
                self._withheld.pop(answer.ticket, None)
            self._hand_out(held)

    def _hand_out(self, answers: Iterable[Answer | events.Granted]) -> None:
        for answer in answers:
            if (company := self._company.pop(answer.ticket, None)) is not None:
                found = answer if isinstance(answer, events.Answer) else None
                _tell(company, found if found is not None and found.end is End.DONE else None)
            waiting, _ = self._callers.get(answer.ticket, (None, inf))
            if waiting is not None and not waiting.done():
                waiting.set_result(answer)

    def _moment(self) -> Moment:
        now_us = self._clock().now_us()
        return Moment(
            now_us=now_us,
            at_s=self._session.clock.monotonic(),
            spare_us=self._sender.spare_us,
            new_id=partial(self._session.entropy.uuid_at, now_us),
            passed=self._port.passed(),
        )


def _tell(company: Company, answer: Answer | None) -> None:
    """Tell company its outcome; an error there is not the row's."""
    try:
        company.tell(answer)
    except Exception:
        _logger.exception("acks that went with another change of their row were not noted")


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
        return None if row is None else row.writer.left(self._clock().now_us())

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
        if row.size > KEPT_BYTES:
            self._kept.pop(key, None)
            row.writer.forget()
        else:
            self._kept[key] = None
            self._kept.move_to_end(key)
        if len(self._kept) > KEPT_ROWS:
            oldest, _ = self._kept.popitem(last=False)
            if not self._rows[oldest].users:
                self._rows[oldest].writer.forget()
        if len(self._rows) > KEPT_WRITERS:
            idle = next((one for one, its in self._rows.items() if not its.users), None)
            if idle is not None:
                del self._rows[idle]
                self._kept.pop(idle, None)
                self._offers.pop(idle, None)
