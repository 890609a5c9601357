"""``cassieq cassandra`` runs one real node for development, without Docker."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cassieq_spark.cli.flags import command
from cassieq_spark.cli.shell import FAILED, Out, Printed, print_note, say, working
from cassieq_spark.embedded import daemon
from cassieq_spark.embedded.daemon import DaemonState, DaemonStatus
from cassieq_spark.embedded.software import CASSANDRA, CASSANDRA_VERSION, find_java, jars_of
from cassieq_spark.errors import OptionInvalid

app = typer.Typer(
    help=f"One local Apache Cassandra {CASSANDRA_VERSION} node for development, without Docker.",
    no_args_is_help=True,
)

DataDir = Annotated[
    Path | None,
    typer.Option(
        "--data-dir",
        help="The directory where the node keeps everything. Default: in the "
        "user's data directory.",
    ),
]


@command(app)
def start(
    out: Printed,
    *,
    data_dir: DataDir = None,
    port: Annotated[int, typer.Option(min=1, max=65535)] = 9042,
    heap: str = "1g",
) -> None:
    """Start the node, or find it running. It answers CQL when this returns, and goes on running.

    Exit codes: 0 the node is up, 1 it is not.

    Args:
        port: The port of the native protocol, on 127.0.0.1.
        heap: The heap of the JVM, as in -Xmx.

    Example:
        cassieq cassandra start --heap 2g
    """
    root = _root(data_dir)
    with working("Looking for Java") as work:

        def on_step(text: str) -> None:
            print_note(f"{text} ...")
            work.begin(text)

        found = daemon.start(root, port=port, heap=heap, on_step=on_step, on_bytes=work.on_bytes)
    _print_status(found, out)


@command(app)
def stop(out: Printed, *, data_dir: DataDir = None) -> None:
    """Stop the node gracefully. Its data stays.

    Exit codes: 0 the node is down, also if it was down before; 1 it had to be killed.

    Example:
        cassieq cassandra stop
    """
    root = _root(data_dir)
    if not daemon.stop(root):
        print_note(f"No node is running on {root}")
    _print_status(daemon.status(root), out)


@command(app)
def status(out: Printed, *, data_dir: DataDir = None) -> None:
    """Show whether the node is up.

    Exit codes: 0 the node answers CQL, 1 it does not.

    Example:
        cassieq cassandra status --json
    """
    found = daemon.status(_root(data_dir))
    _print_status(found, out)
    if found.state is not DaemonState.UP:
        raise typer.Exit(FAILED)


@command(app)
def fetch(out: Printed) -> None:
    """Fetch the Cassandra jars into the user's cache (62 MB), so that the first start is quick.

    Example:
        cassieq cassandra fetch
    """
    java = find_java()
    with working("Fetching Cassandra") as work:
        jars = jars_of(CASSANDRA, java, on_fetch=print_note, on_bytes=work.on_bytes)
    out.result({"java": str(java.home), "jars": str(jars)})


@command(app)
def java() -> None:
    """Print the home directory of the Java 17 that the node runs on.

    Example:
        cassieq cassandra java
    """
    say(str(find_java().home))


def _root(data_dir: Path | None) -> Path:
    if data_dir is None:
        return daemon.default_data_dir()
    root = data_dir.absolute()
    try:
        there = next(one for one in (root, *root.parents) if one.exists())
    except OSError as error:
        raise OptionInvalid(
            f"--data-dir cannot be used: {error.strerror}. Name another directory"
        ) from error
    if not there.is_dir():
        raise OptionInvalid(
            f"--data-dir is {root}, but {there} is a file. Name a directory; it is created if it "
            "does not exist"
        )
    return root


def _print_status(found: DaemonStatus, out: Out) -> None:
    out.result(
        {
            "state": str(found.state),
            "contact_points": found.contact_points,
            "datacenter": None if found.contact_points is None else found.datacenter,
            "pid": found.pid,
            "data_dir": str(found.data_dir),
        }
    )
