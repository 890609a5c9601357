"""`work` has a function called for each message of a queue, in a pool of processes.

`Slot` is a thread that lets one process work on one message after the other, and settles them.
While the function runs, the slot renews the message's lease, so a message comes again because its
work failed or its process died, and not because it took long.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from math import inf
from typing import Final, assert_never

from cassieq_spark.client import Client
from cassieq_spark.clock import Clock, SystemClock
from cassieq_spark.entropy import generator, system
from cassieq_spark.errors import (
    CassieqError,
    ClientClosed,
    FunctionInvalid,
    QueueDeleted,
    ReceiptExpired,
    StoreError,
)
from cassieq_spark.log import event, get_logger
from cassieq_spark.model.backoff import Backoff
from cassieq_spark.queue.consumer import Consumer
from cassieq_spark.queue.handle import Queue
from cassieq_spark.queue.message import Message, us_of
from cassieq_spark.worker.child import Done, Failed, Ready, Refused
from cassieq_spark.worker.process import Died, Process

LOOK_S: Final = 1.0
"""How long an idle slot waits for a message, before it looks after its process: as rarely an idle
consumer looks."""

RENEWED_AT: Final = 3
"""A lease is renewed when this fraction of it is left."""

RETRY_S: Final = 1.0
"""The pause after a renewal that failed."""

LONG: Final = 10
"""A function that has run for so many visibility timeouts is told, and again when that doubles."""

RESTART_S: Final = 1.0
"""The pause after a process that could not be used; it doubles with each further one."""

LONGEST_RESTART_S: Final = 30.0

_logger = get_logger("worker")


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkSettings:
    """How a worker works.

    Attributes:
        function: As ``module:function``.
        concurrency: The number of processes.
        prefetch: How many messages wait here for a free process, leased.
        visibility_s: The length of a lease, which is renewed; default: the queue's.
        timeout_s: How long the function may run for one message; then it is stopped, and has
            failed.
        grace_s: How long functions may go on after a stop.
        idle_s: End when no message came for this long.
    """

    function: str
    concurrency: int
    prefetch: int
    visibility_s: float | None = None
    timeout_s: float = inf
    grace_s: float = 30.0
    idle_s: float = inf
    priority_at_least: int = 0
    backoff: Backoff = field(default_factory=Backoff)


@dataclass(slots=True, kw_only=True)
class Shared:
    """What the slots of a worker share.

    Attributes:
        visibility_s: A renewed lease ends so much later.
        changed: Set when a slot is ready, or cannot be.
        ready: How many processes have found the function so far.
        refused: Why the last one did not.
        begun: Set when messages may be got from the consumer, or the worker stops.
        last_s: When the last message came, monotonic.
        failure: The queue is gone.
        ends_at: The moment from which no function runs on, monotonic; infinite until a stop.
        stopped: Set when slots shall end, each when its message is settled.
    """

    settings: WorkSettings
    client: Client
    queue: Queue
    consumer: Consumer
    visibility_s: float
    clock: Clock
    rng: random.Random = field(default_factory=generator)
    changed: threading.Event = field(default_factory=threading.Event)
    ready: int = 0
    refused: FunctionInvalid | None = None
    begun: threading.Event = field(default_factory=threading.Event)
    last_s: float = 0.0
    failure: QueueDeleted | None = None
    ends_at: float = inf
    stopped: threading.Event = field(default_factory=threading.Event)

    def tell(self, name: str, message: Message, **more: object) -> None:
        """Log an event about a message."""
        event(_logger, name, queue=self.queue.name, message=message.message_id, **more)


class Slot:
    """One thread with one process, which is replaced when it dies.

    Attributes:
        is_busy: Whether its function runs, or its process begins.
    """

    def __init__(self, shared: Shared, number: int) -> None:
        self._shared = shared
        self._clock = shared.clock
        self._process: Process | None = None
        self.is_busy = True
        self.thread = threading.Thread(target=self._run, name=f"cassieq-worker-{number}")

    def _run(self) -> None:
        try:
            while (process := self._started()) is not None:
                self._serve(process)
        except QueueDeleted as error:
            self._shared.failure = error
        finally:
            if self._process is not None:
                self._process.end()

    def _started(self) -> Process | None:
        """A process that waits for a message; None: the worker stops."""
        attempt = 0
        self.is_busy = True
        while not self._shared.stopped.is_set():
            process, failure = self._attempt()
            if process is not None:
                return process
            if failure is not None:
                self._tell(failure)
                pause_s = min(LONGEST_RESTART_S, system.jitter(RESTART_S, attempt))
                self._shared.stopped.wait(pause_s)
                attempt += 1
        return None

    def _attempt(self) -> tuple[Process | None, FunctionInvalid | None]:
        """A process that has found the function, or why there is none."""
        name = self._shared.settings.function
        try:
            process = self._process = Process(name, self._clock)
        except OSError as error:
            return None, FunctionInvalid(f"no process could be started for {name!r}: {error}")
        found = process.began(self._until_stop)
        if isinstance(found, Ready):
            self._shared.ready += 1
            self._shared.changed.set()
            return process, None
        self._replace(process)
        match found:
            case Refused():
                return None, found.error
            case Died():
                text = f"the process that imports {name!r} ended with exit code {found.code}"
                return None, FunctionInvalid(text)
            case None:
                return None, None
            case _:
                assert_never(found)

    def _tell(self, failure: FunctionInvalid) -> None:
        self._shared.refused = failure
        self._shared.changed.set()
        if self._shared.ready:  # else the error ends the worker
            self._tell_of_process(str(failure))

    def _tell_of_process(self, error: str) -> None:
        event(_logger, "worker_process_failed", queue=self._shared.queue.name, error=error)

    def _until_stop(self) -> float:
        return -inf if self._shared.stopped.is_set() else inf

    def _serve(self, process: Process) -> None:
        """Work on messages until the process has to be replaced, or the worker stops."""
        shared = self._shared
        shared.begun.wait()
        while not shared.stopped.is_set():
            self.is_busy = False
            message = self._next()
            if message is None:
                if process.is_alive:
                    continue
                self._tell_of_process("it ended while it was idle")
                break
            shared.last_s = self._clock.monotonic()
            self.is_busy = True
            if shared.stopped.is_set():
                # Nobody has seen it: another worker gets it at once.
                self._release(message, is_counted=False)
                return
            if not process.send(message):
                self._release(message, is_counted=False)
                break
            if not self._work(process, message):
                break
        else:
            return
        self._replace(process)

    def _replace(self, process: Process) -> None:
        process.kill()
        self._process = None

    def _next(self) -> Message | None:
        try:
            return self._shared.consumer.get(LOOK_S)
        except ClientClosed:  # the worker stops
            return None
        except QueueDeleted:
            raise
        except StoreError:  # the consumer has logged it, and goes on
            self._shared.stopped.wait(RETRY_S)
            return None

    def _work(self, process: Process, message: Message) -> bool:
        """Wait for the function, and settle its message. False: the process cannot be used on."""
        lease, age = _Renewal(self._shared, message), _Age(self._shared, message)
        began = self._clock.monotonic()
        times_out_at = began + self._shared.settings.timeout_s

        def wake() -> float:
            until = min(times_out_at, self._shared.ends_at)
            if until <= self._clock.monotonic():
                return -inf
            return min(until, lease.renewed(), age.told())

        found = process.answer(wake)
        match found:
            case Done():
                self._done(message)
                return True
            case Failed():
                self._failed(message, found.error)
                return True
            case Died():
                self._failed(message, f"the process ended with exit code {found.code}")
                return False
            case None:
                process.kill()
                took_s = self._clock.monotonic() - began
                if times_out_at <= self._shared.ends_at:
                    self._failed(message, f"stopped after {took_s:.1f} s: --timeout is over")
                else:
                    self._shared.tell("worker_stopped_function", message)
                    # The function has seen it, so the delivery counts: its fence is used up.
                    self._release(message)
                return False
            case _:
                assert_never(found)

    def _done(self, message: Message) -> None:
        try:
            try:
                self._shared.consumer.ack(message)
            except ClientClosed:  # the worker stops
                self._shared.queue.ack(message)
        except CassieqError as error:
            self._shared.tell("worker_not_settled", message, error=str(error))

    def _failed(self, message: Message, error: str) -> None:
        shared, count = self._shared, message.delivery_count
        delay_s = shared.settings.backoff.delay_s(count, shared.rng.random())
        shared.tell(
            "worker_failed", message, deliveries=count, delay_s=round(delay_s, 1), error=error
        )
        self._release(message, delay_s=delay_s)

    def _release(self, message: Message, *, delay_s: float = 0.0, is_counted: bool = True) -> None:
        try:
            self._shared.queue.release(message, delay=delay_s, is_counted=is_counted)
        except CassieqError as error:
            self._shared.tell("worker_not_settled", message, error=str(error))


class _Renewal:
    """Renews the lease of one message for as long as the function runs."""

    def __init__(self, shared: Shared, message: Message) -> None:
        self._shared = shared
        self._message = message
        assert message.visible_until is not None  # noqa: S101 - it was got, not peeked at
        left_s = (us_of(message.visible_until) - shared.client.now_us()) / 1e6
        self._at = shared.clock.monotonic() + left_s - shared.visibility_s / RENEWED_AT

    def renewed(self) -> float:
        """Renew the lease if that is due, and return when it is due next, monotonic."""
        shared, message = self._shared, self._message
        if shared.clock.monotonic() < self._at:
            return self._at
        try:
            # The timeout of the function is not noticed meanwhile.
            with shared.client.store.session.within(shared.visibility_s / RENEWED_AT / 2):
                shared.queue.extend(message, shared.visibility_s)
        except ReceiptExpired:
            shared.tell("worker_lease_lost", message)
            self._at = inf
        except CassieqError as error:
            shared.tell("worker_lease_failed", message, error=str(error))
            self._at = shared.clock.monotonic() + RETRY_S
        else:
            kept = 1 - 1 / RENEWED_AT
            self._at = shared.clock.monotonic() + shared.visibility_s * kept
        return self._at


class _Age:
    """Tells of a function that runs for long: it may hang, and its message is kept from others."""

    def __init__(self, shared: Shared, message: Message) -> None:
        self._shared = shared
        self._message = message
        self._began = shared.clock.monotonic()
        self._next_s = LONG * shared.visibility_s

    def told(self) -> float:
        """Tell of it if that is due, and return when it is due next, monotonic."""
        age_s = self._shared.clock.monotonic() - self._began
        if age_s >= self._next_s:
            self._shared.tell("worker_function_runs", self._message, age_s=round(age_s, 1))
            self._next_s = 2 * age_s
        return self._began + self._next_s


SLICE_S: Final = 0.2
"""A stop is noticed within this time."""


def work(
    client: Client,
    queue: str,
    settings: WorkSettings,
    *,
    should_stop: Callable[[], object],
    on_start: Callable[[], None],
) -> None:
    """Work on the messages of a queue until it should stop, or none came for ``idle_s``.

    Each message is acked when the function has returned, and given back with a delay when it has
    failed. At least once: a message whose worker dies is delivered again.

    Args:
        should_stop: Asked often. Functions then have ``grace_s`` to end; the messages of those that
            do not are given back.
        on_start: Called once, when the first process has found the function.

    Raises:
        FunctionInvalid: The function cannot be used; nothing was claimed.
        QueueNotFound, QueueDeleted: The queue is not there, or no longer.
        StoreError: At the end: acks could not be stored, so their messages come again.
    """
    opened = client.queue(queue)
    visibility_s = settings.visibility_s or opened.settings.visibility_timeout_s
    consumer = opened.consumer(
        prefetch=settings.prefetch,
        visibility_timeout=visibility_s,
        consumer=None,
        priority_at_least=settings.priority_at_least,
    )
    shared = Shared(
        settings=settings,
        client=client,
        queue=opened,
        consumer=consumer,
        visibility_s=visibility_s,
        clock=SystemClock(),
    )
    slots = [Slot(shared, number) for number in range(1, settings.concurrency + 1)]
    with ExitStack() as stack:
        stack.push(lambda kind, *_: _end(shared, slots, kind))
        for slot in slots:
            slot.thread.start()
        while not shared.ready:
            if should_stop():
                return
            if shared.refused is not None:
                raise shared.refused
            shared.changed.wait(SLICE_S)
        on_start()
        stack.enter_context(consumer)
        stack.callback(_stop, shared)  # first of all: the consumer's end may wait for Cassandra
        _watch(shared, slots, should_stop)


def _watch(shared: Shared, slots: list[Slot], should_stop: Callable[[], object]) -> None:
    """Let the slots get messages; return when the worker should stop, or is idle for too long."""
    shared.last_s = shared.clock.monotonic()
    shared.begun.set()
    while not should_stop():
        shared.clock.wait(SLICE_S)
        if shared.failure is not None:
            raise shared.failure
        busy = [slot.is_busy for slot in slots]
        if all(busy):
            shared.last_s = shared.clock.monotonic()
        # What a function has in hand may be given back, and come again.
        elif not any(busy) and shared.clock.monotonic() - shared.last_s >= shared.settings.idle_s:
            return


def _stop(shared: Shared) -> None:
    """Let no slot begin with a further message; functions have the grace time from now on."""
    if not shared.stopped.is_set():
        shared.ends_at = shared.clock.monotonic() + shared.settings.grace_s
        shared.stopped.set()
        shared.begun.set()


def _end(shared: Shared, slots: list[Slot], kind: type[BaseException] | None) -> None:
    """Return when all processes are gone."""
    _stop(shared)
    if kind is not None and not issubclass(kind, Exception):
        shared.ends_at = -inf  # a second signal: nobody wants to wait
    try:
        _join(slots)
    except BaseException:
        shared.ends_at = -inf
        _join(slots)
        raise


def _join(slots: list[Slot]) -> None:
    for slot in slots:
        if slot.thread.ident is not None:
            slot.thread.join()
