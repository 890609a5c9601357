"""``cassieq queue``: create, list, alter, pause, purge, delete; ``bootstrap``, ``watch``."""

from __future__ import annotations

import re
import sys
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.live import Live
from rich.table import Table

from cassieq_spark.cli.flags import (
    Connected,
    Seconds,
    command,
    flag_of,
    options_of,
    queue_names,
    settings_flags,
)
from cassieq_spark.cli.shell import (
    FAILED,
    Interrupt,
    Printed,
    print_json,
    print_note,
    print_problem,
    show_text,
)
from cassieq_spark.client import Client
from cassieq_spark.clock import SystemClock
from cassieq_spark.errors import (
    CassieqError,
    OptionInvalid,
    QueueDeleted,
    QueueNotFound,
    UsageError,
)
from cassieq_spark.model.moments import show_time, time_of
from cassieq_spark.queue.admin import FIXED
from cassieq_spark.queue.find import QueueInfo
from cassieq_spark.queue.handle import Queue
from cassieq_spark.queue.inspect.stats import QueueStats

app = typer.Typer(
    help="Create, list, show, alter, pause, purge and delete queues.", no_args_is_help=True
)

_COPIES = re.compile("[0-9]{1,3}")

QueueName = Annotated[
    str,
    typer.Argument(metavar="QUEUE", help="The name of the queue.", autocompletion=queue_names),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask first.")]


def bootstrap(
    connection: Connected,
    out: Printed,
    *,
    replication: Annotated[list[str] | None, typer.Option(metavar="DATACENTER=N")] = None,
) -> None:
    """Create the keyspace and its tables if they are missing.

    Args:
        replication: The number of copies in a data centre; repeatable. Default: one copy in this
            data centre, which is only fit for trying out. A keyspace that exists keeps its
            replication, and asking for another one is an error.

    Example:
        cassieq bootstrap --replication datacenter1=3
    """
    copies = _copies_by_datacenter(replication or [])
    with connection.open() as client:
        client.bootstrap({"class": "NetworkTopologyStrategy", **copies} if copies else None)
        out.result({"keyspace": connection.value("keyspace"), "is_ready": True})


@command(app)
def create(
    queue: QueueName,
    connection: Connected,
    settings: Annotated[dict[str, Any], settings_flags()],
    out: Printed,
) -> None:
    """Create a queue, or find it if it exists with these settings; `created` says which.

    Settings without a flag come from section `queue` of the configuration file. All others have
    their defaults in a new queue, and stay as they are in one that exists.

    Example:
        cassieq queue create orders --visibility-timeout 5m --max-deliveries 5
    """
    wanted = {**connection.file.section("queue"), **settings}
    with connection.open() as client:
        found, is_new = client.find_or_create_queue(queue, **wanted)
        out.result({"queue": found.name, "created": is_new, **_settings(found)})
    if not is_new and not out.as_json:
        print_note(f"Queue {queue!r} was there already, with the settings shown")


@command(app, "list")
def list_queues(connection: Connected, out: Printed) -> None:
    """List all queues of the keyspace by name.

    Example:
        cassieq queue list --json
    """
    with connection.open() as client:
        found = client.queues()
    infos = list(map(_info, found))
    if not out.as_json:
        titles = {"queue": "queue", "created": "created_at", "datacenter": "home_datacenter"}
        infos = [{title: one[name] for title, name in titles.items()} for one in infos]
    out.all(infos)


@command(app)
def show(queue: QueueName, connection: Connected, out: Printed) -> None:
    """Show the settings of a queue, and what is in it.

    Example:
        cassieq queue show orders
    """
    with connection.open() as client:
        found = client.queue(queue)
        result = {**_settings(found), "stats": stats_of(found.stats())}
    out.result(result)


@command(app)
def alter(
    queue: QueueName,
    connection: Connected,
    settings: Annotated[dict[str, Any], settings_flags(without=FIXED)],
    out: Printed,
    *,
    reset: Annotated[list[str] | None, typer.Option(metavar="SETTING")] = None,
) -> None:
    """Change settings of a queue. Programs that have it open see them within ten seconds.

    Args:
        reset: Reset a setting to its default; repeatable.

    Example:
        cassieq queue alter orders --max-deliveries 10
    """
    changes = with_resets(settings, list(map(_setting, reset or [])))
    if not changes:
        raise UsageError(f"nothing to change in {queue!r}. Give a setting, or --reset SETTING")
    with connection.open() as client:
        out.result(_settings(client.alter_queue(queue, **changes)))


@command(app)
def scheduled(queue: QueueName, connection: Connected, out: Printed) -> None:
    """Count the messages that are scheduled, by the hour in which they fall due.

    Example:
        cassieq queue scheduled orders
    """
    with connection.open() as client:
        found = client.queue(queue).scheduled()
    out.all(
        [
            {"from": show_time(one.due_from), "priority": one.priority, "messages": one.messages}
            for one in found
        ]
    )


Paused = Annotated[
    int | None, typer.Option(show_default=False, help="Only messages of this priority.")
]


@command(app)
def pause(
    queue: QueueName, connection: Connected, out: Printed, *, priority: Paused = None
) -> None:
    """Hand out no more messages of a queue, until it is resumed. Puts and acks go on.

    Example:
        cassieq queue pause orders
    """
    with connection.open() as client:
        found = client.queue(queue)
        found.pause(priority)
        out.result({"queue": queue, "paused": found.paused()})


@command(app)
def resume(
    queue: QueueName, connection: Connected, out: Printed, *, priority: Paused = None
) -> None:
    """Hand out messages again after a pause.

    Example:
        cassieq queue resume orders
    """
    with connection.open() as client:
        found = client.queue(queue)
        found.resume(priority)
        out.result({"queue": queue, "paused": found.paused()})


@command(app)
def purge(queue: QueueName, connection: Connected, out: Printed, *, yes: Yes = False) -> None:
    """Drop all messages of a queue: visible, leased, delayed and dead.

    Example:
        cassieq queue purge orders --yes
    """
    question = f"Drop all messages of queue {queue!r}?"
    can_ask(question, yes=yes)
    with connection.open() as client:
        found = client.queue(queue)
        if not yes:
            ask(f"{_held(found.stats())} {question}")
        out.result({"queue": queue, "purged": found.purge()})


@command(app)
def delete(
    queue: QueueName,
    connection: Connected,
    out: Printed,
    *,
    if_empty: bool = False,
    if_unused: bool = False,
    force: bool = False,
    yes: Yes = False,
) -> None:
    """Delete a queue with all it holds.

    Args:
        if_empty: Delete it only if it holds no message.
        if_unused: Delete it only if no message is in flight.
        force: Delete it although other queues send their dead messages to it.

    Example:
        cassieq queue delete orders --yes
    """
    question = f"Delete queue {queue!r} with all it holds?"
    can_ask(question, yes=yes)
    with connection.open() as client:
        if not yes:
            with suppress(QueueNotFound):  # or a deletion that goes on
                question = f"{_held(client.queue(queue).stats())} {question}"
            ask(question)
        client.delete_queue(queue, force=force, if_empty=if_empty, if_unused=if_unused)
    out.result({"queue": queue, "deleted": True})


def stats_of(stats: QueueStats) -> dict[str, Any]:
    """The statistics as a flat result, for people and programs."""
    found = asdict(stats)
    found["oldest_age_s"] = found.pop("oldest_age")
    return found


def _held(stats: QueueStats) -> str:
    """Return the number of messages that would be lost, as a sentence before a question."""
    parts = {
        "visible": stats.visible,
        "in flight": stats.in_flight,
        "delayed": stats.delayed + stats.scheduled,
        "dead": stats.dead,
    }
    counts = ", ".join(f"{count:,} {what}" for what, count in parts.items() if count)
    return f"It holds {counts} messages." if counts else "It is empty."


def _settings(queue: Queue) -> dict[str, Any]:
    return {"queue": queue.name, **asdict(queue.settings)}


def _info(info: QueueInfo) -> dict[str, Any]:
    return {
        "queue": info.name,
        **asdict(info.settings),
        "home_datacenter": info.home_datacenter,
        "created_at": show_time(info.created_at),
    }


def with_resets(given: dict[str, Any], resets: list[str]) -> dict[str, Any]:
    """Return the changes of an alteration: what was given, and None for what is reset.

    Raises:
        OptionInvalid: Something is both.
    """
    if both := sorted(given.keys() & {*resets}):
        raise OptionInvalid(f"both set and reset: {', '.join(both)}. Leave one of the two out")
    return {**given, **dict.fromkeys(resets)}


def _setting(given: str) -> str:
    """Find a setting by its name or its flag's: ``max_deliveries``, ``max-deliveries``."""
    known = {option.name: option for option in options_of("queue") if option.name not in FIXED}
    name = given.removeprefix("--").replace("-", "_")
    if name not in known:
        flags = ", ".join(flag_of(option)[2:] for option in known.values())
        raise OptionInvalid(f"--reset is {show_text(given)!r}, allowed: {flags}")
    return name


def _copies_by_datacenter(given: list[str]) -> dict[str, int]:
    found: dict[str, int] = {}
    for one in given:
        datacenter, _, copies = one.rpartition("=")
        if datacenter in ("", "class") or not _COPIES.fullmatch(copies):
            raise OptionInvalid(
                f"--replication is {show_text(one)!r}, allowed: DATACENTER=N, such as "
                "'datacenter1=3'"
            )
        if datacenter in found:
            raise OptionInvalid(
                f"--replication names {datacenter!r} twice, with {found[datacenter]} and with "
                f"{int(copies)} copies. Leave one out"
            )
        found[datacenter] = int(copies)
    return found


def make_sure(question: str, *, yes: bool) -> None:
    """Ask on the terminal, unless the answer was given.

    Raises:
        UsageError: There is no terminal, and the flag ``--yes`` is missing.
    """
    can_ask(question, yes=yes)
    if not yes:
        ask(question)


def can_ask(question: str, *, yes: bool) -> None:
    """Refuse to begin if the answer was not given, and nobody can be asked.

    Raises:
        UsageError: There is no terminal, and the flag ``--yes`` is missing.
    """
    if not yes and not sys.stdin.isatty():
        raise UsageError(f"{question} There is no terminal to ask on. Confirm it with --yes")


def ask(question: str) -> None:
    """Ask on the terminal, and end the command if the answer is no."""
    if not typer.confirm(question, err=True):
        print_note("Nothing was done")
        raise typer.Exit(FAILED)


COLUMNS = ("visible", "in_flight", "delayed", "dead")


def watch(
    connection: Connected,
    out: Printed,
    queues: Annotated[
        list[str] | None, typer.Argument(metavar="QUEUE", autocompletion=queue_names)
    ] = None,
    *,
    interval: Annotated[float, Seconds(least=0.1)] = 1.0,
    count: Annotated[int | None, typer.Option(min=1)] = None,
) -> None:
    """Show what is in queues, again and again: a table on a terminal, JSON lines elsewhere.

    Args:
        queues: The queues to show. Default: all queues, including new ones.
        interval: The time from one look to the next.
        count: End after this many looks. Default: at Ctrl-C.

    Example:
        cassieq watch orders --interval 5s
    """
    clock = SystemClock()
    is_table = not out.as_json and sys.stdout.isatty()
    with connection.open() as client, Interrupt() as interrupt, _table(is_table) as live:
        opened: dict[str, Queue] = {}
        looks = 0
        while not interrupt:
            try:
                found = look(client, queues or [], opened)
            except CassieqError as error:
                if not error.retriable:
                    raise
                # An observer outlives what it observes: nodes come back.
                print_problem(error)
            else:
                _show(found, live, show_time(time_of(clock.now_us())))
            looks += 1
            if looks == count:
                break
            # Count from the end of a look: one that takes longer than the interval is no busy loop.
            interrupt.pause_until(clock, clock.monotonic() + interval)
        interrupt.end(is_done=count is None or looks == count)


def look(client: Client, names: list[str], opened: dict[str, Queue]) -> dict[str, QueueStats]:
    """Return the statistics of each queue; of all queues, those being deleted are left out.

    Args:
        names: Empty: all queues.
        opened: The queues of the look before; afterwards those of this one.
    """
    found = {}
    before = opened.copy()
    opened.clear()
    for name in names or [one.name for one in client.queues()]:
        try:
            queue = before.get(name) or client.queue(name)
            found[name] = queue.stats()
        except (QueueDeleted, QueueNotFound):
            if names:
                raise
        else:
            opened[name] = queue
    return found


def _table(is_wanted: bool) -> AbstractContextManager[Live | None]:
    # Nothing is drawn between looks: no thread draws an old look again.
    return Live(console=Console(), auto_refresh=False) if is_wanted else nullcontext()


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
