"""Print what commands say: results on standard output, all else on standard error."""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Annotated, Any, Final, TextIO

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from cassieq_spark.cli.in_shell import in_shell
from cassieq_spark.errors import OutputFailed

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
