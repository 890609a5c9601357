"""Build the command ``cassieq`` from its groups, set up logging, and run it."""

from __future__ import annotations

import io
import logging
import os
import signal
import sys
from pathlib import Path
from typing import Annotated

import typer

import cassieq_spark
from cassieq_spark.cli import (
    account,
    cassandra,
    dead,
    load,
    messages,
    queue,
    repair,
    schedule,
    services,
)
from cassieq_spark.cli.flags import Connected, command
from cassieq_spark.cli.logs import TerminalHandler
from cassieq_spark.cli.shell import Commands, Printed, ended_by, exit_codes, print_note, say
from cassieq_spark.clock import SystemClock
from cassieq_spark.errors import OptionInvalid
from cassieq_spark.options.parse import misspelt

app = typer.Typer(
    name="cassieq",
    help="A message queue stored in Apache Cassandra, run by Apache Spark.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,  # a user's mistake gets one line; a bug its plain traceback
    cls=Commands,
)


def config(connection: Connected, out: Printed) -> None:
    """Show each option of the connection, and where it comes from. Secrets are hidden.

    Example:
        cassieq config --keyspace billing
    """
    out.all(
        [
            {"option": one.option.name, "value": one.shown, "from": one.origin}
            for one in connection.settings()
        ]
    )


def job_path(job: str) -> None:
    """Print the file of a job of this package: spark-submit "$(cassieq job-path repair)" --once.

    Args:
        job: repair, redrive or to_files.

    Example:
        cassieq job-path repair
    """
    jobs = Path(__file__).resolve().parents[1] / "jobs"
    known = sorted(path.stem for path in jobs.glob("[a-z]*.py"))
    if job not in known:
        raise OptionInvalid(f"there is no job {job!r}. The jobs are: {', '.join(known)}")
    say(str(jobs / f"{job}.py"))


for _one in (
    *(messages.put, messages.get, messages.ack, messages.cancel, messages.peek, queue.watch),
    *(services.worker, queue.bootstrap, repair.repair, services.serve, services.exporter),
    *(job_path, config),
):
    command(app)(_one)
for _name, _group in {
    "load": load.app,
    "queue": queue.app,
    "dead": dead.app,
    "schedule": schedule.app,
    "account": account.app,
    "cassandra": cassandra.app,
}.items():
    app.add_typer(_group, name=_name)


def main() -> None:
    """Run one command and exit with one of `shell.EXIT_CODES`."""
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
            say(cassieq_spark.__version__)
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
