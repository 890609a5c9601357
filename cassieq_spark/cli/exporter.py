"""``cassieq exporter`` serves metrics of all queues to Prometheus, without a gateway."""

from __future__ import annotations

from typing import Annotated

import typer

from cassieq_spark.cli.exits import Interrupt, extra
from cassieq_spark.cli.flags import Connected
from cassieq_spark.cli.logs import Logged
from cassieq_spark.cli.settings import seconds
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


def exporter(
    connection: Connected,
    logs: Logged,
    *,
    host: str = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535)] = 9_464,
    host_name: list[str] | None = None,
    scan_interval: ScanInterval = SCAN_INTERVAL,
) -> None:
    """Serve metrics of all queues to Prometheus. A gateway serves them, too. SIGTERM ends it.

    Args:
        host: The address to listen on.
        port: 0: any free port.
        host_name: A name by which Prometheus asks, besides addresses and localhost. Requests for
            other names are refused. Repeatable.

    Example:
        cassieq exporter
    """
    logs.start()
    with extra("prometheus", "`cassieq exporter` needs", ServerMissing):
        from cassieq_spark.exporter.serve import export  # noqa: PLC0415 - needs an extra
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
