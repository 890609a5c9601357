"""Run tagged compare-and-set: every outcome is settled exactly (G2, G3). Holds I3, I5, I6, I7.

A CAS is conditional on the ``writer`` uuid of the row as read. It writes a new uuid, and puts it
into ``tags`` in place of this client's former one. If an answer is lost, the *same* statement is
sent again until it is answered. If it is applied, or refused with our uuid among the tags, it
happened. Otherwise it did not and cannot any more, since its condition is dead. A read would not
settle it: the CAS may land after the read [P7].
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import count
from statistics import median
from typing import Any, Final, NamedTuple, TypeVar
from uuid import UUID
from weakref import WeakValueDictionary

from cassandra import Unavailable
from cassandra.cluster import NoHostAvailable

from cassieq_spark import metrics
from cassieq_spark.errors import CasAmbiguous, CassieqError, ClientClosed, StoreError
from cassieq_spark.model.outcome import (
    Applied,
    Evicted,
    Outcome,
    Refused,
    Stored,
    Tag,
    Tags,
    Version,
)
from cassieq_spark.store import retries
from cassieq_spark.store.call import DEADLINE_S, Turn, in_turn, present
from cassieq_spark.store.driver import REQUEST_TIMEOUT_S
from cassieq_spark.store.session import CqlSession
from cassieq_spark.store.statements import Statement
from cassieq_spark.store.translate import DRIVER_ERRORS, is_refusal

T = TypeVar("T")

_RESEND_BASE_S: Final = 0.05

TIMES_SPARE: Final = 4
"""The least length of a claim, in the client's own CAS times. A shorter claim would be over when
it is answered, and use up a delivery that nobody held [R21]."""

FIRST_GUESS_S: Final = 0.01
"""The assumed time of a CAS before one was measured."""


class _Answer(NamedTuple):
    """The server's last answer to a CAS, and whether its first sending got it."""

    is_applied: bool
    was_sent_once: bool


