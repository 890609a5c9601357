"""``cassieq serve`` runs a gateway: the queues over HTTP."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cassieq_spark.cli.account import MasterKeyFile, load_master_key
from cassieq_spark.cli.exporter import SCAN_INTERVAL, ScanInterval, scan_seconds
from cassieq_spark.cli.flags import connected
from cassieq_spark.cli.logs import PANEL, Logs, logging_flags
from cassieq_spark.cli.settings import Connection
from cassieq_spark.errors import ServerMissing
from cassieq_spark.server.settings import GatewaySettings

LIMITS = "Limits"
METRICS = "Metrics"

DEFAULTS = GatewaySettings()


@connected
@logging_flags
def serve(
    connection: Connection,
    logs: Logs,
    *,
    host: Annotated[
        str,
        typer.Option(help="The address to listen on. Others than loopback need --auth."),
    ] = DEFAULTS.host,
    port: Annotated[int, typer.Option(min=0, max=65_535, help="0: any free port.")] = DEFAULTS.port,
    tls_cert: Annotated[
        Path | None, typer.Option(help="PEM file with the server's certificate chain.")
    ] = None,
    tls_key: Annotated[Path | None, typer.Option(help="PEM file with its key.")] = None,
    auth: Annotated[
        bool, typer.Option("--auth", help="Serve only requests with a key of an account.")
    ] = False,
    master_key_file: MasterKeyFile = None,
    insecure: Annotated[
        bool,
        typer.Option("--insecure", help="Let other machines in, although no accounts are checked."),
    ] = False,
    host_name: Annotated[
        list[str] | None,
        typer.Option(
            help="A name by which clients reach the gateway, besides addresses and localhost. "
            "Without --auth, requests for other names are refused; at --metrics-port, always. "
            "Repeatable.",
        ),
    ] = None,
    repair: Annotated[
        bool,
        typer.Option(
            "--repair/--no-repair",
            help="Repair all queues every 30 s, in one gateway at a time.",
        ),
    ] = True,
    metrics_port: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=65_535,
            help="Serve metrics at this port, too. 0: any free port. With --auth they are served "
            "nowhere else, as they name the queues of all accounts.",
            rich_help_panel=METRICS,
        ),
    ] = None,
    metrics_host: Annotated[
        str, typer.Option(help="The address of that port.", rich_help_panel=METRICS)
    ] = DEFAULTS.metrics_host,
    scan_interval: ScanInterval = SCAN_INTERVAL,
    access_log: Annotated[
        bool,
        typer.Option(
            "--access-log",
            envvar="CASSIEQ_ACCESS_LOG",
            help="Log each request: door, operation, status, milliseconds.",
            rich_help_panel=PANEL,
        ),
    ] = False,
    max_connections: Annotated[
        int, typer.Option(min=1, help="Connections at once.", rich_help_panel=LIMITS)
    ] = DEFAULTS.max_connections,
    max_body: Annotated[
        int, typer.Option(min=1_024, help="Bytes of a request's body.", rich_help_panel=LIMITS)
    ] = DEFAULTS.max_body_bytes,
    max_headers: Annotated[
        int, typer.Option(min=1_024, help="Bytes of its headers.", rich_help_panel=LIMITS)
    ] = DEFAULTS.max_header_bytes,
    request_timeout: Annotated[
        float,
        typer.Option(
            min=0.1, help="Seconds in which a request must arrive whole.", rich_help_panel=LIMITS
        ),
    ] = DEFAULTS.request_timeout_s,
    keep_alive: Annotated[
        float,
        typer.Option(
            min=0.1,
            help="Seconds that a connection may be idle between requests.",
            rich_help_panel=LIMITS,
        ),
    ] = DEFAULTS.keep_alive_s,
    max_memory: Annotated[
        int | None,
        typer.Option(
            min=1_024,
            help="Bytes of bodies and unread answers that all connections may hold together. "
            "Default: an eighth of the memory of the machine or container.",
            rich_help_panel=LIMITS,
        ),
    ] = None,
    calls: Annotated[
        int, typer.Option(min=1, help="Client calls at once.", rich_help_panel=LIMITS)
    ] = DEFAULTS.calls,
) -> None:
    """Serve the queues over HTTP: Amazon SQS's protocol, and REST. SIGTERM drains and ends it."""
    try:
        from cassieq_spark.server import serve as server  # noqa: PLC0415 - needs the extra `server`
    except ModuleNotFoundError as error:
        raise ServerMissing(
            f"package {error.name!r} is not installed, and `cassieq serve` needs it. Run: "
            "pip install 'cassieq_spark[server]'"
        ) from error
    settings = GatewaySettings(
        host=host,
        port=port,
        tls_cert=tls_cert,
        tls_key=tls_key,
        checks_accounts=auth,
        is_insecure=insecure,
        host_names=tuple(host_name or ()),
        max_body_bytes=max_body,
        max_header_bytes=max_headers,
        max_connections=max_connections,
        request_timeout_s=request_timeout,
        keep_alive_s=keep_alive,
        max_memory_bytes=max_memory,
        calls=calls,
        metrics_host=metrics_host,
        metrics_port=metrics_port,
        scans_every_s=scan_seconds(scan_interval),
        repairs_every_s=DEFAULTS.repairs_every_s if repair else None,
    )
    logs.start(access=access_log)
    server.serve(
        settings,
        connection.open,
        on_start=lambda address: logs.note(f"Listening on {address}. {settings.access}"),
        on_metrics=lambda address: logs.note(f"Metrics are at {address}"),
        master_key=load_master_key(master_key_file) if auth else None,
    )
