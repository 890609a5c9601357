"""``cassieq dead`` lists, shows and redrives dead letters."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from cassieq_spark.cli.complete import queue_names
from cassieq_spark.cli.exits import FAILED, NOTHING, Commands
from cassieq_spark.cli.flags import connected
from cassieq_spark.cli.messages import show_body
from cassieq_spark.cli.output import (
    Json,
    print_json,
    print_problem,
    print_result,
    print_rows,
    show_text,
)
from cassieq_spark.cli.progress import working
from cassieq_spark.cli.queue import QueueName, Yes, make_sure
from cassieq_spark.cli.settings import Connection
from cassieq_spark.clock import SystemClock
from cassieq_spark.model.dead_letter import headers_of
from cassieq_spark.options import arguments
from cassieq_spark.queue.inspect.letters import KEYS, conditions, letter_as_object
from cassieq_spark.queue.message import show_time, time_of

if TYPE_CHECKING:
    from cassieq_spark.client import Client
    from cassieq_spark.queue.message import Message
    from cassieq_spark.repair.progress import OnProgress
    from cassieq_spark.repair.report import Redriven

MOST_SHOWN: Final = 120
"""The most characters of a body in a table, unless --body asks for all."""

app = typer.Typer(help="Show dead letters, and redrive them.", cls=Commands)

Where = Annotated[
    list[str] | None,
    typer.Option(
        metavar="KEY=VALUE",
        help=f"Only the messages that match; repeatable. Keys: {KEYS}. A message must match every "
        "key that is given, by one of its values. An empty value matches messages without "
        "one.",
    ),
]
Before = Annotated[
    str | None,
    typer.Option(
        metavar="TIME",
        help="Only messages that died before this time: 2026-11-21T13:00, UTC, or 5m for five "
        "minutes ago.",
    ),
]
After = Annotated[
    str | None,
    typer.Option(
        metavar="TIME",
        help="Only messages that died at this time or later: 2026-11-21T13:00, UTC, or 5m for five "
        "minutes ago.",
    ),
]


@app.command("list")
@connected
def list_letters(
    connection: Connection,
    queue: Annotated[
        str | None,
        typer.Argument(
            metavar="QUEUE",
            help="Default: every dead-letter queue of this data centre.",
            autocompletion=queue_names,
        ),
    ] = None,
    *,
    as_json: Json = False,
) -> None:
    """Count the visible dead letters by source queue and reason. This reads each of them."""
    with connection.open() as client:
        found = [
            one
            for name in ([queue] if queue is not None else _dead_letter_queues(client))
            for one in _counts(client, name)
        ]
    if as_json:
        print_json(*found)
    elif found:
        print_rows(
            ["QUEUE", "SOURCE QUEUE", "REASON", "MESSAGES", "FIRST DEATH", "LAST DEATH"],
            [[_cell(value) for value in one.values()] for one in found],
        )


@app.command()
@connected
def show(
    queue: QueueName,
    connection: Connection,
    *,
    where: Where = None,
    before: Before = None,
    after: After = None,
    limit: Annotated[int, typer.Option(metavar="N", help="The most messages to show.")] = 20,
    body: Annotated[
        bool,
        typer.Option("--body", help="Show whole bodies, not only their first lines."),
    ] = False,
    as_json: Json = False,
) -> None:
    """Show dead letters, and leave them in the queue. Exit code 3 if there is none.

    Of a body it shows the size in bytes, and the first line; --json always has all of it.
    """
    is_wanted = _conditions(where, before, after)
    at_most = arguments.count("--limit", limit)
    with connection.open() as client:
        found = list(islice(filter(is_wanted, client.browse(queue)), at_most))
    if as_json:
        print_json(*map(letter_as_object, found))
    elif found:
        print_rows(
            [
                *("MESSAGE ID", "SOURCE QUEUE", "REASON", "DELIVERIES"),
                *("FIRST", "LAST", "TAG", "BYTES", "BODY"),
            ],
            [_row(message, is_whole=body) for message in found],
        )
    if not found:
        raise typer.Exit(NOTHING)


@app.command()
@connected
def redrive(
    queue: QueueName,
    connection: Connection,
    *,
    where: Where = None,
    before: Before = None,
    after: After = None,
    to: Annotated[
        str | None,
        typer.Option(
            metavar="QUEUE",
            help="The queue to send them to. Default: each dead letter goes to the queue that it "
            "came from.",
            autocompletion=queue_names,
        ),
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(metavar="N", help="The most messages to redrive. The lowest ids come first."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say what would be done.")
    ] = False,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Send dead letters back to the queue that they came from, or to another queue.

    Each is sent once, even if a process dies. Messages that a consumer holds stay. Exit code 1 if
    something could not be done: standard error says what.
    """
    is_wanted = _conditions(where, before, after) if where or before or after else None
    at_most = None if limit is None else arguments.count("--limit", limit)
    with connection.open() as client:

        def run(*, dry: bool, on_progress: OnProgress | None = None) -> Redriven:
            return client.redrive(
                queue,
                where=is_wanted,
                to=to,
                at_most=at_most,
                dry_run=dry,
                on_progress=on_progress,
            )

        if not (yes or dry_run):
            make_sure(_question(queue, run), yes=False)
        with working(f"Redriving messages of {queue}") as work:
            done = run(dry=dry_run, on_progress=work.on_progress)
    result = done.to_dict()
    if not as_json:
        result.pop("problems")
    print_result(result, as_json=as_json)
    for problem in done.problems:
        print_problem(problem)
    if done.problems:
        raise typer.Exit(FAILED)


