"""What commands print: results on standard output, all else on standard error."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from collections.abc import Mapping

FAILED = 1
USAGE = 2


def print_result(result: Mapping[str, str | int | bool | None], *, as_json: bool) -> None:
    """One result: a line of JSON, or names and values without the empty ones."""
    if as_json:
        typer.echo(json.dumps(result))
        return
    width = max(map(len, result)) + 2
    for name, value in result.items():
        if value is not None:
            typer.echo(f"{name:<{width}}{value}")


def print_error(error: BaseException) -> None:
    """The error's own words, plain: they name paths and hold log lines."""
    typer.echo(str(error), err=True)


def print_note(text: str) -> None:
    """A word to the person who waits."""
    typer.echo(text, err=True)
