"""`Slot` is a thread that lets one process work on one message after the other, and settles them.

While the function runs, the slot renews the message's lease, so a message comes again because its
work failed or its process died, and not because it took long.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from math import inf
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Final, assert_never

from cassieq_spark.entropy import generator, system
from cassieq_spark.errors import CassieqError, ClientClosed, FunctionInvalid, ReceiptExpired
from cassieq_spark.log import event, get_logger
from cassieq_spark.queue.message import us_of
from cassieq_spark.worker.child import Done, Failed, Ready, Refused
from cassieq_spark.worker.process import LOOK_S, Died, Process

if TYPE_CHECKING:
    import random
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from cassieq_spark.clock import Clock
    from cassieq_spark.model.backoff import Backoff
    from cassieq_spark.queue.consumer import Consumer
    from cassieq_spark.queue.handle import Queue
    from cassieq_spark.queue.message import Message

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
class Task:
    """What all slots do with a message.

    Attributes:
        visibility_s: A renewed lease ends so much later.
        timeout_s: A function that runs for longer is stopped, and has failed.
        now_us: The cluster's time.
        within: Limits what the store is asked for in a block, in seconds.
    """

    function: str
    queue: Queue
    visibility_s: float
    timeout_s: float
    backoff: Backoff
    now_us: Callable[[], int]
    within: Callable[[float], AbstractContextManager[None]]
    clock: Clock
    rng: random.Random = field(default_factory=generator)


@dataclass(slots=True, kw_only=True)
class Shared:
    """What the slots of a worker share with the thread that gets messages.

    Attributes:
        messages: Taken by whichever slot is free.
        free: As many as slots that are ready and wait. Whoever puts a message takes one of them.
        changed: Set when a slot is ready, or cannot be.
        ready: How many processes have found the function so far.
        refused: Why the last one did not.
        consumer: Set before the first message comes.
        ends_at: The moment from which no function runs on, monotonic; infinite until a stop.
        is_stopping: Slots end when their message is settled.
    """

    messages: SimpleQueue[Message] = field(default_factory=SimpleQueue)
    free: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    changed: threading.Event = field(default_factory=threading.Event)
    ready: int = 0
    refused: FunctionInvalid | None = None
    consumer: Consumer | None = None
    ends_at: float = inf
    is_stopping: bool = False


class Slot:
    """One thread with one process, which is replaced when it dies."""

    def __init__(self, task: Task, shared: Shared, number: int) -> None:
        self._task = task
        self._shared = shared
        self._clock = task.clock
        self._process: Process | None = None
        self.thread = threading.Thread(target=self._run, name=f"cassieq-worker-{number}")

    def _run(self) -> None:
        try:
            while (process := self._started()) is not None:
                self._shared.free.release()
                self._serve(process)
        finally:
            if self._process is not None:
                self._process.end()

    def _started(self) -> Process | None:
        """A process that waits for a message; None: the worker stops."""
        attempt = 0
        while not self._shared.is_stopping:
            process, failure = self._attempt()
            if process is not None:
                return process
            if failure is not None:
                self._tell(failure)
                pause_s = min(LONGEST_RESTART_S, system.jitter(RESTART_S, attempt))
                self._pause_until(self._clock.monotonic() + pause_s)
                attempt += 1
        return None

    def _attempt(self) -> tuple[Process | None, FunctionInvalid | None]:
        """A process that has found the function, or why there is none."""
        name = self._task.function
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
            name = self._task.queue.name
            event(_logger, "worker_process_failed", queue=name, error=str(failure))

    def _pause_until(self, moment_s: float) -> None:
        while not self._shared.is_stopping and (left_s := moment_s - self._clock.monotonic()) > 0:
            self._clock.wait(min(left_s, 0.1))

    def _until_stop(self) -> float:
        return -inf if self._shared.is_stopping else inf

    def _serve(self, process: Process) -> None:
        """Work on messages until the process has to be replaced, or the worker stops."""
        while True:
            message = self._next()
            if message is None:
                if self._shared.is_stopping:
                    return
                if process.is_alive or not self._shared.free.acquire(blocking=False):
                    continue  # or a message is on its way to this slot
                event(
                    _logger,
                    "worker_process_failed",
                    queue=self._task.queue.name,
                    error="it ended while it was idle",
                )
                self._replace(process)
                return
            if not process.send(message):
                # Nobody has seen it: another slot, or another worker, gets it at once.
                self._release(message, is_counted=False)
                self._replace(process)
                return
            if not self._work(process, message):
                self._replace(process)
                return
            self._shared.free.release()

    def _replace(self, process: Process) -> None:
        process.kill()
        self._process = None

    def _next(self) -> Message | None:
        try:
            return self._shared.messages.get(timeout=LOOK_S)
        except Empty:
            return None

    def _work(self, process: Process, message: Message) -> bool:
        """Wait for the function, and settle its message. False: the process cannot be used on."""
        lease, age = _Renewal(self._task, message), _Age(self._task, message)
        began = self._clock.monotonic()
        times_out_at = began + self._task.timeout_s

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
                    name, number = self._task.queue.name, message.message_id
                    event(_logger, "worker_stopped_function", queue=name, message=number)
                    # The function has seen it, so the delivery counts: its fence is used up.
                    self._release(message)
                return False
            case _:
                assert_never(found)

    def _done(self, message: Message) -> None:
        consumer = self._shared.consumer
        assert consumer is not None  # noqa: S101 - the message came from it
        try:
            try:
                consumer.ack(message)
            except ClientClosed:  # the worker stops
                self._task.queue.ack(message)
        except CassieqError as error:
            self._not_settled(message, error)

    def _failed(self, message: Message, error: str) -> None:
        task = self._task
        delay_s = task.backoff.delay_s(message.delivery_count, task.rng.random())
        event(
            _logger,
            "worker_failed",
            queue=task.queue.name,
            message=message.message_id,
            deliveries=message.delivery_count,
            delay_s=round(delay_s, 1),
            error=error,
        )
        self._release(message, delay_s=delay_s)

    def _release(self, message: Message, *, delay_s: float = 0.0, is_counted: bool = True) -> None:
        try:
            self._task.queue.release(message, delay=delay_s, is_counted=is_counted)
        except CassieqError as error:
            self._not_settled(message, error)

    def _not_settled(self, message: Message, error: CassieqError) -> None:
        event(
            _logger,
            "worker_not_settled",
            queue=self._task.queue.name,
            message=message.message_id,
            error=str(error),
        )


class _Renewal:
    """Renews the lease of one message for as long as the function runs."""

    def __init__(self, task: Task, message: Message) -> None:
        self._task = task
        self._message = message
        assert message.visible_until is not None  # noqa: S101 - it was got, not peeked at
        left_s = (us_of(message.visible_until) - task.now_us()) / 1e6
        self._at = task.clock.monotonic() + left_s - task.visibility_s / RENEWED_AT

    def renewed(self) -> float:
        """Renew the lease if that is due, and return when it is due next, monotonic."""
        task, message = self._task, self._message
        if task.clock.monotonic() < self._at:
            return self._at
        try:
            # The timeout of the function is not noticed meanwhile.
            with task.within(task.visibility_s / RENEWED_AT / 2):
                task.queue.extend(message, task.visibility_s)
        except ReceiptExpired:
            event(_logger, "worker_lease_lost", queue=task.queue.name, message=message.message_id)
            self._at = inf
        except CassieqError as error:
            event(
                _logger,
                "worker_lease_failed",
                queue=task.queue.name,
                message=message.message_id,
                error=str(error),
            )
            self._at = task.clock.monotonic() + RETRY_S
        else:
            kept = 1 - 1 / RENEWED_AT
            self._at = task.clock.monotonic() + task.visibility_s * kept
        return self._at


class _Age:
    """Tells of a function that runs for long: it may hang, and its message is kept from others."""

    def __init__(self, task: Task, message: Message) -> None:
        self._task = task
        self._message = message
        self._began = task.clock.monotonic()
        self._next_s = LONG * task.visibility_s

    def told(self) -> float:
        """Tell of it if that is due, and return when it is due next, monotonic."""
        age_s = self._task.clock.monotonic() - self._began
        if age_s >= self._next_s:
            event(
                _logger,
                "worker_function_runs",
                queue=self._task.queue.name,
                message=self._message.message_id,
                age_s=round(age_s, 1),
            )
            self._next_s = 2 * age_s
        return self._began + self._next_s