def _question(queue: str, run: Callable[..., Redriven]) -> str:
    if not sys.stdin.isatty():
        return f"Redrive messages of queue {queue!r}?"
    found = run(dry=True).by_target
    each = ", ".join(f"{count} to {target!r}" for target, count in found.items()) or "none"
    return f"Redrive {sum(found.values())} messages of queue {queue!r} ({each})?"


def _dead_letter_queues(client: Client) -> list[str]:
    """The dead-letter queues of this keyspace that can be read from here."""
    queues = client.queues()
    named = {one.settings.dead_letter_queue for one in queues}
    return [
        one.name for one in queues if one.name in named and one.home_datacenter == client.datacenter
    ]


def _counts(client: Client, queue: str) -> Iterator[dict[str, Any]]:
    counts: Counter[tuple[str | None, str | None]] = Counter()
    times: dict[tuple[str | None, str | None], list[datetime]] = {}
    for message in client.browse(queue):
        letter = headers_of(message.headers)
        key = (letter.source_queue, letter.reason)
        counts[key] += 1
        if letter.last_time is not None:
            seen = times.setdefault(key, [letter.last_time] * 2)
            seen[:] = [min(seen[0], letter.last_time), max(seen[1], letter.last_time)]
    for key, count in sorted(counts.items(), key=lambda item: (-item[1], str(item[0]))):
        first, last = times.get(key, (None, None))
        yield {
            "queue": queue,
            "source_queue": key[0],
            "reason": key[1],
            "messages": count,
            "first_death": show_time(first),
            "last_death": show_time(last),
        }


def first_line(message: Message) -> str:
    """The first line of a body, cut to `MOST_SHOWN` characters; the cut is marked by ``...``."""
    line = message.body.partition(b"\n")[0] if _is_text(message.body) else message.body
    shown = show_body(replace(message, body=line))
    is_cut = len(shown) > MOST_SHOWN or line != message.body
    return f"{shown[:MOST_SHOWN]}..." if is_cut else shown


def _is_text(body: bytes) -> bool:
    try:
        body.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _conditions(
    where: list[str] | None, before: str | None, after: str | None
) -> Callable[[Message], bool]:
    return conditions(where, before, after, now=time_of(SystemClock().now_us()))


def _row(message: Message, *, is_whole: bool) -> list[str]:
    letter = headers_of(message.headers)
    return [
        message.message_id,
        *(_cell(one) for one in (letter.source_queue, letter.reason, letter.deliveries)),
        *(_cell(show_time(one)) for one in (letter.first_time, letter.last_time)),
        _cell(message.tag),
        str(len(message.body)),
        show_body(message) if is_whole else first_line(message),
    ]


def _cell(value: object) -> str:
    """One word of a line, even for an empty value."""
    return "-" if value in (None, "") else show_text(str(value))
