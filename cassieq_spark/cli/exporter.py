"""``cassieq exporter`` serves metrics of all queues to Prometheus, without a gateway."""

from __future__ import annotations

from typing import Annotated

import typer

from cassieq_spark.cli.exits import Interrupt
from cassieq_spark.cli.flags import connected
from cassieq_spark.cli.logs import Logs, logging_flags
from cassieq_spark.cli.settings import Connection, seconds
from cassieq_spark.clock import SystemClock
from cassieq_spark.errors import OptionInvalid, ServerMissing

ScanInterval = Annotated[
    str,
    typer.Option(
        metavar="TIME",
        help="The time from one count of all queues to the next. One process counts for all.",
        rich_help_panel="Metrics",
    ),
]
SCAN_INTERVAL = "30s"

SHORTEST_S = 1.0


def scan_seconds(given: str) -> float:
    """The time from one scan to the next.

    Raises:
        OptionInvalid: It is not a time, or too short: a scan reads every bucket.
    """
    found = seconds("--scan-interval", given) or 0
    if found < SHORTEST_S:
        raise OptionInvalid(f"--scan-interval is {given}, allowed: {SHORTEST_S:.0f} s or more")
    return found


@connected
@logging_flags
def exporter(
    connection: Connection,
    logs: Logs,
    *,
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65_535, help="0: any free port.")] = 9_464,
    host_name: Annotated[
        list[str] | None,
        typer.Option(
            help="A name by which Prometheus asks, besides addresses and localhost. Requests for "
            "other names are refused. Repeatable."
        ),
    ] = None,
    scan_interval: ScanInterval = SCAN_INTERVAL,
) -> None:
    """Serve metrics of all queues to Prometheus. A gateway serves them, too. SIGTERM ends it."""
    logs.start()
    try:
        from cassieq_spark.exporter.serve import export  # noqa: PLC0415 - needs an extra
    except ModuleNotFoundError as error:
        raise ServerMissing(
            f"package {error.name!r} is not installed, and `cassieq exporter` needs it. Run: "
            "pip install 'cassieq_spark[prometheus]'"
        ) from error
    clock = SystemClock()
    with Interrupt() as interrupt:

        def pause(wait_s: float) -> bool:
            interrupt.pause_until(clock, clock.monotonic() + wait_s)
            return not interrupt

        export(
            connection.open,
            host=host,
            port=port,
            host_names=host_name or (),
            every_s=scan_seconds(scan_interval),
            on_start=lambda address: logs.note(f"Metrics are at {address}"),
            pause=pause,
        )
