"""`work` has a function called for each message of a queue, in a pool of processes.

A slot is a thread that lets one process work on one message after the other, and settles them.
While the function runs, the slot renews the message's lease, so a message comes again because its
work failed or its process died, and not because it took long.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import partial
from math import inf
from typing import Final

from cassieq_spark.client import Client
from cassieq_spark.clock import SystemClock
from cassieq_spark.entropy import system
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
from cassieq_spark.model.moments import us_of
from cassieq_spark.queue.handle import Queue
from cassieq_spark.queue.handling import Failure
from cassieq_spark.queue.message import Delivery
from cassieq_spark.worker.child import Answer
from cassieq_spark.worker.process import Process

LOOK_S: Final = 1.0
"""The time that an idle slot waits for a message before it looks after its process: an idle
consumer looks as rarely."""

RENEWED_AT: Final = 3
"""A lease is renewed when this fraction of it is left."""

RETRY_S: Final = 1.0
"""The pause after a renewal that failed."""

LONG: Final = 10
"""The visibility timeouts after which a running function is reported, and again each time that
their number has doubled."""

RESTART_S: Final = 1.0
"""The pause after a process that could not be used; it doubles with each further one."""

LONGEST_RESTART_S: Final = 30.0

SLICE_S: Final = 0.2
"""A stop is noticed within this time."""

_logger = get_logger("worker")


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkSettings:
    """Settings of a worker.

    Attributes:
        function: As ``module:function``.
        concurrency: The number of processes.
        prefetch: How many messages wait here for a free process, leased.
        visibility_s: The length of a lease, which is renewed; default: the queue's.
        timeout_s: How long the function may run for one message; then it is stopped, and has
            failed.
        grace_s: How long functions may go on after a stop.
        idle_s: End when gets were answered with no message for this long.
    """

    function: str
    concurrency: int
    prefetch: int
    visibility_s: float | None = None
    timeout_s: float = inf
    grace_s: float = 30.0
    idle_s: float = inf
    min_priority: int = 0
    backoff: Backoff = field(default_factory=Backoff)


class _Pool:
    """The state that the slots of a worker share.

    Attributes:
        changed: Set when a slot is ready, or cannot be.
        is_ready: Whether a process has found the function.
        refused: Why the last one did not.
        begun: Set when messages may be got from the consumer, or the worker stops.
        last_s: When a message came, there was something to do, or a get failed, for the last time,
            monotonic.
        empty_s: When a get was answered with nothing for the last time, monotonic.
        failure: The queue is gone.
        ends_at: The moment from which no function runs on, monotonic; infinite until a stop.
        stopped: Set when slots shall end, each when its message is settled.
    """

    def __init__(self, client: Client, queue: Queue, settings: WorkSettings) -> None:
        self.client = client
        self.queue = queue
        self.settings = settings
        self.visibility_s = settings.visibility_s or queue.settings.visibility_timeout_s
        self.consumer = queue.consumer(
            prefetch=settings.prefetch,
            visibility_timeout=self.visibility_s,
            min_priority=settings.min_priority,
        )
        self.clock = SystemClock()
        self.changed = threading.Event()
        self.is_ready = False
        self.refused: FunctionInvalid | None = None
        self.begun = threading.Event()
        self.last_s = 0.0
        self.empty_s = -inf
        self.failure: QueueDeleted | None = None
        self.ends_at = inf
        self.stopped = threading.Event()
        self.slots = [_Slot(self, number) for number in range(1, settings.concurrency + 1)]

    def about(self, message: Delivery) -> dict[str, str]:
        """Return the fields that all events about a message have."""
        return {"queue": self.queue.name, "message": message.message_id}

    def refuse(self, why: str) -> None:
        """Note that a process could not be used; without any that can, the worker ends."""
        self.refused = FunctionInvalid(why)
        self.changed.set()
        if self.is_ready:
            self.tell_of_process(str(self.refused))

    def tell_of_process(self, error: str) -> None:
        """Tell why another process is needed."""
        event(_logger, "worker_process_failed", queue=self.queue.name, error=error)

    def until_stop(self) -> float:
        """Wait for a process as long as the worker works; see `Process.answer`."""
        return -inf if self.stopped.is_set() else inf

    def watch(self, should_stop: Callable[[], object]) -> None:
        """Let the slots get messages; return when the worker should stop, or is idle for too long.

        It is idle when a slot waits in vain, and none has a message in hand, which may be given
        back, and come again. A process that begins is no work: it may never have begun. While the
        store is away nobody knows, so only a get that was answered ends an idle time.
        """
        self.last_s = self.clock.monotonic()
        self.begun.set()
        while not should_stop():
            self.clock.wait(SLICE_S)
            if self.failure is not None:
                raise self.failure
            states = {slot.state for slot in self.slots}
            if _State.WORKS in states or _State.WAITS not in states:
                self.last_s = self.clock.monotonic()
            elif self.empty_s - self.last_s >= self.settings.idle_s:
                return

    def stop(self) -> None:
        """Let no slot begin with a further message; functions have the grace time from now on."""
        if not self.stopped.is_set():
            self.ends_at = self.clock.monotonic() + self.settings.grace_s
            self.stopped.set()
            self.begun.set()

    def end(self, kind: type[BaseException] | None) -> None:
        """Return when all processes are gone."""
        self.stop()
        if kind is not None and not issubclass(kind, Exception):
            self.ends_at = -inf  # a second signal: nobody wants to wait
        try:
            self._join()
        except BaseException:
            self.ends_at = -inf
            self._join()
            raise

    def _join(self) -> None:
        for slot in self.slots:
            if slot.thread.ident is not None:
                slot.thread.join()


class _State(Enum):
    """The state of a slot: its process begins, it waits for a message, or it has one in hand."""

    BEGINS = auto()
    WAITS = auto()
    WORKS = auto()


class _Slot:
    """A thread with one process, which is replaced when it dies."""

    def __init__(self, pool: _Pool, number: int) -> None:
        self._pool = pool
        self._process: Process | None = None
        self.state = _State.BEGINS
        self.thread = threading.Thread(target=self._run, name=f"cassieq-worker-{number}")

    def _run(self) -> None:
        stopped, attempt = self._pool.stopped, 0
        try:
            while not stopped.is_set():
                if (process := self._begin()) is not None:
                    self._serve(process)
                    attempt = 0
                else:
                    stopped.wait(min(LONGEST_RESTART_S, system.jitter(RESTART_S, attempt)))
                    attempt += 1
        except QueueDeleted as error:
            self._pool.failure = error
        finally:
            if self._process is not None:
                self._process.end()

    def _begin(self) -> Process | None:
        """Return a process that has found the function; None: none has, or the worker stops."""
        pool, name = self._pool, self._pool.settings.function
        self.state = _State.BEGINS
        try:
            process = self._process = Process(name, pool.clock)
        except OSError as error:
            pool.refuse(f"no process could be started for {name!r}: {error}")
            return None
        found = process.answer(pool.until_stop)
        if found == Answer():
            pool.is_ready = True
            pool.changed.set()
            return process
        self._drop(process)
        if found is not None:
            died = f"the process that imports {name!r} ended with exit code {found.exit_code}"
            pool.refuse(found.refused or died)
        return None

    def _drop(self, process: Process) -> None:
        process.kill()
        self._process = None

    def _serve(self, process: Process) -> None:
        """Work on messages until the process has to be replaced, or the worker stops."""
        pool = self._pool
        pool.begun.wait()
        while not pool.stopped.is_set():
            self.state = _State.WAITS
            message = self._next()
            if message is None:
                if process.is_alive:
                    continue
                pool.tell_of_process("it ended while it was idle")
                break
            pool.last_s = pool.clock.monotonic()
            self.state = _State.WORKS
            if pool.stopped.is_set():
                # Nobody has seen it: another worker gets it at once.
                self._release(message, count_delivery=False)
                return
            if not process.send(message):
                self._release(message, count_delivery=False)
                break
            if not self._work(process, message):
                break
        else:
            return
        self._drop(process)

    def _next(self) -> Delivery | None:
        pool = self._pool
        try:
            message = pool.consumer.get(LOOK_S)
        except ClientClosed:  # the worker stops
            return None
        except QueueDeleted:
            raise
        except StoreError:  # the consumer has logged it, and goes on
            pool.stopped.wait(RETRY_S)
            pool.last_s = pool.clock.monotonic()
            return None
        if message is None:
            pool.empty_s = pool.clock.monotonic()
        return message

    def _work(self, process: Process, message: Delivery) -> bool:
        """Wait for the function, and settle its message. False: the process cannot be used on."""
        pool, lease = self._pool, _Lease(self._pool, message)
        began = pool.clock.monotonic()
        times_out_at = began + pool.settings.timeout_s

        def wake() -> float:
            until = min(times_out_at, pool.ends_at)
            return -inf if until <= pool.clock.monotonic() else min(until, lease.see_to())

        found = process.answer(wake)
        if found is None:
            process.kill()
            took_s = pool.clock.monotonic() - began
            if times_out_at <= pool.ends_at:
                late = Failure(error=f"stopped after {took_s:.1f} s: --timeout is over")
                self._failed(message, late)
            else:
                event(_logger, "worker_stopped_function", **pool.about(message))
                # The function has seen it, so the delivery counts: its fence is used up.
                self._release(message)
        elif found.exit_code is not None:
            died = Failure(error=f"the process ended with exit code {found.exit_code}")
            self._failed(message, died)
        elif found.failure is not None:
            self._failed(message, found.failure)
        else:
            self._settle(message, partial(self._ack, message))
        return found is not None and found.exit_code is None

    def _failed(self, message: Delivery, failure: Failure) -> None:
        pool = self._pool
        fail = pool.queue._fail  # noqa: SLF001 - the engine's part of it
        self._settle(message, partial(fail, message, failure, pool.settings.backoff))

    def _release(self, message: Delivery, *, count_delivery: bool = True) -> None:
        release = partial(self._pool.queue.release, count_delivery=count_delivery)
        self._settle(message, partial(release, message))

    def _ack(self, message: Delivery) -> None:
        try:
            self._pool.consumer.ack(message)
        except ClientClosed:  # the worker stops
            self._pool.queue.ack(message)

    def _settle(self, message: Delivery, settle: Callable[[], object]) -> None:
        try:
            settle()
        except CassieqError as error:
            event(_logger, "worker_not_settled", **self._pool.about(message), error=str(error))


class _Lease:
    """The lease of one message, renewed while its function runs; a long run is reported.

    The function may hang, and its message is kept from others.
    """

    def __init__(self, pool: _Pool, message: Delivery) -> None:
        self._pool = pool
        self._message = message
        left_s = (us_of(message.visible_until) - pool.client.now_us()) / 1e6
        self._began = pool.clock.monotonic()
        self._renew_at = self._began + left_s - pool.visibility_s / RENEWED_AT
        self._tell_at = self._began + LONG * pool.visibility_s

    def see_to(self) -> float:
        """Do what is due, and return when something is due next, monotonic."""
        now = self._pool.clock.monotonic()
        if now >= self._tell_at:
            age_s = now - self._began
            about = self._pool.about(self._message)
            event(_logger, "worker_function_runs", **about, age_s=round(age_s, 1))
            self._tell_at = now + age_s
        if now >= self._renew_at:
            self._renew_at = self._renewed()
        return min(self._renew_at, self._tell_at)

    def _renewed(self) -> float:
        """Renew the lease, and return when that is due again."""
        pool, about = self._pool, self._pool.about(self._message)
        try:
            # The timeout of the function is not noticed meanwhile.
            with pool.client.store.session.within(pool.visibility_s / RENEWED_AT / 2):
                pool.queue.extend(self._message, pool.visibility_s)
        except ReceiptExpired:
            event(_logger, "worker_lease_lost", **about)
            return inf
        except CassieqError as error:
            event(_logger, "worker_lease_failed", **about, error=str(error))
            return pool.clock.monotonic() + RETRY_S
        return pool.clock.monotonic() + pool.visibility_s * (1 - 1 / RENEWED_AT)


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
    pool = _Pool(client, client.queue(queue), settings)
    with ExitStack() as stack:
        stack.push(lambda kind, *_: pool.end(kind))
        for slot in pool.slots:
            slot.thread.start()
        while not pool.is_ready:
            if should_stop():
                return
            if pool.refused is not None:
                raise pool.refused
            pool.changed.wait(SLICE_S)
        on_start()
        stack.enter_context(pool.consumer)
        stack.callback(pool.stop)  # first of all: the consumer's end may wait for Cassandra
        pool.watch(should_stop)
