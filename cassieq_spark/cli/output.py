"""What commands print: results on standard output, all else on standard error."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any

import typer

Json = Annotated[bool, typer.Option("--json", help="Print JSON, an object a line.")]


def print_result(result: Mapping[str, Any], *, as_json: bool) -> None:
    """One result: a line of JSON, or names and values without the empty ones."""
    if as_json:
        print_json(result)
        return
    shown = {name: value for name, value in _flat(result).items() if value not in (None, "")}
    width = max(map(len, shown), default=0) + 2
    for name, value in shown.items():
        typer.echo(f"{name:<{width}}{value}")


def print_json(*results: Mapping[str, Any]) -> None:
    """JSON lines, written at once: whoever reads the other end of a pipe need not wait."""
    if results:
        typer.echo("\n".join(json.dumps(one) for one in results))


def print_rows(titles: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Columns; never cut to a terminal's width, so that ``awk`` and ``cut`` find all of them."""
    lines = [list(titles), *([str(cell) for cell in row] for row in rows)]
    widths = [max(len(line[at]) for line in lines) for at in range(len(titles))]
    for line in lines:
        cells = (f"{cell:<{width}}" for cell, width in zip(line, widths, strict=True))
        typer.echo("  ".join(cells).rstrip())


def print_error(error: BaseException) -> None:
    """The error's own words, plain: they name paths and hold log lines."""
    typer.echo(str(error), err=True)


def print_note(text: str) -> None:
    """A word to the person who waits."""
    typer.echo(text, err=True)


def show_time(moment: datetime | None) -> str | None:
    """ISO 8601, UTC."""
    return None if moment is None else moment.isoformat(timespec="milliseconds")


def show_text(text: str) -> str:
    r"""On one line, and no orders to a terminal: what does not print is escaped, as ``\x1b``."""
    return "".join(
        one if one.isprintable() and one != "\\" else one.encode("unicode_escape").decode("ascii")
        for one in text
    )


def _flat(result: Mapping[str, Any]) -> dict[str, Any]:
    """Names of nested values with dots."""
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
