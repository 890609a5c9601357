"""`Crew` has hands work on the messages of a queue, side by side, and settles the messages.

This is the one loop of all that works on messages: a hand is a coroutine of a program, as
`AsyncQueue.work` has it, or a place in a process of ``cassieq worker``.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Collection, Coroutine, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from math import inf
from typing import TYPE_CHECKING, Any, Final, Protocol

from cassieq_spark.clock import Clock, SystemClock
from cassieq_spark.errors import CassieqError, ClientClosed, StoreError
from cassieq_spark.log import event, get_logger
from cassieq_spark.model.backoff import DEFAULT_BACKOFF, Backoff
from cassieq_spark.queue.handling import Failure, about
from cassieq_spark.queue.message import Delivery
from cassieq_spark.queue.settle.ack_buffer import RETRY_S

if TYPE_CHECKING:
    from cassieq_spark.aio.queue import AsyncQueue

LOOK_S: Final = 1.0
"""The time that a free hand waits for a message before it looks after itself: an idle consumer
looks as rarely."""

SLICE_S: Final = 0.2
"""A crew that is idle for too long notices that within this time."""

_logger = get_logger("worker")

Tasks = Collection["asyncio.Task[None]"]


class Hand(Protocol):
    """One of those who work on messages, one message at a time."""

    async def ready(self) -> bool:
        """Prepare for a message. False: not now; it is asked again at once."""

    @property
    def can_work(self) -> bool:
        """Whether it can take the message that has come: it may have died meanwhile."""

    async def work(self, message: Delivery) -> Failure | None:
        """Work on a message; None: it is done. It is cancelled when the grace time is over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CrewSettings:
    """Settings of a crew.

    Attributes:
        prefetch: How many messages wait here for a free hand, leased.
        visibility_s: The length of a lease, which is renewed; default: the queue's.
        grace_s: How long functions may go on after a stop.
        idle_s: End when gets were answered with no message for this long.
    """

    prefetch: int
    visibility_s: float | None = None
    grace_s: float = 30.0
    idle_s: float = inf
    min_priority: int = 0
    backoff: Backoff = DEFAULT_BACKOFF


class State(Enum):
    """The state of a hand: it begins, it waits for a message, or it works on one."""

    BEGINS = auto()
    WAITS = auto()
    WORKS = auto()


