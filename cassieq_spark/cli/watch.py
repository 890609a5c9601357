"""``cassieq watch`` shows what is in queues, again and again."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.live import Live
from rich.table import Table

from cassieq_spark.cli.complete import queue_names
from cassieq_spark.cli.exits import Interrupt
from cassieq_spark.cli.flags import Connected
from cassieq_spark.cli.output import Json, print_error, print_json
from cassieq_spark.cli.queue import stats_of
from cassieq_spark.cli.settings import seconds
from cassieq_spark.client import Client
from cassieq_spark.clock import SystemClock
from cassieq_spark.errors import CassieqError, OptionInvalid, QueueDeleted, QueueNotFound
from cassieq_spark.queue.handle import Queue
from cassieq_spark.queue.inspect.stats import QueueStats
from cassieq_spark.queue.message import show_time, time_of

COLUMNS = ("visible", "invisible", "delayed", "dead")

SHORTEST_S = 0.1


def watch(
    connection: Connected,
    queues: Annotated[
        list[str] | None, typer.Argument(metavar="QUEUE", autocompletion=queue_names)
    ] = None,
    *,
    interval: Annotated[str, typer.Option(metavar="TIME")] = "1s",
    count: Annotated[int | None, typer.Option(min=1)] = None,
    as_json: Json = False,
) -> None:
    """Show what is in queues, again and again: a table on a terminal, JSON lines elsewhere.

    Args:
        queues: Default: all queues, including new ones.
        interval: The time from one look to the next.
        count: End after this many looks. Default: at Ctrl-C.

    Example:
        cassieq watch orders --interval 5s
    """
    interval_s = seconds("--interval", interval) or 0
    if interval_s < SHORTEST_S:
        raise OptionInvalid(f"--interval is {interval}, allowed: {SHORTEST_S} s or more")
    clock = SystemClock()
    is_table = not as_json and sys.stdout.isatty()
    with connection.open() as client, Interrupt() as interrupt, _table(is_table) as live:
        looker = _Looker(client, queues or [])
        looks = 0
        while not interrupt:
            try:
                found = looker.look()
            except CassieqError as error:
                if not error.retriable:
                    raise
                # An observer outlives what it observes: nodes come back.
                print_error(error)
            else:
                _show(found, live, show_time(time_of(clock.now_us())))
            looks += 1
            if looks == count:
                break
            # Count from the end of a look: one that takes longer than the interval is no busy loop.
            interrupt.pause_until(clock, clock.monotonic() + interval_s)
        interrupt.end(is_done=count is None or looks == count)


class _Looker:
    """The queues that are watched, opened once."""

    def __init__(self, client: Client, names: list[str]) -> None:
        self._client = client
        self._names = names
        self._opened: dict[str, Queue] = {}

    def look(self) -> dict[str, QueueStats]:
        """Return the statistics of each queue; of all queues, those being deleted are left out."""
        found = {}
        before, self._opened = self._opened, {}
        for name in self._names or [one.name for one in self._client.queues()]:
            try:
                queue = before.get(name) or self._client.queue(name)
                found[name] = queue.stats()
            except (QueueDeleted, QueueNotFound):
                if self._names:
                    raise
            else:
                self._opened[name] = queue
        return found


@contextmanager
def _table(is_wanted: bool) -> Iterator[Live | None]:
    if not is_wanted:
        yield None
        return
    # Nothing is drawn between looks: no thread draws an old look again.
    with Live(console=Console(), auto_refresh=False) as live:
        yield live


def _show(found: dict[str, QueueStats], live: Live | None, at: str | None) -> None:
    if live is None:
        print_json(*({"at": at, "queue": name, **stats_of(one)} for name, one in found.items()))
        return
    live.update(_rendered(found, at), refresh=True)


def _rendered(found: dict[str, QueueStats], at: str | None) -> Table:
    table = Table(caption=at)
    table.add_column("queue", overflow="fold")
    for name in (*COLUMNS, "oldest"):
        table.add_column(name, justify="right")
    table.add_column("consumers", overflow="fold")
    for name, one in found.items():
        numbers: list[Any] = [getattr(one, column) for column in COLUMNS]
        oldest = "" if one.oldest_age is None else f"{one.oldest_age:,.1f} s"
        holders = ", ".join(f"{who} {number:,}" for who, number in one.consumers.items())
        table.add_row(name, *(f"{number:,}" for number in numbers), oldest, holders)
    return table
