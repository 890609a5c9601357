"""``cassieq worker`` has a function called for each message of a queue, in a pool of processes."""

from __future__ import annotations

import logging
import os
from math import inf
from typing import Annotated

import typer

from cassieq_spark.cli.exits import Interrupt
from cassieq_spark.cli.flags import Connected, Seconds, Time
from cassieq_spark.cli.logs import Logged
from cassieq_spark.cli.messages import PriorityAtLeast
from cassieq_spark.cli.queue import QueueName
from cassieq_spark.model.backoff import Backoff
from cassieq_spark.options.arguments import MOST_MESSAGES
from cassieq_spark.worker.child import check_name
from cassieq_spark.worker.work import WorkSettings, work

DEFAULT = Backoff()

MOST_PROCESSES = 512


def worker(
    function: str,
    queue: QueueName,
    connection: Connected,
    logs: Logged,
    *,
    concurrency: Annotated[int | None, typer.Option(min=1, max=MOST_PROCESSES, metavar="N")] = None,
    prefetch: Annotated[int | None, typer.Option(min=1, max=MOST_MESSAGES, metavar="N")] = None,
    timeout: Annotated[float | None, Seconds(least=0.001)] = None,
    grace: Annotated[float, Seconds()] = 30.0,
    visibility_timeout: Time = None,
    idle_timeout: Time = None,
    priority_at_least: PriorityAtLeast = 0,
    backoff: Annotated[float, Seconds()] = DEFAULT.base_s,
    backoff_max: Annotated[float, Seconds()] = DEFAULT.most_s,
    jitter: Annotated[float, typer.Option(min=0, max=1, metavar="PART")] = DEFAULT.jitter,
) -> None:
    """Call a function for each message of a queue, in several processes.

    A message is acked when the function has returned. If the function raises an error, takes too
    long, or its process dies, the message comes again after a delay that grows. After the queue's
    max_deliveries it is dead. SIGTERM ends the worker with exit code 0.

    Args:
        function: The function to call with each message, as module:function. It may be async.
        concurrency: The number of processes that call the function. Default: one for each CPU.
        prefetch: How many messages wait here for a free process, hidden from others. Default: twice
            --concurrency.
        timeout: How long the function may take for a message; then its process is killed, and the
            message has failed. Default: as long as it takes.
        grace: How long running functions may go on after SIGTERM or Ctrl-C. Then they are killed,
            and their messages are given back.
        visibility_timeout: The length of a lease. It is renewed while the function runs. Default:
            the queue's timeout.
        idle_timeout: End when no message came for this long.

    Retries:
        backoff: The longest delay after the first failure of a message. It doubles with each
            further one.
        backoff_max: No delay is longer.
        jitter: The part of a delay that is random, 0 to 1.

    Example:
        cassieq worker shop.mail:send mail --concurrency 4 --timeout 1m
    """
    logs.start()
    processes = concurrency or os.cpu_count() or 1
    settings = WorkSettings(
        function=check_name(function),
        concurrency=processes,
        prefetch=prefetch or 2 * processes,
        visibility_s=visibility_timeout,
        timeout_s=inf if timeout is None else timeout,
        grace_s=grace,
        idle_s=inf if idle_timeout is None else idle_timeout,
        priority_at_least=priority_at_least,
        backoff=Backoff(base_s=backoff, most_s=backoff_max, jitter=jitter),
    )
    with connection.open() as client, Interrupt() as interrupt:
        found = client.queue(queue).settings
        if found.dead_letter_queue is None or found.max_deliveries is None:
            logs.note(
                f"queue {queue!r} has no dead-letter queue: a message that always fails is tried "
                "for ever. Set max-deliveries and dead-letter-queue with cassieq queue alter",
                logging.WARNING,
            )
        if timeout is None:
            logs.note(
                f"There is no --timeout: a message is renewed for as long as {function} runs, for "
                "ever if it hangs"
            )
        work(
            client,
            queue,
            settings,
            should_stop=lambda: bool(interrupt),
            on_start=lambda: logs.note(f"Calling {function} with {processes} processes"),
        )