class Crew:
    """Hands, each of which works on one message after the other.

    Attributes:
        states: The state of each hand.
        answered: Whether the last get was answered.
    """

    def __init__(
        self,
        queue: AsyncQueue,
        hands: Sequence[Hand],
        settings: CrewSettings,
        *,
        on_start: Callable[[], object] = lambda: None,
        clock: Clock | None = None,
    ) -> None:
        """Prepare.

        Args:
            on_start: Called once, when the first hand is ready.
        """
        self._queue = queue
        self._hands = hands
        self._settings = settings
        self._on_start = on_start
        self._clock = clock or SystemClock()
        self._visibility_s = settings.visibility_s or queue.settings.visibility_timeout_s
        self._consumer = queue.consumer(
            prefetch=settings.prefetch,
            visibility_timeout=self._visibility_s,
            min_priority=settings.min_priority,
        )
        loop = asyncio.get_running_loop()
        self._ready: asyncio.Future[None] = loop.create_future()
        self._over: asyncio.Future[None] = loop.create_future()
        self._begun, self._stopping = asyncio.Event(), asyncio.Event()
        self._last_s = 0.0
        self._empty_s = -inf
        self.states = [State.BEGINS] * len(hands)
        self.answered = False

    async def run(self) -> None:
        """Work on messages until cancelled, or until none came for ``idle_s``.

        A cancel begins the stop: nothing more is claimed, and what waits is given back. Functions
        have the grace time to end. They are cancelled then, or by a second cancel, and their
        messages are given back.

        Raises:
            QueueDeleted: The queue is gone.
            StoreError: At the end: acks could not be stored, so their messages come again.
            Exception: No hand can work.
        """
        serve = (asyncio.create_task(self._serve(at)) for at in range(len(self._hands)))
        tasks = dict(zip(serve, range(len(self._hands)), strict=True))
        try:
            await self._until_over(tasks.keys())
        finally:
            self._stopping.set()
            for task, at in tasks.items():
                if self.states[at] is not State.WORKS:
                    task.cancel()  # a get that is cancelled keeps no message
            await self._stop(tasks.keys())

    async def _until_over(self, tasks: Tasks) -> None:
        either: list[asyncio.Future[Any]] = [self._ready, *tasks]
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        _raise_first(tasks)
        self._on_start()
        await self._consumer.__aenter__()
        self._last_s = self._clock.monotonic()
        self._begun.set()
        slice_s = None if self._settings.idle_s == inf else SLICE_S
        while not self.is_idle():
            ended, _ = await asyncio.wait(
                tasks, timeout=slice_s, return_when=asyncio.FIRST_COMPLETED
            )
            _raise_first(tasks)
            if ended:  # the client closes
                return

    @property
    def problem(self) -> str | None:
        """Why no message is worked on or waited for; None: all is well."""
        if self._stopping.is_set():
            return "the worker stops"
        if not self._ready.done():
            return "no process has found the function yet"
        return None if self.answered else "Cassandra has not answered the last get"

    def is_idle(self) -> bool:
        """Whether the crew was idle for too long.

        It is idle when a hand waits in vain, and none has a message, which may be given back, and
        come again. A hand that begins is no work: it may never have begun. While the store is away
        nobody knows, so only a get that was answered ends an idle time.
        """
        if State.WORKS in self.states or State.WAITS not in self.states:
            self._last_s = self._clock.monotonic()
        return self._empty_s - self._last_s >= self._settings.idle_s

    async def _stop(self, tasks: Tasks) -> None:
        timer = asyncio.get_running_loop().call_later(self._settings.grace_s, self.hurry)
        try:
            try:
                await self._consumer.close()  # gives back what waits
            finally:
                await asyncio.wait(tasks)
        except BaseException:
            self.hurry()  # a second cancel: nobody wants to wait
            await asyncio.wait(tasks)
            raise
        finally:
            timer.cancel()
            for task in tasks:
                if not task.cancelled():
                    task.exception()  # that of the first one is raised

    def hurry(self) -> None:
        """Let no function go on."""
        self._stopping.set()
        _set(self._over)

    async def _serve(self, at: int) -> None:
        """Let a hand work on one message after the other."""
        hand = self._hands[at]
        while not self._stopping.is_set():
            self.states[at] = State.BEGINS
            if not await hand.ready():
                continue
            _set(self._ready)
            await self._begun.wait()
            self.states[at] = State.WAITS
            message = await self._next()
            if message is None:
                if self._consumer._is_closed:  # noqa: SLF001 - of one package
                    return
                continue
            self._last_s = self._clock.monotonic()
            self.states[at] = State.WORKS
            if self._stopping.is_set() or not hand.can_work:
                # No function has seen it: another worker gets it at once.
                await self._settle(message, self._queue.release(message, count_delivery=False))
            else:
                await self._work(hand, message)

    async def _next(self) -> Delivery | None:
        try:
            message = await self._consumer.get(LOOK_S)
        except StoreError:  # the consumer has logged it, and goes on
            self.answered = False
            await self._clock.sleep(RETRY_S)
            self._last_s = self._clock.monotonic()
            return None
        self.answered = True
        if message is None:
            self._empty_s = self._clock.monotonic()
        return message

    async def _work(self, hand: Hand, message: Delivery) -> None:
        """Wait for a hand, and settle its message."""
        kept = self._queue._kept(message, self._visibility_s)  # noqa: SLF001 - as above
        task = asyncio.create_task(hand.work(message))
        both: list[asyncio.Future[Any]] = [task, self._over]
        try:
            while not task.done():
                try:
                    await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
                except asyncio.CancelledError:  # the program's loop ends
                    self.hurry()
                if self._over.done() and not task.done():
                    task.cancel()
                    await asyncio.wait({task})
        finally:
            kept.let_go()
        if task.cancelled() and self._over.done():
            event(_logger, "worker_stopped_function", **about(self._queue.name, message))
            # The function has seen it, so the delivery counts: its fence is used up.
            await self._settle(message, self._queue.release(message))
            return
        failure = Failure(error="CancelledError") if task.cancelled() else task.result()
        if failure is None:
            await self._settle(message, self._ack(message))
        else:
            fail = self._queue._fail  # noqa: SLF001 - as above
            await self._settle(message, fail(message, failure, self._settings.backoff))

    async def _ack(self, message: Delivery) -> None:
        try:
            await self._consumer.ack(message)
        except ClientClosed:  # the crew stops
            await self._queue.ack(message)

    async def _settle(self, message: Delivery, settle: Coroutine[Any, Any, object]) -> None:
        try:
            await settle
        except CassieqError as error:
            known = about(self._queue.name, message)
            event(_logger, "worker_not_settled", **known, error=str(error))


def _set(moment: asyncio.Future[None]) -> None:
    if not moment.done():
        moment.set_result(None)


def _raise_first(tasks: Tasks) -> None:
    for task in tasks:
        if task.done():
            task.result()


class Caller:
    """A hand that calls a function in the event loop of the program."""

    can_work = True

    def __init__(self, function: Callable[[Delivery], object]) -> None:
        self._function = function

    async def ready(self) -> bool:
        """Return True: there is nothing to prepare."""
        return True

    async def work(self, message: Delivery) -> Failure | None:
        """Call the function; a failure is logged with its traceback."""
        try:
            returned = self._function(message)
            if inspect.isawaitable(returned):
                await returned
        except Exception as error:
            failure = Failure.of(error)
            if not failure.is_asked:
                known = {"fields": {"message": message.message_id}}
                cause = error.__cause__ or error
                _logger.warning(
                    "message %s failed", message.message_id, exc_info=cause, extra=known
                )
            return failure
        return None
