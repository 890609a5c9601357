"""Print what commands say: results on standard output, all else on standard error.

Errors of the library speak Python: they name calls (``client.create_queue('orders')``), options
(``option 'keyspace' of connect()``) and arguments (``delay is 'x'``). Whoever works in a shell
types none of these, so errors are printed in the words of a shell.
"""

from __future__ import annotations

import io
import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Annotated, Any, Final, TextIO

import typer
from rich.console import Console
from rich.filesize import decimal
from rich.progress import BarColumn, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Shown
from rich.table import Column, Table
from rich.text import Text

from cassieq_spark.cli.flags import SHELL_NAMES
from cassieq_spark.errors import OutputFailed
from cassieq_spark.repair.report import Progress

_CALLS: Final = (
    (r"Open it with client\.queue\('([\w./-]+)'\)", r"Show it with: cassieq queue show \1"),
    (r"open it again with client\.queue\(\), or restart the query", "run the command again"),
    (
        r"client\.alter_queue\('([\w./-]+)', dead_letter_queue=\.\.\.\)",
        r"cassieq queue alter \1 --dead-letter-queue QUEUE",
    ),
    (r"client\.alter_queue\('([\w./-]+)'\)", r"cassieq queue alter \1"),
    (
        r"client\.alter_queue\(name, dedup_window=3600\)",
        "cassieq queue alter QUEUE --dedup-window 1h",
    ),
    (r"client\.create_queue\('([\w./-]+)'\)", r"cassieq queue create \1"),
    (
        r"client\.bootstrap\(replication=\.\.\.\)",
        "cassieq bootstrap --replication DATACENTER=N",
    ),
    (r"client\.bootstrap\(\)", "cassieq bootstrap"),
    (r"client\.queues\(\)", "cassieq queue list"),
    (r"create a queue with priorities=<their number>", "create a queue with --priorities N"),
    (r"with force=True", "with --force"),
    (r"without if_(empty|unused)", r"without --if-\1"),
    (r"another dead_letter_queue, or", "another --dead-letter-queue, or"),
    (r"client\.verify\(\)", "cassieq repair --verify"),
    (r"Choose another dead_letter_queue", "Choose another --dead-letter-queue"),
    (r"name a queue with 'to'", "name a queue with --to"),
    (
        r"Set options 'username' and 'password'",
        "Set --username, and the password by the variable CASSIEQ_PASSWORD",
    ),
    (r"set 'sslVerifyHostname' to false", "give --no-ssl-verify-hostname"),
    (r"seconds or timedelta", "seconds, or text such as '30s' or '5m'"),
    (r"seconds, timedelta, or text", "seconds, or text"),
)

_ARGUMENTS: Final = {
    "consumer": "--consumer",
    "dedup_key": "--dedup-key",
    "delay": "--delay",
    "max_messages": "--max",
    "group": "--group",
    "key": "--key",
    "message_id": "--message-id",
    "priority": "--priority",
    "priority_at_least": "--priority-at-least",
    "tag": "--tag",
    "to": "--to",
    "ttl": "--ttl",
    "visibility_timeout": "--visibility-timeout",
    "wait": "--wait",
}
"""Arguments that commands pass on as they were given. An error about one begins with its name."""

_FIRST: Final = re.compile(rf"^(\[cassieq:\w+\] )({'|'.join(_ARGUMENTS)}) is ")
_OPTION: Final = re.compile(
    r"option '(\w+)'(?: of (?:connect|create_queue)\(\))?"
    r"|(?<=but )'(\w+)'(?= is not set)"
    r"|'(ssl\w+)'"
)


def in_shell(text: str) -> str:
    """Replace calls, options and arguments of Python by the commands and flags that do the same."""
    for python, shell in _CALLS:
        text = re.sub(python, shell, text)
    text = _FIRST.sub(lambda found: f"{found[1]}{_ARGUMENTS[found[2]]} is ", text)
    return _OPTION.sub(
        lambda found: SHELL_NAMES.get(found[1] or found[2] or found[3], found[0]), text
    )


WIDEST: Final = 1_000_000
"""The columns of a line that goes to a program: it is never folded."""

Json = Annotated[bool, typer.Option("--json", help="Print JSON, one object per line.")]


def print_result(result: Mapping[str, Any], *, as_json: bool) -> None:
    """Print one result: a line of JSON, or names and values without the empty ones."""
    if as_json:
        print_json(result)
        return
    shown = {name: value for name, value in _flat(result).items() if value not in (None, "")}
    width = max(map(len, shown), default=0) + 2
    say(*(f"{name:<{width}}{value}" for name, value in shown.items()))


def print_json(*results: Mapping[str, Any]) -> None:
    """Print JSON lines and write them at once, so that the reader of a pipe need not wait."""
    say(*map(json.dumps, results))


def print_all(
    results: Sequence[Mapping[str, Any]],
    *,
    as_json: bool,
    show: Callable[[Any], object] = lambda value: "" if value is None else value,
) -> None:
    """Print results of one kind: lines of JSON, or a table; nothing if there are none.

    Args:
        show: Makes a cell of a value.
    """
    if as_json:
        print_json(*results)
    elif results:
        titles = [name.upper().replace("_", " ") for name in results[0]]
        print_rows(titles, [list(map(show, one.values())) for one in results])


