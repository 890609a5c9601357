"""``cassieq load put`` and ``load get`` put load on a queue, at a rate, and measure it."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import quantiles
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from cassieq_spark.cli.flags import Connected, Time, command
from cassieq_spark.cli.messages import LOOK_S, MinPriority, give_back
from cassieq_spark.cli.queue import QueueName
from cassieq_spark.cli.shell import NOTHING, Interrupt, Out, Printed
from cassieq_spark.clock import Clock, SystemClock
from cassieq_spark.entropy import generator
from cassieq_spark.model.sizes import MAX_BODY_BYTES
from cassieq_spark.options.arguments import MOST_MESSAGES
from cassieq_spark.queue.handle import Queue
from cassieq_spark.queue.message import Delivery
from cassieq_spark.queue.settle.settle import AckResult

app = typer.Typer(help="Put load on a cluster, to measure it.", no_args_is_help=True)

PERMILLES = {"p50": 500, "p90": 900, "p99": 990, "p99_9": 999}

LARGEST_BATCH = 1_000
"""The batch size of `put`, unless --batch says otherwise."""

CONSUMED_AT_ONCE = 100
"""The batch size of `get`, unless --batch or --rate says otherwise."""

PER_SECOND = 20
"""Batches a second at a --rate: none waits long to fill."""

MOST_BEHIND_S = 0.5
"""The most that a consumer catches up: what an empty queue has cost is no debt of its rate."""

Rate = Annotated[
    float | None,
    typer.Option(
        min=0.001, max=MOST_MESSAGES, metavar="N", help="Messages per second. Default: no limit."
    ),
]
Batch = Annotated[int | None, typer.Option(min=1, max=MOST_MESSAGES, metavar="N")]
Count = Annotated[
    int | None,
    typer.Option(min=1, metavar="N", help="End after this many messages. Default: at Ctrl-C."),
]


@dataclass(slots=True, kw_only=True)
class Load:
    """The work done so far.

    Attributes:
        call_s: Per call, seconds.
        age_s: Per message, seconds from its put to the claim that got it, by the cluster's clock.
    """

    clock: Clock
    rate: float | None
    began_s: float = 0.0
    ended_s: float = 0.0
    forgiven_s: float = 0.0
    messages: int = 0
    size_bytes: int = 0
    call_s: array[float] = field(default_factory=lambda: array("d"))
    age_s: array[float] = field(default_factory=lambda: array("d"))
    more: dict[str, int] = field(default_factory=dict)

    def start(self) -> None:
        """Start the clock: what came before was connecting."""
        self.began_s = self.ended_s = self.clock.monotonic()

    def due_s(self) -> float:
        """Return the monotonic time at which the next batch is due."""
        if self.rate is None:
            return self.clock.monotonic()
        return self.began_s + self.forgiven_s + self.messages / self.rate

    def forgive(self) -> None:
        """Let go of all but the last half second that the work is behind its rate."""
        self.forgiven_s += max(0.0, self.clock.monotonic() - self.due_s() - MOST_BEHIND_S)

    def add(self, messages: int, size_bytes: int, since_s: float) -> None:
        """Count one call that has ended."""
        self.ended_s = self.clock.monotonic()
        self.call_s.append(self.ended_s - since_s)
        self.messages += messages
        self.size_bytes += size_bytes

    def summary(self, call: str) -> dict[str, Any]:
        """The figures at the end."""
        took_s = self.ended_s - self.began_s
        found: dict[str, Any] = {
            "messages": self.messages,
            "bytes": self.size_bytes,
            "seconds": round(took_s, 3),
            "messages_per_s": round(self.messages / took_s, 1) if took_s else 0.0,
            **self.more,
            f"{call}_ms": _percentiles(self.call_s),
        }
        if self.age_s:
            found["put_to_get_ms"] = _percentiles(self.age_s)
        return found


@command(app)
def put(
    queue: QueueName,
    connection: Connected,
    out: Printed,
    *,
    rate: Rate = None,
    count: Count = None,
    size: Annotated[int, typer.Option(min=0, max=MAX_BODY_BYTES, metavar="BYTES")] = 100,
    batch: Batch = None,
) -> None:
    """Put random messages and print how fast it went.

    With --rate, the time of a call counts from when the call was due: a slow call delays the next
    one, and a steady producer would see that delay too.

    Args:
        size: The size of a body.
        batch: The number of messages in one call. Default: 1,000, or a 20th of --rate.

    Example:
        cassieq load put orders --rate 100 --count 1000
    """
    at_once = batch or _batch_for(rate, LARGEST_BATCH)
    rng = generator()
    load = Load(clock=SystemClock(), rate=rate)
    with connection.open() as client, Interrupt() as interrupt:
        opened = client.queue(queue)
        with _measured(load, "put", count, out) as advance:
            while not interrupt and (count is None or load.messages < count):
                due_s = load.due_s()
                interrupt.pause_until(load.clock, due_s)
                if interrupt:
                    break
                number = at_once if count is None else min(at_once, count - load.messages)
                opened.put_many([rng.randbytes(size) for _ in range(number)])
                load.add(number, number * size, due_s)
                advance(number)
    interrupt.end(is_done=count is None or load.messages >= count)


@command(app)
def get(
    queue: QueueName,
    connection: Connected,
    out: Printed,
    *,
    rate: Rate = None,
    count: Count = None,
    batch: Batch = None,
    ack: bool = False,
    visibility_timeout: Time = None,
    idle_timeout: Time = None,
    min_priority: MinPriority = 0,
) -> None:
    """Get messages and print how fast it went, but not the messages.

    Without --ack, all messages are given back at the end, and each has one delivery more: at the
    queue's max_deliveries it is dead. Exit code 3 if --idle-timeout ended it before --count.

    Args:
        batch: The most messages in one get. Default: 100, or a 20th of --rate.
        ack: Ack the messages, whoever put them: they are gone, and nobody has seen them.
        visibility_timeout: How long the messages stay hidden. Default: the queue's timeout.
        idle_timeout: End when no message came for this long.

    Example:
        cassieq load get orders --rate 100 --idle-timeout 10s
    """
    at_once = batch or _batch_for(rate, CONSUMED_AT_ONCE)
    more = {"redelivered": 0, "stale": 0, "unknown": 0} if ack else {"redelivered": 0}
    load = Load(clock=SystemClock(), rate=rate, more=more)
    with connection.open() as client, Interrupt() as interrupt:
        opened = client.queue(queue)
        if visibility_timeout is None:
            visibility_timeout = opened.settings.visibility_timeout_s
        consumer = _Consumer(
            queue=opened,
            load=load,
            visibility_s=visibility_timeout,
            acks=ack,
            min_priority=min_priority,
        )
        with _measured(load, "get_and_ack" if ack else "get", count, out) as advance:
            try:
                consumer.run(interrupt, count, at_once, idle_timeout, advance)
            finally:
                give_back(opened, consumer.held)
    is_done = count is None or load.messages >= count
    interrupt.end(is_done=is_done)
    if not is_done:
        raise typer.Exit(NOTHING)


@dataclass(slots=True, kw_only=True)
class _Consumer:
    """A loop of get and ack.

    Attributes:
        held: Receipts of messages that were got and not acked: they have to be given back.
    """

    queue: Queue
    load: Load
    visibility_s: float
    acks: bool
    min_priority: int = 0
    held: list[str] = field(default_factory=list)

    def run(
        self,
        interrupt: Interrupt,
        count: int | None,
        batch: int,
        idle_s: float | None,
        advance: Callable[[int], None],
    ) -> None:
        """Run until there is enough, or nothing for too long, or a signal."""
        clock, load = self.load.clock, self.load
        last_s = clock.monotonic()
        was_empty = False
        while not interrupt and (count is None or load.messages < count):
            interrupt.pause_until(clock, load.due_s())
            if interrupt:
                return
            since_s = clock.monotonic()
            left_s = LOOK_S if idle_s is None else max(0.0, last_s + idle_s - since_s)
            found = self.queue.get(
                batch if count is None else min(batch, count - load.messages),
                wait=min(left_s, LOOK_S),
                visibility_timeout=self.visibility_s,
                min_priority=self.min_priority,
            )
            if found:
                if was_empty:
                    load.forgive()
                was_empty = False
                self.held += [one.receipt for one in found]
                if interrupt:
                    return
                last_s = self._take(found, since_s)
                advance(len(found))
                continue
            was_empty = True
            if idle_s is not None and clock.monotonic() - last_s >= idle_s:
                return

    def _take(self, found: list[Delivery], since_s: float) -> float:
        load = self.load
        if self.acks:
            verdicts = self.queue.ack_each(self.held)
            load.more["stale"] += verdicts.count(AckResult.STALE)
            load.more["unknown"] += verdicts.count(AckResult.UNKNOWN)
            # If an ack is unknown and took effect, a release is refused: so it is tried.
            pairs = zip(self.held, verdicts, strict=True)
            self.held = [one for one, verdict in pairs if verdict is AckResult.UNKNOWN]
        load.more["redelivered"] += sum(one.delivery_count > 1 for one in found)
        for one in found:
            until_claim = one.visible_until - one.enqueued_at
            load.age_s.append(max(0.0, until_claim.total_seconds() - self.visibility_s))
        load.add(len(found), sum(len(one.body) for one in found), since_s)
        return load.ended_s


@contextmanager
def _measured(
    load: Load, call: str, count: int | None, out: Out
) -> Iterator[Callable[[int], None]]:
    """Show a progress bar on a terminal, and print the summary, also after an error."""
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[speed]:,.0f}/s"),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        disable=not sys.stderr.isatty(),
    )
    load.start()
    try:
        with bar:
            task = bar.add_task(call, total=count, speed=0.0)

            def advance(number: int) -> None:
                took_s = load.clock.monotonic() - load.began_s
                speed = load.messages / took_s if took_s else 0.0
                bar.update(task, advance=number, speed=speed)

            yield advance
    finally:
        out.result(load.summary(call))


def _batch_for(rate: float | None, without: int) -> int:
    return without if rate is None else max(1, min(LARGEST_BATCH, round(rate / PER_SECOND)))


def _percentiles(of_s: array[float]) -> dict[str, float]:
    if not of_s:
        return {}
    # Between the two nearest values, in proportion; one value alone stands for all.
    is_one = len(of_s) == 1
    cuts = [of_s[0]] * 999 if is_one else quantiles(of_s, n=1_000, method="inclusive")
    found = {name: cuts[of - 1] for name, of in PERMILLES.items()} | {"max": max(of_s)}
    return {name: round(one * 1e3, 3) for name, one in found.items()}
