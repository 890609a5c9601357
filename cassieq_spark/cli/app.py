"""Build the command ``cassieq`` from its groups, set up logging, and run it."""

from __future__ import annotations

import io
import logging
import os
import signal
import sys
from typing import Annotated

import typer

from cassieq_spark import __version__
from cassieq_spark.cli import (
    account,
    cassandra,
    dead,
    examples,
    exporter,
    job_path,
    load,
    messages,
    queue,
    repair,
    serve,
    watch,
    worker,
)
from cassieq_spark.cli.exits import Commands, ended_by, exit_codes
from cassieq_spark.cli.flags import connected
from cassieq_spark.cli.outage import TerminalHandler
from cassieq_spark.cli.output import Json, print_json, print_note, print_rows, say
from cassieq_spark.cli.settings import Connection
from cassieq_spark.clock import SystemClock
from cassieq_spark.options.parse import misspelt

app = typer.Typer(
    name="cassieq",
    help="A message queue stored in Apache Cassandra, run by Apache Spark.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,  # a user's mistake gets one line; a bug its plain traceback
    cls=Commands,
)
app.command()(messages.put)
app.command()(messages.get)
app.command()(messages.ack)
app.command()(messages.cancel)
app.command()(messages.peek)
app.command()(watch.watch)
app.command()(load.produce)
app.command()(load.consume)
app.add_typer(queue.app, name="queue")
app.command()(worker.worker)
app.command()(queue.bootstrap)
app.command()(repair.repair)
app.command()(serve.serve)
app.command()(exporter.exporter)
app.command()(job_path.job_path)
app.add_typer(dead.app, name="dead")
app.add_typer(account.app, name="account")


@app.command()
@connected
def config(connection: Connection, *, as_json: Json = False) -> None:
    """Show each option of the connection, and where it comes from. Secrets are hidden."""
    found = connection.settings()
    if as_json:
        print_json(
            *({"option": one.option.name, "value": one.shown, "from": one.origin} for one in found)
        )
    else:
        rows = [[one.option.name, one.shown or "", one.origin] for one in found]
        print_rows(["OPTION", "VALUE", "FROM"], rows)


app.add_typer(cassandra.app, name="cassandra")
examples.add(app)


def main() -> None:
    """Run one command and exit with one of `exits.EXIT_CODES`."""
    # A terminal that cannot show a body or a name is no reason to fail.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    # Only our events: the driver logs tracebacks where we raise an error of one line.
    logging.getLogger("cassieq_spark").addHandler(TerminalHandler(SystemClock()))
    try:
        app()
    except SystemExit as error:
        # Rich and typer end the process by themselves, as failed, if nobody reads the help.
        if isinstance(error.__context__, BrokenPipeError):
            sys.exit(ended_by(error.__context__))
        raise
    except OSError as error:
        # Help is printed before a command begins, and not by us. An error that names a file does
        # not come from standard output: it is a bug, whose traceback is wanted.
        if error.filename is not None:
            raise
        sys.exit(ended_by(error))


def _print_version(wanted: bool) -> None:
    if wanted:
        with exit_codes():  # no command's own exit codes apply yet
            say(__version__)
        raise typer.Exit


@app.callback()
def options(
    *,
    version: Annotated[  # noqa: ARG001 - its callback acts
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """A message queue stored in Apache Cassandra, run by Apache Spark."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a command has things to end
    for name, right in misspelt(os.environ):
        print_note(f"Warning: variable {name} is not read. Did you mean {right}?")