class CasSender:
    """Sends the CASes of one session."""

    def __init__(self, session: CqlSession) -> None:
        self._session = session
        self._turns: WeakValueDictionary[tuple[Any, ...], Turn] = WeakValueDictionary()
        self._durations_s: deque[float] = deque(maxlen=64)
        self._note_duration(FIRST_GUESS_S)

    def _note_duration(self, seconds: float) -> None:
        """Note the time of a CAS.

        The attribute ``spare_us`` is the least length of a claim, by the median of this client's
        last CASes [R21]. It is asked for much more often than it changes.
        """
        if seconds > REQUEST_TIMEOUT_S:
            return  # this process stood still: no answer is waited for so long
        self._durations_s.append(seconds)
        self.spare_us = int(TIMES_SPARE * median(self._durations_s) * 1e6)

    async def send(
        self,
        statement: Statement,
        key: tuple[Any, ...],
        value: T,
        columns: tuple[Any, ...],
        *,
        before: Version | None,
        read: Callable[[], Awaitable[Stored[T] | None]],
        mark: UUID | None = None,
    ) -> Outcome[T]:
        """Run one CAS to a settled outcome.

        Args:
            key: The row's key, also for the one-in-flight rule.
            columns: What it writes, in the statement's order, without key and version.
            before: The version that the CAS is conditional on; None: there is no row.
            read: Reads the present row, by quorum.
            mark: The uuid that it writes, used by no other CAS; None: one is drawn.

        Raises:
            CasAmbiguous: It stayed unanswered until the deadline: it may have happened, or may yet.
            SchemaMissing: The table does not exist.
        """
        async with self._holding(statement, key):
            version = self._next_version(before, mark or self._session.entropy.new_uuid())
            if statement.is_insert:
                params = (*key, *columns, *version.columns)
            else:
                params = (*columns, *version.columns, *key, before and before.writer)
            base = 0 if before is None else before.row_version
            answer = await self._answered(statement, params)
            if answer.is_applied:
                metrics.CAS_APPLIED.inc()
                return Applied(
                    now=Stored(value=value, version=version), was_sent_once=answer.was_sent_once
                )
            # A refusal has completed every earlier CAS, so a quorum read shows its row.
            try:
                now = await read()
            except (StoreError, ClientClosed) as error:
                if answer.was_sent_once:
                    raise
                # The tags would have told whether an unanswered sending was applied [T23].
                raise _ambiguous(
                    statement, f"sent again it was not applied, and its row not read: {error}"
                ) from error
            if now is not None and now.version.tags.has(version.writer):
                metrics.CAS_APPLIED.inc()
                return Applied(now=now)
            metrics.CAS_REFUSED.inc()
            if now is not None and now.version.tags.evicted > base:
                return Evicted(now=now)
            return Refused(now=now, was_sent_once=answer.was_sent_once)

    async def delete(
        self, statement: Statement, key: tuple[Any, ...], *, before: Version | None = None
    ) -> bool:
        """Remove a row by LWT: one with that version, or any (``IF EXISTS``) if none is given.

        Returns:
            Whether an answer said that the row existed and was removed; False also if an earlier
            sending of the same statement has removed it and its answer was lost.

        Raises:
            CasAmbiguous: See `send`.
        """
        return await self.answer(statement, key, key if before is None else (*key, before.writer))

    async def answer(
        self, statement: Statement, key: tuple[Any, ...], params: tuple[Any, ...]
    ) -> bool:
        """Send an LWT that needs no tags until it is answered; return whether it was applied.

        Raises:
            CasAmbiguous: See `send`.
        """
        async with self._holding(statement, key):
            return (await self._answered(statement, params)).is_applied

    @asynccontextmanager
    async def _holding(self, statement: Statement, key: tuple[Any, ...]) -> AsyncIterator[None]:
        """Hold a row: a client has one CAS in flight per row (G2).

        Raises:
            StoreTimeout: Other calls of this client hold it for too long.
        """
        row = (statement.table, *key)
        turn = self._turns.get(row) or self._turns.setdefault(row, Turn())
        session = self._session
        with session.call():
            at_most_s = session.left_s(DEADLINE_S)
            async with in_turn(turn, f"row {row}", at_most_s, session.clock):
                yield

    def _next_version(self, before: Version | None, writer: UUID) -> Version:
        row_version = 1 if before is None else before.row_version + 1
        tags = Tags() if before is None else before.tags
        return Version(
            writer=writer,
            tags=tags.with_tag(
                Tag(client=self._session.client_id, writer=writer, row_version=row_version)
            ),
            row_version=row_version,
        )

    async def _answered(self, statement: Statement, params: tuple[Any, ...]) -> _Answer:
        with present().waiting():
            answer = await self._until_answered(statement, params)
        present().heard()
        return answer

    async def _until_answered(self, statement: Statement, params: tuple[Any, ...]) -> _Answer:
        """Send until an answer comes; return whether the server applied it, by that answer."""
        clock = self._session.clock
        at_most_s = self._session.left_s(DEADLINE_S)
        is_first = True
        deadline = clock.monotonic() + at_most_s
        for sent_times in count(1):
            try:
                sent = clock.monotonic()
                rows = await self._session.run_once(statement, params, until=deadline)
                self._note_duration(clock.monotonic() - sent)
                return _Answer(is_applied=bool(rows[0][0]), was_sent_once=is_first)
            except CassieqError as error:  # this time it was not sent
                if is_first:
                    raise
                raise _ambiguous(statement, f"it was not sent again: {error}") from error
            except DRIVER_ERRORS as error:
                if is_refusal(error):
                    refused = self._session.translated(error, statement.name)
                    if is_first:
                        raise refused from error
                    # This sending did nothing; an earlier one without an answer may have [T23].
                    raise _ambiguous(statement, f"sent again it was refused: {refused}") from error
                if not isinstance(error, NoHostAvailable):  # otherwise no node got it
                    metrics.CAS_UNKNOWN.inc()
                    is_first = False
                left_s = deadline - clock.monotonic()
                if left_s <= 0:
                    waited = retries.waited(at_most_s - left_s, sent_times)
                    if is_first:
                        raise self._session.translated(error, statement.name, waited) from error
                    raise _unanswered(statement, error, waited) from error
                pause_s = self._session.entropy.jitter(_RESEND_BASE_S, min(sent_times - 1, 5))
                pause_s = min(pause_s, at_most_s / 4)
                retries.tell(statement, error, sent=sent_times, pause_s=pause_s, left_s=left_s)
                await clock.sleep(pause_s)
                metrics.RETRIES.inc()
        raise AssertionError("the pauses never end")


def _unanswered(statement: Statement, error: BaseException, waited: str) -> CasAmbiguous:
    return CasAmbiguous(
        f"statement {statement.name!r} stayed unanswered for {waited} "
        f"({type(error).__name__}: {error}). It may have been applied, or may still be. "
        + (
            "Too few replicas are up for a quorum"
            if isinstance(error, Unavailable)
            else "Look at the cluster's health; the next caller settles the row"
        )
    )


def _ambiguous(statement: Statement, why: str) -> CasAmbiguous:
    return CasAmbiguous(
        f"statement {statement.name!r} was not answered when it was first sent, and may have been "
        f"applied then ({why}). The next caller settles the row"
    )
