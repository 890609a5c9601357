"""`Row` is one bucket row with those of a client who wait at it: see `store.rows`."""

from __future__ import annotations

import threading
from collections import deque
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any, Final

from cassieq_spark.entropy import uuid_at
from cassieq_spark.errors import CasAmbiguous, CassieqError, StoreTimeout
from cassieq_spark.model.rows import events
from cassieq_spark.model.rows.events import End, Fate
from cassieq_spark.model.rows.intents import Claimed, Moment, Turn
from cassieq_spark.model.rows.writer import RowWriter
from cassieq_spark.store.cas import Applied, Evicted
from cassieq_spark.store.row_port import broken_off, error_of, is_late_hint, race_pause_s
from cassieq_spark.store.side_by_side import LEAST_S, present

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from cassieq_spark.clock import Clock
    from cassieq_spark.model.bucket import Bucket
    from cassieq_spark.model.rows.events import Answer, Event, Output
    from cassieq_spark.model.rows.intents import Intent
    from cassieq_spark.store.cas import CasSender, Stored
    from cassieq_spark.store.row_port import Company, Port
    from cassieq_spark.store.session import CqlSession

KEPT_BYTES: Final = 1 << 14
"""Rows with more bytes of claims are not kept."""

STATEMENTS: Final = 3
"""A change of a row is a read, its hints and a CAS: each has a block's limit for one statement."""


@dataclass(eq=False, slots=True, kw_only=True)
class _Caller:
    """One who waits at a row.

    Attributes:
        deadline_s: Until then it waits, by the monotonic clock.
        is_at_work: Whether it does something without the lock.
        rests_until_s: When it wakes up by itself; -inf: it does not rest.
        todo: What it is to do next.
        answer: What it waits for.
    """

    ticket: int
    deadline_s: float
    changed: threading.Condition
    is_at_work: bool = False
    rests_until_s: float = -inf
    todo: deque[Output] = field(default_factory=deque)
    answer: Answer | events.Granted | None = None


