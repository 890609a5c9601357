"""`work` has a function called for each message of a queue, in a pool of processes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from math import inf
from typing import Final

from cassieq_spark.client import Client
from cassieq_spark.clock import SystemClock
from cassieq_spark.worker.slot import Shared, Slot, WorkSettings

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
