"""``cassieq dead`` lists, shows and redrives dead letters."""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cassieq_spark.cli.exits import FAILED, NOTHING, Commands
from cassieq_spark.cli.flags import connected
from cassieq_spark.cli.messages import as_object, show_body
from cassieq_spark.cli.output import (
    Json,
    print_json,
    print_problem,
    print_result,
    print_rows,
    show_text,
    show_time,
)
from cassieq_spark.cli.queue import QueueName, Yes, make_sure
from cassieq_spark.cli.settings import Connection
from cassieq_spark.errors import OptionInvalid
from cassieq_spark.model.dead_letter import headers_of
from cassieq_spark.options import arguments

if TYPE_CHECKING:
    from cassieq_spark.client import Client
    from cassieq_spark.queue.message import Message
    from cassieq_spark.repair.report import Redriven

app = typer.Typer(help="Show dead letters, and redrive them.", cls=Commands)

KEYS = "tag, source-queue, reason, message-id, header.NAME"

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
        help="Only messages that died before this time, such as 2026-11-21T13:00, UTC.",
    ),
]
After = Annotated[
    str | None,
    typer.Option(
        metavar="TIME",
        help="Only messages that died at this time or later, such as 2026-11-21T13:00, UTC.",
    ),
]


@app.command("list")
@connected
def list_letters(
    connection: Connection,
    queue: Annotated[
        str | None,
        typer.Argument(
            metavar="QUEUE", help="Default: every dead-letter queue of this data centre."
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
    as_json: Json = False,
) -> None:
    """Show dead letters, and leave them in the queue. Exit code 3 if there is none."""
    is_wanted = conditions(where, before, after)
    at_most = arguments.count("--limit", limit)
    with connection.open() as client:
        found = list(islice(filter(is_wanted, client.browse(queue)), at_most))
    if as_json:
        print_json(*map(_as_object, found))
    elif found:
        print_rows(
            [
                *("MESSAGE ID", "SOURCE QUEUE", "REASON", "DELIVERIES"),
                *("FIRST", "LAST", "TAG", "BODY"),
            ],
            [_row(message) for message in found],
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
            help="The queue to send them to. Default: each message goes to the queue that it came "
            "from.",
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
    is_wanted = conditions(where, before, after) if where or before or after else None
    at_most = None if limit is None else arguments.count("--limit", limit)
    with connection.open() as client:

        def run(*, dry: bool) -> Redriven:
            return client.redrive(queue, where=is_wanted, to=to, at_most=at_most, dry_run=dry)

        if not (yes or dry_run):
            make_sure(_question(queue, run), yes=False)
        done = run(dry=dry_run)
    result = done.to_dict()
    if not as_json:
        result.pop("problems")
    print_result(result, as_json=as_json)
    for problem in done.problems:
        print_problem(problem)
    if done.problems:
        raise typer.Exit(FAILED)


def conditions(
    where: list[str] | None, before: str | None, after: str | None
) -> Callable[[Message], bool]:
    """Combine ``--where``, ``--before`` and ``--after`` to one condition.

    Raises:
        OptionInvalid: A key is unknown, or a time is malformed; nothing was done.
    """
    values: dict[str, set[str]] = defaultdict(set)
    for one in where or []:
        key, is_there, value = one.partition("=")
        if not is_there or not _is_key(key):
            raise OptionInvalid(
                f"--where is {show_text(one)!r}, allowed: KEY=VALUE, where KEY is one of {KEYS}"
            )
        values[key].add(value)
    end, start = _time("--before", before), _time("--after", after)

    def is_wanted(message: Message) -> bool:
        if any(_value(message, key) not in allowed for key, allowed in values.items()):
            return False
        if end is None and start is None:
            return True
        died = headers_of(message.headers).last_time
        return died is not None and (end is None or died < end) and (start is None or died >= start)

    return is_wanted


def _is_key(key: str) -> bool:
    return key in ("tag", "source-queue", "reason", "message-id") or (
        key.startswith("header.") and key != "header."
    )


def _value(message: Message, key: str) -> str:
    """The value of a key; empty if there is none."""
    letter = headers_of(message.headers)
    if key.startswith("header."):
        return message.headers.get(key.removeprefix("header."), "")
    found = {
        "tag": message.tag,
        "source-queue": letter.source_queue,
        "reason": letter.reason,
        "message-id": message.message_id,
    }[key]
    return found or ""


def _time(flag: str, given: str | None) -> datetime | None:
    if given is None:
        return None
    try:
        found = datetime.fromisoformat(given)
    except ValueError as error:
        raise OptionInvalid(
            f"{flag} is {show_text(given)!r}, allowed: a time such as 2026-11-21T13:00, which is "
            "UTC if it names no zone"
        ) from error
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


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


def _as_object(message: Message) -> dict[str, Any]:
    letter = headers_of(message.headers)
    return {
        **as_object(message),
        "source_queue": letter.source_queue,
        "reason": letter.reason,
        "deliveries": letter.deliveries,
        "first_time": show_time(letter.first_time),
        "last_time": show_time(letter.last_time),
    }


def _row(message: Message) -> list[str]:
    letter = headers_of(message.headers)
    return [
        message.message_id,
        *(_cell(one) for one in (letter.source_queue, letter.reason, letter.deliveries)),
        *(_cell(show_time(one)) for one in (letter.first_time, letter.last_time)),
        _cell(message.tag),
        show_body(message),
    ]


def _cell(value: object) -> str:
    """One word of a line, even for an empty value."""
    return "-" if value in (None, "") else show_text(str(value))
