"""`work` gets messages and has a function called for each, in a pool of processes."""

from __future__ import annotations

from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING, Final

from cassieq_spark.clock import SystemClock
from cassieq_spark.errors import CassieqError, QueueDeleted, StoreError
from cassieq_spark.model.backoff import Backoff
from cassieq_spark.worker.function import check_name
from cassieq_spark.worker.slot import RETRY_S, Shared, Slot, Task

if TYPE_CHECKING:
    from collections.abc import Callable

    from cassieq_spark.client import Client
    from cassieq_spark.queue.consumer import Consumer

LOOK_S: Final = 1.0
"""A stop is noticed within this time while the queue is empty: as rarely an idle consumer looks."""

SLICE_S: Final = 0.2
"""A stop is noticed within this time while all processes are busy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkSettings:
    """How a worker works.

    Attributes:
        function: As ``module:function``.
        concurrency: The number of processes.
        prefetch: How many messages wait here for a free process, leased.
        visibility_s: The length of a lease, which is renewed; default: the queue's.
        timeout_s: How long the function may run for one message.
        grace_s: How long functions may go on after a stop.
        idle_s: End when no message came for this long.
    """

    function: str
    concurrency: int
    prefetch: int
    visibility_s: float | None = None
    timeout_s: float | None = None
    grace_s: float = 30.0
    idle_s: float | None = None
    priority_at_least: int = 0
    backoff: Backoff = field(default_factory=Backoff)


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
    task = Task(
        function=check_name(settings.function),
        queue=opened,
        visibility_s=visibility_s,
        timeout_s=inf if settings.timeout_s is None else settings.timeout_s,
        backoff=settings.backoff,
        now_us=client.now_us,
        within=client.store.session.within,
        clock=SystemClock(),
    )
    consumer = opened.consumer(
        prefetch=settings.prefetch,
        visibility_timeout=visibility_s,
        consumer=None,
        priority_at_least=settings.priority_at_least,
    )
    worker = _Worker(task, settings)
    with ExitStack() as stack:
        stack.push(worker.end)
        worker.start(should_stop)
        if should_stop():
            return
        on_start()
        stack.enter_context(consumer)
        stack.callback(worker.stop)  # first of all: the consumer's end may wait for Cassandra
        worker.run(consumer, should_stop)


class _Worker:
    """The slots, and the thread that gets messages for them."""

    def __init__(self, task: Task, settings: WorkSettings) -> None:
        self._task = task
        self._clock = task.clock
        self._settings = settings
        self._shared = Shared()
        self._slots = [
            Slot(task, self._shared, number) for number in range(1, settings.concurrency + 1)
        ]

    def start(self, should_stop: Callable[[], object]) -> None:
        """Start all processes, and wait until one has found the function."""
        for slot in self._slots:
            slot.thread.start()
        shared = self._shared
        while not should_stop() and not shared.ready:
            if shared.refused is not None:
                raise shared.refused
            shared.changed.wait(SLICE_S)

    def run(self, consumer: Consumer, should_stop: Callable[[], object]) -> None:
        """Hand messages to free slots."""
        self._shared.consumer = consumer
        idle_s = inf if self._settings.idle_s is None else self._settings.idle_s
        last_s = self._clock.monotonic()
        while not should_stop():
            if not self._shared.free.acquire(timeout=SLICE_S):
                last_s = self._clock.monotonic()  # all are at work, or begin
                continue
            try:
                message = consumer.get(min(LOOK_S, idle_s))
            except QueueDeleted:
                raise
            except StoreError:  # the consumer has logged it, and goes on
                self._shared.free.release()
                self._clock.wait(RETRY_S)
                continue
            if message is not None:
                self._shared.messages.put(message)
                last_s = self._clock.monotonic()
                continue
            self._shared.free.release()
            if self._clock.monotonic() - last_s >= idle_s and self._are_all_idle():
                return

    def stop(self) -> None:
        """Let no slot begin with a further message; functions have the grace time from now on."""
        if not self._shared.is_stopping:
            self._shared.ends_at = self._clock.monotonic() + self._settings.grace_s
            self._shared.is_stopping = True

    def end(self, kind: type[BaseException] | None, *_: object) -> None:
        """Return when all processes are gone, and what none of them took was given back."""
        self.stop()
        if kind is not None and not issubclass(kind, Exception):
            self._shared.ends_at = -inf  # a second signal: nobody wants to wait
        try:
            self._join()
        except BaseException:
            self._shared.ends_at = -inf
            self._join()
            raise

    def _join(self) -> None:
        for slot in self._slots:
            if slot.thread.ident is not None:
                slot.thread.join()
        left = []
        while not self._shared.messages.empty():
            left.append(self._shared.messages.get())
        if left:
            with suppress(CassieqError):  # else they come back when their leases run out
                self._task.queue.release(left, is_counted=False)

    def _are_all_idle(self) -> bool:
        """Whether no function runs: what it has in hand may be given back, and come again."""
        taken = 0
        while self._shared.free.acquire(blocking=False):
            taken += 1
        for _ in range(taken):
            self._shared.free.release()
        return taken == len(self._slots)