class Row:
    """One row's writer, and those who wait there.

    Attributes:
        users: Callers that are in it or come.
        doubt: Why it is not known whether a CAS has taken effect.
    """

    def __init__(
        self,
        session: CqlSession,
        sender: CasSender,
        clock: Callable[[], Clock],
        passed: Callable[[], int],
    ) -> None:
        self._session = session
        self._sender = sender
        self._clock = clock
        self._passed = passed
        self._lock = threading.Lock()
        self._writer = RowWriter()
        self._callers: dict[int, _Caller] = {}
        self._left: deque[Output] = deque()  # what nobody waits for is done by who comes next
        self._company: dict[int, Company] = {}
        self._to_tell: deque[tuple[Company, Answer | None]] = deque()
        self._last = 0
        self._size = 0
        self._failure: Exception | None = None
        self.users = 0
        self.doubt: CassieqError | None = None

    @property
    def is_broken(self) -> bool:
        """Whether a rule has failed in it: it is of no more use."""
        return self._failure is not None

    def left(self) -> Stored[Bucket] | None:
        """See `RowWriter.left`."""
        with self._lock:
            found: Any = self._writer.left(self._clock().now_us())
        return found  # type: ignore[no-any-return]  # what was read is what comes out

    def forget(self) -> None:
        """Forget how it is, but not who changes it."""
        with self._lock:
            self._writer.forget()

    @property
    def is_large(self) -> bool:
        """Whether it is too large to be kept."""
        return self._size > KEPT_BYTES

    def apply(
        self, port: Port, intent: Intent, known: Stored[Bucket] | None, company: Company | None
    ) -> Answer:
        """Queue an intent, and wait for its answer; ``company`` goes with it."""
        try:
            with self._lock:
                ticket = self._with(company)
                try:
                    return self._applied(port, intent, known)
                finally:
                    self._give_back(ticket)
        finally:
            self._tell()

    def _with(self, company: Company | None) -> int:
        """Queue what is folded when the next intent comes."""
        if company is None:
            return 0
        self._last += 1
        self._company[self._last] = company
        queued = events.Queued(
            ticket=self._last,
            intent=company.intent,
            deadline_s=self._deadline_s(),
            company_until_s=inf,
        )
        try:
            self._step(queued)
        except BaseException:
            self._to_tell.append((self._company.pop(queued.ticket), None))
            raise
        return queued.ticket

    def _give_back(self, ticket: int) -> None:
        """Let company go whose answer has not come: it asks again by itself."""
        if (company := self._company.pop(ticket, None)) is not None:
            self._to_tell.append((company, None))
            self._step(events.Left(ticket=ticket))

    def _tell(self) -> None:
        """Tell what has become of company. The caller has no lock."""
        while True:
            try:
                company, answer = self._to_tell.popleft()
            except IndexError:
                return
            company.tell(answer if answer is not None and answer.end is End.DONE else None)

    def _deadline_s(self) -> float:
        """Until when a caller waits: a change of a row is three statements at most."""
        now, limits = self._session.clock.monotonic(), present()
        block_s = max(LEAST_S, min(limits.until - now, STATEMENTS * limits.each_s))
        return now + min(block_s, limits.of_call_s)

    def _applied(self, port: Port, intent: Intent, known: Stored[Bucket] | None) -> Answer:
        with self._waiting(intent, known) as caller:
            answer: Any = self._answered(port, caller)
            if isinstance(answer.result, Claimed):
                self._step(events.Taken(ticket=caller.ticket))
            return answer  # type: ignore[no-any-return]  # only a turn is granted

    @contextmanager
    def turn(self, port: Port) -> Iterator[Callable[[Stored[Bucket] | None], None]]:
        """Send a statement of one's own in this block; call what is given with the row it left."""
        row: Stored[Bucket] | None = None

        def leave(now: Stored[Bucket] | None) -> None:
            nonlocal row
            row = now

        with self._lock, self._waiting(Turn(), None) as caller:
            answer = self._answered(port, caller)
            if not isinstance(answer, events.Granted):
                raise error_of(answer, self.doubt)
            self._lock.release()
            try:
                yield leave
            finally:
                self._lock.acquire()
                self._step(events.TurnOver(row=row))

    @contextmanager
    def _waiting(self, intent: Intent, known: Stored[Bucket] | None) -> Iterator[_Caller]:
        self._last += 1
        caller = _Caller(
            ticket=self._last,
            deadline_s=self._deadline_s(),
            changed=threading.Condition(self._lock),
        )
        self._callers[caller.ticket] = caller
        for output in self._left:
            caller.todo.append(output)
        self._left.clear()
        try:
            queued = events.Queued(
                ticket=caller.ticket, intent=intent, deadline_s=caller.deadline_s, known=known
            )
            self._step(queued, caller)
            yield caller
        except BaseException:
            self._step(events.Left(ticket=caller.ticket))
            raise
        finally:
            del self._callers[caller.ticket]
            for output in caller.todo:
                self._assign(output)

    def _answered(self, port: Port, caller: _Caller) -> Answer | events.Granted:
        """Wait for an answer, and do what is to be done until it comes. The caller has the lock."""
        while True:
            if self._failure is not None:
                raise self._failure
            answer = caller.answer
            if caller.todo and (answer is None or is_late_hint(caller.todo[0])):
                self._do(port, caller, caller.todo.popleft())
            elif answer is not None:
                return answer
            else:
                self._rest(caller)

    def _do(self, port: Port, caller: _Caller, output: Output) -> None:
        """Do one thing without the lock, and tell the writer."""
        if isinstance(output, events.WriteHints):
            for ticket in list(self._company):
                self._give_back(ticket)  # acks do not wait for a claim's hint
        ended: Event | None = None
        caller.is_at_work = True
        self._lock.release()
        try:
            self._tell()
            ended = self._carried_out(port, output)
        finally:
            self._lock.acquire()
            caller.is_at_work = False
            self._step(broken_off(output) if ended is None else ended, caller)

    def _carried_out(self, port: Port, output: Output) -> Event:
        session = self._session
        match output:
            case events.ReadRow(until_s=until_s):
                try:
                    with session.within(until_s - session.clock.monotonic()):
                        return events.RowRead(row=port.read())
                except CassieqError as error:
                    return events.RowRead(error=error)
            case events.WriteHints(minutes=minutes, times_us=times_us):
                try:
                    port.hint(times_us, self._clock().now_us())
                except CassieqError as error:
                    return events.Hinted(minutes=minutes, error=error)
                return events.Hinted(minutes=minutes)
            case events.SendCas():
                return self._sent(port, output)
            case events.Pause(attempt=attempt):
                session.clock.wait(race_pause_s(attempt))
                return events.PauseOver()
        raise TypeError(f"{output} is nothing to do")

    def _sent(self, port: Port, cas: events.SendCas) -> Event:
        session = self._session
        before: Any = cas.before
        self.doubt = None
        try:
            with session.within(cas.until_s - session.clock.monotonic()):
                outcome, self._size = port.send(before, cas.row, cas.mark)
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

    def _rest(self, caller: _Caller) -> None:
        """Wait for a word of others, or until it is time for something. The caller has the lock."""
        until_s = min(caller.deadline_s, self._writer.wake_at_s)
        left_s = until_s - self._session.clock.monotonic()
        if left_s > 0:
            caller.rests_until_s = until_s
            try:
                with present().waiting():
                    caller.changed.wait(min(left_s, threading.TIMEOUT_MAX))
            finally:
                caller.rests_until_s = -inf
            return
        self._step(events.Tick(), caller)
        if caller.answer is None and caller.deadline_s <= self._session.clock.monotonic():
            caller.answer = events.Answer(ticket=caller.ticket, end=End.NOT_SENT)
            self._step(events.Left(ticket=caller.ticket))

    def _step(self, event: Event, stepping: _Caller | None = None) -> None:
        """Tell the writer, and hand out what it says. The caller has the lock."""
        try:
            outputs = self._writer.step(event, self._moment())
        except BaseException as error:
            ended = StoreTimeout("the thread that was at the row was ended. Try again")
            self._failure = error if isinstance(error, Exception) else ended
            for caller in self._callers.values():
                caller.changed.notify()
            raise
        todo: list[Output] = []
        for output in outputs:
            if not isinstance(output, events.Answer | events.Granted):
                todo.append(output)
            elif output.ticket in self._company and isinstance(output, events.Answer):
                self._to_tell.append((self._company.pop(output.ticket), output))
            elif (asked := self._callers.get(output.ticket)) is not None:
                asked.answer = output
                if asked is not stepping:
                    asked.changed.notify()
        for output in todo:
            self._assign(output, stepping)
        resting = [
            one for one in self._callers.values() if one.rests_until_s > -inf and one.answer is None
        ]
        first = min(resting, key=lambda one: one.rests_until_s, default=None)
        if first is not None and self._writer.wake_at_s < first.rests_until_s:
            first.changed.notify()  # it is to wake up earlier

    def _assign(self, output: Output, stepping: _Caller | None = None) -> None:
        """Choose who does it: of those whose intents it is for, who may wait longest [T5]."""
        tickets = getattr(output, "tickets", ())
        waiting = [one for one in self._callers.values() if one.answer is None]
        concerned = [one for one in waiting if one.ticket in tickets]
        if is_late_hint(output) and stepping is not None:
            concerned = [stepping]  # before its own answer is used
        chosen = max(
            concerned or waiting,
            key=lambda one: (not one.is_at_work, one.deadline_s, one is stepping),
            default=None,
        )
        if chosen is None:
            if isinstance(output, events.Pause):
                self._step(events.PauseOver())  # nobody is there to be kept from trying again
            else:
                self._left.append(output)
            return
        chosen.todo.append(output)
        if chosen is not stepping:
            chosen.changed.notify()

    def _moment(self) -> Moment:
        now_us = self._clock().now_us()
        return Moment(
            now_us=now_us,
            at_s=self._session.clock.monotonic(),
            spare_us=self._sender.spare_us,
            new_id=partial(uuid_at, now_us),
            passed=self._passed(),
        )
