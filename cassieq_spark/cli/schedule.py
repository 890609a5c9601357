"""``cassieq schedule`` creates, lists, alters, pauses, runs, applies and deletes schedules."""

from __future__ import annotations

import inspect
import os
import tomllib
from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC
from math import inf
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from cassieq_spark.cli.flags import Connected, Flags, Seconds, command, keyword, queue_names
from cassieq_spark.cli.logs import Logged
from cassieq_spark.cli.messages import header_of, show_bytes, whole
from cassieq_spark.cli.queue import Yes, make_sure, with_resets
from cassieq_spark.cli.shell import FAILED, Interrupt, Printed, print_problem
from cassieq_spark.clock import SystemClock
from cassieq_spark.errors import CassieqError, OptionInvalid
from cassieq_spark.options import values
from cassieq_spark.schedules import ScheduleInfo, dispatching

app = typer.Typer(
    help="Create, list, show, alter, pause, resume and delete schedules, which put messages again "
    "and again.",
    no_args_is_help=True,
)

Name = Annotated[str, typer.Argument(metavar="SCHEDULE", help="The name of the schedule.")]
_MOMENT = values.moment()


_FLAGS: Final[Mapping[str, tuple[Any, str | None, str]]] = {
    "cron": (str, None, "Five fields as in crontab: minute, hour, day of month, month, weekday."),
    "timezone": (str, None, "The time zone of --cron, such as Europe/Berlin. Default: UTC."),
    "every": (str, "TIME", "The time from one message to the next: 90s, 5m, 1d."),
    "at": (str, "WHEN", "One time: 2030-01-01T09:00Z."),
    "start": (str, "WHEN", "No message before this time."),
    "end": (str, "WHEN", "No message after this time."),
    "count": (int, "N", "The most messages."),
    "jitter": (str, "TIME", "Each message is due up to so much later, the same for one time."),
    "horizon": (str, "TIME", "How far ahead messages are put, at least. Default: 1h, or less."),
    "misfire": (str, None, "What becomes of times that were missed: latest (default), all, skip."),
    "catch_up": (int, "N", "The most messages that --misfire all puts. Default: 100."),
    "body": (str, None, "The body of each message."),
    "file": (Path, None, "The file that has the body. '-' reads standard input."),
    "tag": (str, None, "The messages' tag."),
    "header": (list[str], "NAME=VALUE", "A header of the messages; repeatable."),
    "group": (str, None, "Whom the messages belong to, such as a customer."),
    "priority": (int, "N", "The messages' priority; a higher one goes out first."),
    "key": (str, None, "Messages of one key stay in one lane."),
    "ttl": (str, "TIME", "How long a message lives from when it is due."),
    "owner": (str, None, "Whoever declares the schedule in a file, see apply."),
}
"""The flags of a definition: type, metavar and help."""


