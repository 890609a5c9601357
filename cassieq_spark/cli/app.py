"""Puts the command groups together, and turns errors into exit codes."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from cassieq_spark import __version__
from cassieq_spark.cli import cassandra
from cassieq_spark.cli.output import FAILED, USAGE, print_error
from cassieq_spark.errors import CassieqError, UsageError

app = typer.Typer(
    name="cassieq",
    help="A message queue stored in Apache Cassandra, run by Apache Spark.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,  # a user's mistake gets one line; a bug its plain traceback
)
app.add_typer(cassandra.app, name="cassandra")


def main() -> None:
    """Run one command and exit: 0 done, 1 failed, 2 usage."""
    try:
        app()
    except UsageError as error:
        print_error(error)
        sys.exit(USAGE)
    except CassieqError as error:
        print_error(error)
        sys.exit(FAILED)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def options(
    *,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """A message queue stored in Apache Cassandra, run by Apache Spark."""
