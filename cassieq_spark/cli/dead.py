"""``cassieq dead`` lists, shows and redrives dead letters."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from functools import partial
from itertools import islice
from typing import Annotated, Any, Final

import typer

from cassieq_spark.cli import shell
from cassieq_spark.cli.flags import Connected, command, queue_names
from cassieq_spark.cli.messages import show_body
from cassieq_spark.cli.queue import QueueName, Yes, make_sure
from cassieq_spark.client import Client
from cassieq_spark.clock import SystemClock
from cassieq_spark.model.dead_letter import headers_of
from cassieq_spark.model.moments import show_time, time_of
from cassieq_spark.options import arguments
from cassieq_spark.queue.inspect.letters import KEYS, conditions, letter_as_object
from cassieq_spark.queue.message import Message
from cassieq_spark.repair.report import Redriven

MOST_SHOWN: Final = 120
"""The most characters of a body in a table, unless --body asks for all."""

app = typer.Typer(help="Show dead letters, and redrive them.")

When = Annotated[str | None, typer.Option(metavar="TIME")]
Where = Annotated[
    list[str] | None,
    typer.Option(
        metavar="KEY=VALUE",
        help=f"Only the messages that match; repeatable. Keys: {KEYS}. A message must match every "
        "key that is given, by one of its values. An empty value matches messages without "
        "one.",
    ),
]


@command(app, "list")
def list_letters(
    connection: Connected,
    out: shell.Printed,
    queue: Annotated[str | None, typer.Argument(autocompletion=queue_names)] = None,
) -> None:
    """Count the visible dead letters by source queue and reason. This reads each of them.

    Args:
        queue: The dead-letter queue. Default: all of this data centre.

    Example:
        cassieq dead list orders.dead
    """
    with connection.open() as client:
        found = [
            one
            for name in ([queue] if queue is not None else _dead_letter_queues(client))
            for one in _counts(client, name)
        ]
    out.all(found, show=_cell)


@command(app)
def show(
    queue: QueueName,
    connection: Connected,
    out: shell.Printed,
    *,
    where: Where = None,
    before: When = None,
    after: When = None,
    max_messages: Annotated[int, typer.Option(metavar="N")] = 20,
    body: bool = False,
) -> None:
    """Show dead letters, and leave them in the queue. Exit code 3 if there is none.

    It shows the size of a body in bytes, and its first line; --json always has the whole body.

    Args:
        before: Only messages that died before this time: 2026-11-21T13:00, UTC, or 5m for five
            minutes ago.
        after: Only messages that died at this time or later: 2026-11-21T13:00, UTC, or 5m for five
            minutes ago.
        max_messages: The most messages to show.
        body: Show whole bodies, not only their first lines.

    Example:
        cassieq dead show orders.dead --where reason=timeout --after 1h --body
    """
    is_wanted = conditions(where, before, after, now=time_of(SystemClock().now_us()))
    most = arguments.count("--max-messages", max_messages)
    with connection.open() as client:
        found = list(islice(filter(is_wanted, client.browse(queue)), most))
    out.all(
        [letter_as_object(one) if out.as_json else _row(one, is_whole=body) for one in found],
        show=str,
    )
    if not found:
        raise typer.Exit(shell.NOTHING)


@command(app)
def redrive(
    queue: QueueName,
    connection: Connected,
    out: shell.Printed,
    *,
    where: Where = None,
    before: When = None,
    after: When = None,
    to: Annotated[str | None, typer.Option(metavar="QUEUE", autocompletion=queue_names)] = None,
    max_messages: Annotated[int | None, typer.Option(metavar="N")] = None,
    dry_run: bool = False,
    yes: Yes = False,
) -> None:
    """Send dead letters back to the queue that they came from, or to another queue.

    Each is sent once, even if a process dies. Messages that a consumer holds stay. Exit code 1 if
    something could not be done: standard error says what.

    Args:
        before: Only messages that died before this time: 2026-11-21T13:00, UTC, or 5m for five
            minutes ago.
        after: Only messages that died at this time or later: 2026-11-21T13:00, UTC, or 5m for five
            minutes ago.
        to: The queue to send them to. Default: each dead letter goes to the queue that it came
            from.
        max_messages: The most messages to redrive. The lowest ids come first.
        dry_run: Only say what would be done.

    Example:
        cassieq dead redrive orders.dead --where tag=eu --dry-run
    """
    now = time_of(SystemClock().now_us())
    is_wanted = conditions(where, before, after, now=now) if where or before or after else None
    most = None if max_messages is None else arguments.count("--max-messages", max_messages)
    with connection.open() as client:
        run = partial(client.redrive, queue, where=is_wanted, to=to, max_messages=most)
        if not (yes or dry_run):
            make_sure(_question(queue, run), yes=False)
        with shell.working(f"Redriving messages of {queue}") as work:
            done = run(dry_run=dry_run, on_progress=work.on_progress)
    result = done.to_dict()
    if not out.as_json:
        result.pop("problems")
    out.result(result)
    for problem in done.problems:
        shell.print_problem(problem)
    if done.problems:
        raise typer.Exit(shell.FAILED)


def _question(queue: str, run: Callable[..., Redriven]) -> str:
    if not sys.stdin.isatty():
        return f"Redrive messages of queue {queue!r}?"
    found = run(dry_run=True).by_target
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
    times: dict[tuple[str | None, str | None], tuple[datetime, datetime]] = {}
    for message in client.browse(queue):
        letter = headers_of(message.headers)
        key, at = (letter.source_queue, letter.reason), letter.last_time
        counts[key] += 1
        if at is not None:
            first, last = times.get(key, (at, at))
            times[key] = min(first, at), max(last, at)
    for key, count in sorted(counts.items(), key=lambda item: (-item[1], str(item[0]))):
        seen = times.get(key, (None, None))
        yield {
            "queue": queue,
            "source_queue": key[0],
            "reason": key[1],
            "messages": count,
            "first_death": show_time(seen[0]),
            "last_death": show_time(seen[1]),
        }


def first_line(message: Message) -> str:
    """The first line of a body, cut to `MOST_SHOWN` characters; the cut is marked by ``...``."""
    line = message.body
    with suppress(UnicodeDecodeError):  # it is no text, and has no lines
        line = line.decode("utf-8").partition("\n")[0].encode()
    shown = show_body(replace(message, body=line))
    is_cut = len(shown) > MOST_SHOWN or line != message.body
    return f"{shown[:MOST_SHOWN]}..." if is_cut else shown


def _row(message: Message, *, is_whole: bool) -> dict[str, str]:
    letter = headers_of(message.headers)
    return {
        "message_id": message.message_id,
        "source_queue": _cell(letter.source_queue),
        "reason": _cell(letter.reason),
        "deliveries": _cell(letter.deliveries),
        "first": _cell(show_time(letter.first_time)),
        "last": _cell(show_time(letter.last_time)),
        "tag": _cell(message.tag),
        "bytes": str(len(message.body)),
        "body": show_body(message) if is_whole else first_line(message),
    }


def _cell(value: object) -> str:
    """Return a value as one word of a line; an empty value is a dash."""
    return "-" if value in (None, "") else shell.show_text(str(value))
