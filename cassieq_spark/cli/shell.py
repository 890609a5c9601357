"""Speak to a shell: results, errors, progress, signals, and the exit code at the end.

Results go to standard output, all else to standard error. Errors of the library name options as a
shell does (`Spelling.SHELL`), but speak Python else: they name calls
(``client.create_queue('orders')``) and arguments (``delay is 'x'``). Whoever works in a shell types
none of these, so errors are printed in the words of a shell.
"""

from __future__ import annotations

import io
import json
import os
import re
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import FrameType
from typing import Annotated, Any, Final, Self, TextIO

import typer
from rich.console import Console
from rich.filesize import decimal
from rich.progress import BarColumn, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Shown
from rich.table import Column, Table
from rich.text import Text
from typer.core import TyperGroup

from cassieq_spark.cli.flags import Flags, flag_name
from cassieq_spark.clock import Clock
from cassieq_spark.errors import CassieqError, OutputFailed, UsageError
from cassieq_spark.repair.report import Progress

_COMMANDS: Final = {
    "alter_queue": "queue alter",
    "bootstrap": "bootstrap",
    "create_queue": "queue create",
    "queue": "queue show",
    "queues": "queue list",
    "verify": "repair --verify",
}
_CALL: Final = re.compile(r"client\.(\w+)\(([^()]*)\)")
_WORDS: Final = {
    "Open it with client.": "Show it with: client.",
    "open it again with client.queue(), or restart the query": "run the command again",
    "(name, dedup_window=3600)": "(QUEUE, --dedup-window 1h)",
    "dead_letter_queue=...": "--dead-letter-queue QUEUE",
    "replication=...": "--replication DATACENTER=N",
    "with force=True": "with --force",
    "queue with 'to'": "queue with --to",
    "seconds or timedelta": "seconds, or text such as '30s' or '5m'",
}

_FIRST: Final = re.compile(
    r"^(\[cassieq:\w+\] )(consumer|dedup_key|delay|group|key|max_messages|message_id|priority|"
    r"min_priority|tag|to|ttl|visibility_timeout|wait) is "
)
"""Arguments that commands pass on as they were given. An error about one begins with its name."""


def in_shell(text: str) -> str:
    """Replace calls and arguments of Python by the commands and flags that do the same."""
    for python, shell in _WORDS.items():
        text = text.replace(python, shell)
    text = _CALL.sub(_command, text)
    return _FIRST.sub(lambda found: f"{found[1]}{flag_name(found[2])} is ", text)


def _command(call: re.Match[str]) -> str:
    """The command that does the same as a call of the client; without one, the call."""
    if call[1] not in _COMMANDS:
        return call[0]
    return " ".join(["cassieq", _COMMANDS[call[1]], *re.findall(r"[^\s,']+", call[2])])


WIDEST: Final = 1_000_000
"""The columns of a line that goes to a program: it is never folded."""


def print_json(*results: Mapping[str, Any]) -> None:
    """Print JSON lines and write them at once, so that the reader of a pipe need not wait."""
    say(*map(json.dumps, results))


@dataclass(frozen=True, slots=True, kw_only=True)
class Out:
    """Output of a command's results: JSON, one object a line, or text for people."""

    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, one object per line.")] = (
        False
    )

    def result(self, result: Mapping[str, Any]) -> None:
        """Print one result: a line of JSON, or names and values without the empty ones."""
        if self.as_json:
            print_json(result)
            return
        shown = {name: value for name, value in _flat(result).items() if value not in (None, "")}
        width = max(map(len, shown), default=0) + 2
        say(*(f"{name:<{width}}{value}" for name, value in shown.items()))

    def lines(self, results: Iterable[Mapping[str, Any]], texts: Iterable[str]) -> None:
        """Print a line for each result: its JSON, or its text."""
        if self.as_json:
            print_json(*results)
        else:
            say(*texts)

    def all(
        self,
        results: Sequence[Mapping[str, Any]],
        *,
        show: Callable[[Any], object] = lambda value: "" if value is None else value,
    ) -> None:
        """Print results of one kind: lines of JSON, or a table; nothing if there are none.

        Args:
            show: Makes a cell of a value.
        """
        if self.as_json:
            print_json(*results)
        elif results:
            titles = [name.upper().replace("_", " ") for name in results[0]]
            print_rows(titles, [list(map(show, one.values())) for one in results])


Printed = Annotated[Out, Flags.of(Out)]
"""The output of a command's results, by one flag."""


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


def print_problem(problem: object) -> None:
    """Print an error or another problem in the words of a shell, and plain: it may hold paths."""
    print_note(in_shell(str(problem)))


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
    r"""Return the text as one line that gives a terminal no orders: ESC becomes ``\x1b``."""
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
    """The progress of one piece of work; its methods are the callbacks of the library."""

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