def _definition(flags: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments that were given."""
    given = _converted({name: value for name, value in flags.items() if value is not None})
    if "header" in given:
        given["headers"] = dict(map(header_of, given.pop("header")))
    if "body" in given:
        if "file" in given:
            raise OptionInvalid("--body and --file were both given. Leave one out")
        given["body"] = os.fsencode(given["body"])
    if "file" in given:
        given["body"] = whole(given.pop("file"))
    return given


def _converted(given: dict[str, Any], prefix: str = "--") -> dict[str, Any]:
    """Return the arguments with times of texts."""
    for name, value in given.items():
        kind = _FLAGS[name][1] if name in _FLAGS and isinstance(value, str) else None
        if kind == "TIME":
            given[name] = Seconds().read(name, value)
        elif kind == "WHEN":
            given[name] = _MOMENT.checked(f"{prefix}{name}", value)
    return given


def _flag(name: str, kind: Any, metavar: str | None, text: str) -> inspect.Parameter:
    info = typer.Option(help=text, metavar=metavar, rich_help_panel="Definition")
    return keyword(name, Annotated[kind | None, info])


Given = Annotated[
    dict[str, Any], Flags(tuple(_flag(name, *of) for name, of in _FLAGS.items()), _definition)
]


@command(app)
def create(
    schedule: Name,
    connection: Connected,
    given: Given,
    out: Printed,
    *,
    queue: Annotated[str, typer.Option(autocompletion=queue_names)],
) -> None:
    """Create a schedule, and put its first messages. It needs --cron, --every or --at.

    Args:
        queue: The queue that the messages go to.

    Example:
        cassieq schedule create report --queue jobs --cron "30 2 * * MON-FRI" --body nightly
    """
    with connection.open() as client:
        out.result(_shown(client.schedules.create(schedule, queue=queue, **given)))


@command(app)
def alter(
    schedule: Name,
    connection: Connected,
    given: Given,
    out: Printed,
    *,
    reset: Annotated[list[str] | None, typer.Option(metavar="FLAG")] = None,
) -> None:
    """Change a schedule from now on: what was put ahead is taken back, and put as it is now.

    Args:
        reset: Reset a flag to its default, by its name without dashes; repeatable.

    Example:
        cassieq schedule alter report --cron "30 3 * * *"
    """
    resets = ["headers" if one == "header" else one.replace("-", "_") for one in reset or []]
    changes = with_resets(given, resets)
    with connection.open() as client:
        out.result(_shown(client.schedules.alter(schedule, **changes)))


@command(app)
def apply(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A file in TOML.")],
    connection: Connected,
    out: Printed,
    *,
    prune: bool = False,
    dry_run: bool = False,
) -> None:
    """Create and alter schedules until they are as a file declares. Twice changes nothing more.

    The file names its owner, and has a table [schedules.NAME] for each, with the queue and the
    flags of create; a body may be in a file beside it. Schedules of other owners, or of none, are
    left alone.

    Args:
        prune: Delete schedules of this owner that the file does not declare.
        dry_run: Show what would change, and write nothing.

    Example:
        cassieq schedule apply schedules.toml --prune --dry-run
    """
    owner, declared = _declared(file)
    with connection.open() as client:
        done = client.schedules.apply(owner, declared, prune=prune, dry_run=dry_run)
    rows = []
    for one in done:
        sides = _plain(one.before), _plain(one.after)
        changes = [f"{name}: {sides[0][name]} -> {text}" for name, text in sides[1].items()]
        found: dict[str, Any] = {"schedule": one.name, "action": one.action}
        more = {"before": sides[0], "after": sides[1]}
        rows.append({**found, **(more if out.as_json else {"changes": "; ".join(changes)})})
    out.all(rows)


def _declared(file: Path) -> tuple[str, dict[str, dict[str, Any]]]:
    """Return the owner of a file, and the arguments of its schedules by name.

    Raises:
        OptionInvalid: The file cannot be read, or has another form.
    """
    try:
        found = tomllib.loads(whole(file, "file").decode())
        owner, tables = found.pop("owner"), found.pop("schedules", {})
        declared = {name: _converted(dict(table), "") for name, table in tables.items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        if isinstance(error, CassieqError):
            raise
        raise OptionInvalid(
            f"{file} cannot be read ({type(error).__name__}: {error}). It is TOML, with an owner "
            "and a table [schedules.NAME] for each schedule"
        ) from error
    if found:
        raise OptionInvalid(
            f"{file} has {sorted(found)[0]!r}, which is neither owner nor schedules. Leave it out"
        )
    for one in declared.values():
        if isinstance(one.get("body"), str):
            one["body"] = one["body"].encode()
        if "file" in one:
            one["body"] = whole(file.parent / str(one.pop("file")), "file")
    return owner, declared


@command(app, "list")
def list_schedules(
    connection: Connected,
    out: Printed,
    queue: Annotated[str | None, typer.Argument(autocompletion=queue_names)] = None,
) -> None:
    """List the schedules of this data centre by name.

    Args:
        queue: Only those of this queue.

    Example:
        cassieq schedule list jobs
    """
    with connection.open() as client:
        found = [_shown(one) for one in client.schedules.list(queue)]
    if not out.as_json:
        names = ("schedule", "queue", "status", "when", "next_at", "missed_at")
        found = [{name: one[name] for name in names} for one in found]
    out.all(found)


@command(app)
def show(schedule: Name, connection: Connected, out: Printed) -> None:
    """Show a schedule.

    Example:
        cassieq schedule show report
    """
    with connection.open() as client:
        out.result(_shown(client.schedules.get(schedule)))


@command(app, "next")
def next_times(
    schedule: Name,
    connection: Connected,
    out: Printed,
    *,
    count: Annotated[int, typer.Option(metavar="N")] = 5,
) -> None:
    """Show the next times of a schedule, in its time zone.

    Args:
        count: How many.

    Example:
        cassieq schedule next report --count 10
    """
    with connection.open() as client:
        found = client.schedules.next_times(schedule, count)
    out.all([{"time": one.isoformat(), "utc": one.astimezone(UTC).isoformat()} for one in found])


@command(app)
def pause(schedule: Name, connection: Connected, out: Printed) -> None:
    """Pause a schedule: what was put ahead is taken back. Times until it resumes are left out.

    Example:
        cassieq schedule pause report
    """
    with connection.open() as client:
        out.result(_shown(client.schedules.pause(schedule)))


@command(app)
def resume(schedule: Name, connection: Connected, out: Printed) -> None:
    """Go on with a paused schedule, from now on.

    Example:
        cassieq schedule resume report
    """
    with connection.open() as client:
        out.result(_shown(client.schedules.resume(schedule)))


@command(app)
def delete(schedule: Name, connection: Connected, out: Printed, *, yes: Yes = False) -> None:
    """Delete a schedule. What was put ahead is taken back.

    Example:
        cassieq schedule delete report --yes
    """
    make_sure(f"Delete schedule {schedule!r}?", yes=yes)
    with connection.open() as client:
        client.schedules.delete(schedule)
    out.result({"schedule": schedule, "deleted": True})


@command(app)
def run(schedule: Name, connection: Connected, out: Printed) -> None:
    """Put a message of a schedule at once, beside those of its times. It may be paused.

    Example:
        cassieq schedule run report
    """
    with connection.open() as client:
        slot = client.schedules.run_now(schedule)
    out.result({"schedule": schedule, "slot": slot.isoformat()})


@command(app)
def backfill(
    schedule: Name,
    connection: Connected,
    out: Printed,
    *,
    begin: Annotated[str, typer.Option("--from", metavar="WHEN")],
    end: Annotated[str, typer.Option("--to", metavar="WHEN")],
) -> None:
    """Put the messages of past times once more.

    Args:
        begin: The first time: 2030-01-01T09:00Z.
        end: The last time.

    Example:
        cassieq schedule backfill report --from 2030-01-01T00:00Z --to 2030-01-02T00:00Z
    """
    times = _MOMENT.checked("--from", begin), _MOMENT.checked("--to", end)
    with connection.open() as client:
        out.result({"schedule": schedule, "put": client.schedules.backfill(schedule, *times)})


@command(app)
def dispatch(connection: Connected, logs: Logged, out: Printed, *, once: bool = False) -> None:
    """Put the messages of all schedules ahead, until SIGTERM. Gateways and workers do it, too.

    One process at a time works; the others take over if it ends.

    Args:
        once: Run one pass, whoever else works, and end. Exit code 1 if a schedule has failed.

    Example:
        cassieq schedule dispatch
    """
    logs.start()
    with connection.open() as client:
        if not once:
            with Interrupt() as interrupt, dispatching(client.schedules):
                interrupt.pause_until(SystemClock(), inf)
            return
        done = client.schedules.dispatch()
    out.result({"schedules": done.schedules, "looked_at": done.looked_at, "put": done.put})
    for name, problem in sorted(done.problems.items()):
        print_problem(f"schedule {name!r}: {problem}")
    if done.problems:
        raise typer.Exit(FAILED)


def _shown(info: ScheduleInfo) -> dict[str, Any]:
    """Return a schedule as the command line shows it."""
    plain = asdict(info)
    found: dict[str, Any] = {"schedule": plain.pop("name")}
    when = info.cron or (f"every {info.every}" if info.every else f"at {info.at}")
    found |= {"queue": plain.pop("queue"), "status": plain.pop("status"), "when": when}
    found |= _plain({name: one for name, one in plain.items() if one not in (None, {})})
    for name in ("next_at", "missed_at"):
        found.setdefault(name, None)
    return found


def _plain(values_of: Mapping[str, Any]) -> dict[str, Any]:
    """Return attributes of a schedule as the command line shows them."""
    found: dict[str, Any] = {}
    for name, value in values_of.items():
        if name == "body":
            found[name] = show_bytes(value)
        elif name in {"every", "jitter", "horizon", "ttl"}:
            found[f"{name}_s"] = None if value is None else value.total_seconds()
        elif hasattr(value, "isoformat"):
            found[name] = value.isoformat()
        else:
            found[name] = dict(value) if isinstance(value, Mapping) else value
    return found