def print_rows(titles: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print columns: folded into the width of a terminal, but uncut for ``awk`` and ``cut``."""
    is_terminal = sys.stdout is not None and sys.stdout.isatty()
    table = Table(box=None, pad_edge=False, header_style="bold" if is_terminal else "")
    for at, title in enumerate(titles):
        is_count = is_terminal and bool(rows) and all(isinstance(row[at], int) for row in rows)
        table.add_column(Text(title), overflow="fold", justify="right" if is_count else "left")
    for row in rows:
        table.add_row(*(Text(str(cell)) for cell in row))
    # Rendered first and then said: what cannot be written must not pass for printed.
    console = Console(
        file=io.StringIO(),
        force_terminal=is_terminal,
        width=None if is_terminal else WIDEST,
    )
    with console.capture() as drawn:
        console.print(table)
    say(*(line.rstrip() for line in drawn.get().rstrip("\n").split("\n")))


def print_error(error: BaseException) -> None:
    """Print the error's own words, plain: they name paths and hold log lines."""
    print_problem(str(error))


def print_problem(text: str) -> None:
    """Print what went wrong, in the words of a shell."""
    print_note(in_shell(text))


def print_note(text: str) -> None:
    """Print a note to a waiting person; if it cannot be printed, the work goes on."""
    try:
        typer.echo(text, err=True)
    except OSError:
        silence(sys.stderr)


def say(*lines: str) -> None:
    """Print lines on standard output: when this returns, all of them are written.

    It writes bytes: if Python's stream is not buffered (``PYTHONUNBUFFERED``), its ``write``
    forgets what a short write has left out, and `get --ack` would ack what nobody has read.

    Raises:
        BrokenPipeError: Nobody reads it any more.
        OutputFailed: It cannot be written, for another reason.
    """
    if not lines:
        return
    stream: Any = sys.stdout
    if stream is None:
        raise OutputFailed(
            "standard output is closed, so there is nowhere to print to. Send it to a file, or "
            "to /dev/null"
        )
    text = "".join(f"{line}\n" for line in lines)
    try:
        if isinstance(stream, io.TextIOWrapper):
            stream.flush()
            _write(stream.buffer, text.encode(stream.encoding, stream.errors or "strict"))
        else:
            stream.write(text)
        stream.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise cannot_write("standard output", error) from error


def cannot_write(what: str, error: OSError) -> OutputFailed:
    """The error for an output that could not be written."""
    return OutputFailed(
        f"{what} cannot be written ({error.strerror or error}). What was done before stays done. "
        "Free space, or write to another place"
    )


def silence(stream: TextIO | None) -> None:
    """Discard what a stream's buffer still holds.

    Python's documentation explains it (signal, "Note on SIGPIPE"): when the interpreter ends, it
    writes the rest once more, fails again, says so, and changes the exit code.
    """
    with suppress(OSError):  # a stream that is no file has none
        if stream is not None:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _write(stream: Any, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        written = stream.write(rest)
        if written is None:
            raise BlockingIOError("the stream is not ready, and does not let us wait")
        rest = rest[written:]


def show_text(text: str) -> str:
    r"""On one line, and no orders to a terminal: what does not print is escaped, as ``\x1b``."""
    return "".join(
        one if one.isprintable() and one != "\\" else one.encode("unicode_escape").decode("ascii")
        for one in text
    )


def _flat(result: Mapping[str, Any]) -> dict[str, Any]:
    """Nested values under names with dots."""
    found: dict[str, Any] = {}
    for name, value in result.items():
        if isinstance(value, Mapping):
            found |= {f"{name}.{inner}": one for inner, one in _flat(value).items()}
        elif isinstance(value, float):
            found[name] = f"{value:,.3f}".rstrip("0").rstrip(".")
        elif isinstance(value, list | tuple):
            found[name] = ", ".join(map(str, value))
        else:
            found[name] = value
    return found


class Work:
    """What is shown of one piece of work; its methods are the callbacks of the library."""

    def __init__(self, shown: Shown, task: TaskID, what: str) -> None:
        self._shown = shown
        self._task = task
        self._what = show_text(what)
        self._at = ""

    def begin(self, step: str) -> None:
        """Show the next step; it is not known how long it takes."""
        # A new task: rich has no way to make a total unknown again.
        self._shown.remove_task(self._task)
        self._task = self._shown.add_task(show_text(step), total=None, at="")

    def on_progress(self, now: Progress) -> None:
        """Show how far a pass over queues is."""
        what = self._what
        if now.queue:
            self._at = f"{now.buckets_done:,} of {now.buckets:,} buckets"
        if now.queue and now.queues > 1:
            of_many = f"{now.queues_done + 1:,} of {now.queues:,} queues"
            what = show_text(f"{what}: {now.queue} ({of_many})")
        self._shown.update(
            self._task, description=what, completed=now.share, total=1.0, at=self._at
        )

    def on_bytes(self, done: int, total: int) -> None:
        """Show how much of a download is there."""
        at = f"{decimal(done)} of {decimal(total)}"
        self._shown.update(self._task, completed=done, total=total, at=at)


@contextmanager
def working(what: str) -> Iterator[Work]:
    """Show ``what`` with the time that has passed, on a terminal only; then nothing is left of it.

    Until the block tells how far it is, the bar only shows that work goes on. Ask no questions
    within the block.
    """
    shown = Shown(
        SpinnerColumn(),
        # Only this may be cut: a name is long, and how far it is must be seen.
        TextColumn("{task.description}", markup=False, table_column=Column(ratio=1, no_wrap=True)),
        BarColumn(bar_width=16),
        TextColumn("{task.fields[at]}", markup=False),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
        expand=True,
        disable=not sys.stderr.isatty(),
    )
    with shown:
        yield Work(shown, shown.add_task(show_text(what), total=None, at=""), what)