FAILED: Final = 1
USAGE: Final = 2
NOTHING: Final = 3
"""The command asked for messages, and there were none, or fewer than it asked for."""

OF_SIGNAL: Final = 128
"""Shells count from here: 130 after Ctrl-C, 141 if nobody reads standard output any more."""

EXIT_CODES: Final[dict[int, str]] = {
    0: "done",
    FAILED: "failed: the error is on standard error, with its code in brackets; `ack`: a receipt "
    "was stale or invalid, or its outcome is unknown; `repair` and `redrive`: something could not "
    "be done; `purge`, `delete` and `redrive`: you said no",
    USAGE: "usage: an unknown flag or option, or a value that is not allowed; nothing was done",
    NOTHING: "nothing there: `get`, `peek` and `dead show` found no message, or `load get` "
    "found fewer than `--count`",
    OF_SIGNAL + signal.SIGINT: "interrupted by Ctrl-C before it was done",
    OF_SIGNAL + signal.SIGPIPE: "the reader of standard output has gone away",
    OF_SIGNAL + signal.SIGTERM: "terminated before it was done",
}
"""The meaning of each code, for the guide; a test compares them."""

SLICE_S: Final = 0.1
"""The time after which a pause notices a signal."""


class Commands(TyperGroup):
    """A command group whose errors are exit codes, and those of the groups in it."""

    def invoke(self, ctx: Any) -> Any:
        """Run a command."""
        with exit_codes():
            return super().invoke(ctx)


@contextmanager
def exit_codes() -> Iterator[None]:
    """Report the error that ends the block, and exit with its code."""
    try:
        yield
    except (CassieqError, BrokenPipeError) as error:
        raise typer.Exit(ended_by(error)) from error
    except KeyboardInterrupt as error:
        # Only that of `Interrupt` names a signal, which may be another than Ctrl-C.
        raise typer.Exit(OF_SIGNAL + next(iter(error.args), signal.SIGINT)) from error


def run_job(job: typer.Typer, arguments: Sequence[str] | None) -> int:
    """Run a program that has one command, with the arguments of this process or others.

    Returns:
        Its exit code.
    """
    try:
        job(args=arguments)
    except SystemExit as ended:
        return int(ended.code or 0)
    return 0


@contextmanager
def extra(name: str, user: str, kind: type[UsageError] = UsageError) -> Iterator[None]:
    """Say how to install what a command needs, if an import in the block fails.

    Args:
        name: The extra of this package that has it.
        user: What needs it, as a subject with its verb.
    """
    try:
        yield
    except ImportError as error:
        raise kind(
            f"package {error.name!r} is not installed, and {user} it. Run: "
            f"pip install 'cassieq_spark[{name}]'"
        ) from error


def ended_by(error: CassieqError | OSError, tell: Callable[[str], None] = print_problem) -> int:
    """Report what has ended a command, and return its exit code.

    Args:
        error: Any that is not ours comes from standard output itself.
        tell: Prints it on standard error.
    """
    if isinstance(error, BrokenPipeError):
        silence(sys.stdout)
        return OF_SIGNAL + signal.SIGPIPE
    # A timeout of Cassandra is an OSError, too.
    said = error if isinstance(error, CassieqError) else cannot_write("standard output", error)
    if isinstance(said, OutputFailed):
        silence(sys.stdout)
    tell(str(said))
    return USAGE if isinstance(said, UsageError) else FAILED


class Interrupt:
    """SIGINT and SIGTERM as a flag, while a command holds leases.

    An exception in the middle of a get would lose the receipts of what it had just claimed, and
    with them the means to give it back. A second signal is that exception: the user insists.
    """

    def __init__(self) -> None:
        self.number: int | None = None
        self._before: dict[int, Any] = {}

    def __bool__(self) -> bool:
        """Whether a signal came."""
        return self.number is not None

    def __enter__(self) -> Self:
        """Install the signal handlers."""
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *exc: object) -> None:
        """Restore the former handlers."""
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def pause_until(self, clock: Clock, moment_s: float) -> None:
        """Return at a monotonic moment, or when a signal comes."""
        # Not Event.wait: a handler that sets an event while its waiter holds the lock hangs.
        while not self and (left_s := moment_s - clock.monotonic()) > 0:
            clock.wait(min(left_s, SLICE_S))

    def end(self, *, is_done: bool) -> None:
        """Exit with the signal's code, if one came before the command was done."""
        if self.number is not None and not is_done:
            raise typer.Exit(OF_SIGNAL + self.number)

    def _note(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002 - how it is called
        if self.number is not None:
            raise KeyboardInterrupt(number)
        self.number = number
