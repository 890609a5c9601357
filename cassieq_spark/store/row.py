"""`Row` is one bucket row with the callers of one client that wait for it: see `store.rows`."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from copy import copy
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any, Final

from cassieq_spark.errors import CasAmbiguous, CassieqError
from cassieq_spark.log import get_logger
from cassieq_spark.model.rows import events
from cassieq_spark.model.rows.events import End, Fate
from cassieq_spark.model.rows.intents import Claimed, Moment, Turn
from cassieq_spark.model.rows.writer import RowWriter
from cassieq_spark.store.cas import Applied, Evicted
from cassieq_spark.store.row_port import error_of, is_late_hint, race_pause_s
from cassieq_spark.store.side_by_side import LEAST_S, begin_for_all, present
from cassieq_spark.store.timer import Timer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable

    from cassieq_spark.clock import Clock
    from cassieq_spark.model.bucket import Bucket
    from cassieq_spark.model.rows.events import Answer, Event, Output
    from cassieq_spark.model.rows.intents import Intent
    from cassieq_spark.store.cas import CasSender, Stored
    from cassieq_spark.store.row_port import Company, Port
    from cassieq_spark.store.session import CqlSession

_logger = get_logger("store")

KEPT_BYTES: Final = 1 << 14
"""The most bytes of claims with which a row is kept."""

STATEMENTS: Final = 3
"""The statements of a row's change: a read, its hints and a CAS; each has a block's limit."""


class Row:
    """One row's writer, and the callers that wait for it.

    Attributes:
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
        self._writer = RowWriter()
        self._callers: dict[int, asyncio.Future[Answer | events.Granted]] = {}
        self._withheld: dict[int, Answer] = {}
        self._company: dict[int, Company] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._new: list[events.Queued] = []
        self._timer = Timer(session.clock, self._tick)
        self._last = 0
        self._size = 0
        self._failure: BaseException | None = None
        self.users = 0
        self.doubt: CassieqError | None = None

    @property
    def is_broken(self) -> bool:
        """Whether one of its rules has failed: then it is of no more use."""
        return self._failure is not None

    def left(self) -> Stored[Bucket] | None:
        """See `RowWriter.left`."""
        found: Any = self._writer.left(self._clock().now_us())
        return found  # type: ignore[no-any-return]  # the value that was read comes out

    def forget(self) -> None:
        """Forget the row's content, but not whether others change it."""
        self._writer.forget()

    @property
    def is_large(self) -> bool:
        """Whether the row is too large to be kept."""
        return self._size > KEPT_BYTES

    async def apply(
        self, intent: Intent, known: Stored[Bucket] | None, company: Company | None
    ) -> Answer:
        """Queue an intent, and wait for its answer; ``company`` goes with it."""
        ticket = self._with(company)
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

    def _with(self, company: Company | None) -> int:
        """Queue the intent that is folded when the next one comes."""
        if company is None:
            return 0
        self._last += 1
        self._company[self._last] = company
        self._queue(
            events.Queued(
                ticket=self._last,
                intent=company.intent,
                deadline_s=self._deadline_s(),
                company_until_s=inf,
                more_come=True,
            )
        )
        return self._last

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
        self._last += 1
        ticket, deadline_s = self._last, self._deadline_s()
        answer: asyncio.Future[Answer | events.Granted] = asyncio.get_running_loop().create_future()
        self._callers[ticket] = answer
        limit = Timer(self._session.clock, partial(self._end, ticket, answer))
        try:
            self._queue(
                events.Queued(
                    ticket=ticket,
                    intent=intent,
                    deadline_s=deadline_s,
                    known=known,
                    more_come=True,
                )
            )
            limit.set(deadline_s)
            with present().waiting():
                return await answer
        except BaseException:
            self._step(events.Left(ticket=ticket))
            raise
        finally:
            limit.set(inf)
            del self._callers[ticket]

    def _end(self, ticket: int, answer: asyncio.Future[Answer | events.Granted]) -> None:
        """End the wait of a caller."""
        self._step(events.Tick())
        if answer.done():
            return
        if (known := self._withheld.get(ticket)) is not None:
            answer.set_result(known)  # its CAS has ended
            return
        answer.set_result(events.Answer(ticket=ticket, end=End.NOT_SENT))
        self._step(events.Left(ticket=ticket))

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
        before: Any = cas.before
        self.doubt = None
        try:
            with session.within(cas.until_s - session.clock.monotonic()):
                outcome, self._size = await self._port.send(before, cas.row, cas.mark)
        except CasAmbiguous as error:
            self.doubt = error
            return events.CasEnded(fate=Fate.OPEN)
        except CassieqError as error:
            return events.CasEnded(fate=Fate.REFUSED, error=error)
        fate = Fate.REFUSED
        if isinstance(outcome, Applied):
            fate = Fate.APPLIED
        elif isinstance(outcome, Evicted):
            fate = Fate.EVICTED
        return events.CasEnded(fate=fate, now=outcome.now)

    def _queue(self, event: events.Queued) -> None:
        """Let it go with all that comes in this turn of the loop: many calls begin in one."""
        if not self._new:
            asyncio.get_running_loop().call_soon(self._tick)
        self._new.append(event)

    def _step(self, event: Event) -> None:
        """Pass an event to the writer, hand out its answers, and begin its outputs."""
        if self._failure is not None:
            return
        new, self._new = self._new, []
        try:
            moment = self._moment()
            outputs = [one for told in (*new, event) for one in self._writer.step(told, moment)]
        except Exception as error:  # noqa: BLE001 - as above
            self._fail(error)
            return
        answers = [one for one in outputs if isinstance(one, events.Answer | events.Granted)]
        late = [one for one in outputs if is_late_hint(one)]
        for output in outputs:
            if output not in late and not isinstance(output, events.Answer | events.Granted):
                begin_for_all(self._carry_out(output), self._tasks)
        self._timer.set(self._writer.wake_at_s if self._callers else inf)
        held = [one for one in answers if late and isinstance(one, events.Answer)]
        self._hand_out(one for one in answers if one not in held)
        if late:
            self._withheld.update({one.ticket: one for one in held})
            begin_for_all(self._after(late, held), self._tasks)

    def _fail(self, error: BaseException) -> None:
        """Fail all waiting callers: a rule, or something that should never fail, has failed."""
        self._failure = error
        for waiting in self._callers.values():
            if not waiting.done():
                waiting.set_exception(copy(error) if isinstance(error, Exception) else error)
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
            waiting = self._callers.get(answer.ticket)
            if waiting is not None and not waiting.done():
                waiting.set_result(answer)

    def _tick(self) -> None:
        self._step(events.Tick())

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
