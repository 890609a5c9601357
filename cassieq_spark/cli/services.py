"""``cassieq serve``, ``exporter`` and ``worker`` run until they are told to end.

``serve`` is a gateway: the queues over HTTP. ``exporter`` serves only its metrics. ``worker`` has a
function called for each message of a queue, in a pool of processes.
"""

from __future__ import annotations

import logging
import os
from math import inf
from pathlib import Path
from typing import Annotated

import typer

from cassieq_spark.aio.crew import CrewSettings
from cassieq_spark.cli.account import MasterKeyFile, load_master_key
from cassieq_spark.cli.flags import Connected, Connection, Seconds, Time
from cassieq_spark.cli.logs import Logged
from cassieq_spark.cli.messages import MinPriority
from cassieq_spark.cli.queue import QueueName
from cassieq_spark.cli.shell import Interrupt, extra
from cassieq_spark.client import Client
from cassieq_spark.clock import Clock, SystemClock
from cassieq_spark.errors import CassieqError, OptionInvalid, ServerMissing
from cassieq_spark.exporter.listen import listening, metrics
from cassieq_spark.exporter.scan import SCANS_EVERY_S, Scanner
from cassieq_spark.log import event, get_logger
from cassieq_spark.model.backoff import DEFAULT_BACKOFF, Backoff
from cassieq_spark.options.arguments import MOST_MESSAGES
from cassieq_spark.schedules import dispatching
from cassieq_spark.server.settings import GatewaySettings
from cassieq_spark.worker.child import check_name
from cassieq_spark.worker.work import WorkSettings, work

ScanInterval = Annotated[float, Seconds(least=1.0)]  # a scan reads every bucket

AGAIN_S = 1.0
"""The pause between two tries of an exporter to connect; it may begin before Cassandra answers."""

CLOSE_S = 5.0
"""The time for which a scan under way may delay an exporter's end."""

_logger = get_logger("exporter")


def exporter(
    connection: Connected,
    logs: Logged,
    *,
    host: str = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535)] = 9_464,
    host_name: list[str] | None = None,
    scan_interval: ScanInterval = SCANS_EVERY_S,
) -> None:
    """Serve metrics of all queues to Prometheus. A gateway serves them, too. SIGTERM ends it.

    Args:
        host: The address to listen on.
        port: The port to listen on. 0: any free port.
        host_name: A name by which Prometheus asks, besides addresses and localhost. Requests for
            other names are refused. Repeatable.

    Metrics:
        scan_interval: The time from one count of all queues to the next. One process counts for
            all.

    Example:
        cassieq exporter
    """
    logs.start()
    with extra("prometheus", "`cassieq exporter` needs", ServerMissing):
        from cassieq_spark.exporter.collector import registry_of  # noqa: PLC0415 - needs an extra

        scanner, clock = Scanner(scan_interval), SystemClock()
        make = metrics(registry_of(scanner))
    listens = listening(make, host, port, host_name or ())
    with Interrupt() as interrupt, listens as address:
        logs.note(f"Metrics are at {address}")
        client = _connected(connection, interrupt, clock)
        if client is not None:
            with client:
                scanner.start(client.store)
                interrupt.pause_until(clock, inf)
                scanner.close(CLOSE_S)


def _connected(connection: Connection, interrupt: Interrupt, clock: Clock) -> Client | None:
    """The client, when Cassandra answers; None: the exporter was ended before."""
    while not interrupt:
        try:
            client = connection.open()
        except CassieqError as error:
            if not error.retriable:
                raise
            event(_logger, "exporter_waits", error=str(error))
            interrupt.pause_until(clock, clock.monotonic() + AGAIN_S)
        else:
            event(_logger, "exporter_connected", keyspace=client.keyspace)
            return client
    return None


DEFAULTS = GatewaySettings()

_Port = typer.Option(min=0, max=65_535)
_AtLeastOne = Annotated[int, typer.Option(min=1)]
_KiB = typer.Option(min=1_024)
_Seconds = Annotated[float, typer.Option(min=0.1)]


def serve(
    connection: Connected,
    logs: Logged,
    *,
    host: str = DEFAULTS.host,
    port: Annotated[int, _Port] = DEFAULTS.port,
    tls_cert: Path | None = None,
    tls_key: Path | None = None,
    auth: bool = False,
    master_key_file: MasterKeyFile = None,
    insecure: bool = False,
    host_name: list[str] | None = None,
    repair: bool = True,
    metrics_port: Annotated[int | None, _Port] = None,
    metrics_host: str = DEFAULTS.metrics_host,
    scan_interval: ScanInterval = SCANS_EVERY_S,
    access_log: Annotated[bool, typer.Option(envvar="CASSIEQ_ACCESS_LOG")] = False,
    max_connections: _AtLeastOne = DEFAULTS.max_connections,
    max_body: Annotated[int, _KiB] = DEFAULTS.max_body_bytes,
    max_headers: Annotated[int, _KiB] = DEFAULTS.max_header_bytes,
    request_timeout: _Seconds = DEFAULTS.request_timeout_s,
    keep_alive: _Seconds = DEFAULTS.keep_alive_s,
    max_memory: Annotated[int | None, _KiB] = None,
    calls: _AtLeastOne = DEFAULTS.calls,
) -> None:
    """Serve the queues over HTTP: Amazon SQS's protocol, and REST. SIGTERM drains and ends it.

    Args:
        host: The address to listen on. Non-loopback addresses need --auth.
        port: The port to listen on. 0: any free port.
        tls_cert: PEM file with the server's certificate chain.
        tls_key: PEM file with the private key of --tls-cert.
        auth: Serve only requests with a key of an account.
        insecure: Let other machines in, although no accounts are checked.
        host_name: A name by which clients reach the gateway, besides addresses and localhost.
            Without --auth, requests for other names are refused; at --metrics-port, always.
            Repeatable.
        repair: Repair all queues every 30 s, in one gateway at a time.

    Metrics:
        metrics_port: Serve metrics at this port, too. 0: any free port. With --auth they are served
            nowhere else, as they name the queues of all accounts.
        metrics_host: The address to serve metrics at.
        scan_interval: The time from one count of all queues to the next. One process counts for
            all.

    Logs:
        access_log: Log each request: API, operation, status, milliseconds.

    Limits:
        max_connections: The most connections at once.
        max_body: The most bytes of a request's body.
        max_headers: The most bytes of a request's headers.
        request_timeout: Seconds within which a request must arrive whole.
        keep_alive: Seconds that a connection may be idle between requests.
        max_memory: The most bytes of bodies and unread answers of all connections together.
            Default: an eighth of the memory of the machine or container.
        calls: The most client calls at once.

    Example:
        cassieq serve --port 8080
    """
    with extra("server", "`cassieq serve` needs", ServerMissing):
        from cassieq_spark.server import serve as server  # noqa: PLC0415 - needs the extra `server`
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
        scans_every_s=scan_interval,
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


def _address(name: str, text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not (port.isdecimal() and int(port) <= 65_535):  # noqa: PLR2004 - of TCP
        raise OptionInvalid(f"{name} is {text!r}, allowed: HOST:PORT, such as 0.0.0.0:8081")
    return host.strip("[]"), int(port)


MOST_PROCESSES = 512
MOST_COROUTINES = 10_000


def worker(
    function: str,
    queue: QueueName,
    connection: Connected,
    logs: Logged,
    *,
    concurrency: Annotated[int | None, typer.Option(min=1, max=MOST_PROCESSES, metavar="N")] = None,
    coroutines: Annotated[
        int, typer.Option("--async", min=1, max=MOST_COROUTINES, metavar="N", show_default=False)
    ] = 1,
    prefetch: Annotated[int | None, typer.Option(min=1, max=MOST_MESSAGES, metavar="N")] = None,
    max_messages: Annotated[int | None, typer.Option(min=1, metavar="N")] = None,
    max_memory: Annotated[int | None, _KiB] = None,
    timeout: Annotated[float | None, Seconds(least=0.001)] = None,
    grace: Annotated[float, Seconds()] = 30.0,
    visibility_timeout: Time = None,
    idle_timeout: Time = None,
    health: Annotated[str | None, typer.Option(metavar="HOST:PORT")] = None,
    min_priority: MinPriority = 0,
    backoff: Annotated[float, Seconds()] = DEFAULT_BACKOFF.base_s,
    backoff_max: Annotated[float, Seconds()] = DEFAULT_BACKOFF.most_s,
    jitter: Annotated[float, typer.Option(min=0, max=1, metavar="PART")] = DEFAULT_BACKOFF.jitter,
) -> None:
    """Call a function for each message of a queue, in several processes.

    A message is acked when the function has returned. If the function raises an error, takes too
    long, or its process dies, the message comes again after a delay that grows. After the queue's
    max_deliveries it is dead. SIGTERM ends the worker with exit code 0, and SIGHUP imports the
    function anew.

    Args:
        function: The function to call with each message, as module:function. It may be async.
        concurrency: The number of processes that call the function. Default: one for each CPU, or
            one with --async.
        coroutines: How many messages each process works on at once. The function is an async def.
        prefetch: How many messages wait here for a free process, hidden from others. Default: twice
            as many as are worked on at once.
        timeout: How long the function may take for a message; then its process is killed, or its
            coroutine is cancelled, and the message has failed. Default: as long as it takes.
        max_messages: Replace a process when it was given so many messages.
        max_memory: Replace a process when it has more bytes of memory than this after a message.
        grace: How long running functions may go on after SIGTERM or Ctrl-C. Then they are killed,
            and their messages are given back.
        visibility_timeout: The length of a lease. It is renewed while the function runs. Default:
            the queue's timeout.
        idle_timeout: End when no message came for this long.
        health: Answer the probes of Kubernetes here, at /healthz and /readyz. Port 0: any free one.

    Retries:
        backoff: The longest delay after the first failure of a message. It doubles with each
            further one.
        backoff_max: The longest delay after any failure.
        jitter: The part of a delay that is random, 0 to 1.

    Example:
        cassieq worker shop.mail:send mail --concurrency 4 --timeout 1m
    """
    logs.start()
    processes = concurrency or (1 if coroutines > 1 else os.cpu_count() or 1)
    how = f"{processes} processes"
    if coroutines > 1:
        how = f"{coroutines} coroutines in each of {how}"
    settings = WorkSettings(
        function=check_name(function),
        processes=processes,
        side_by_side=coroutines,
        max_messages=max_messages or inf,
        max_memory_bytes=max_memory or inf,
        timeout_s=inf if timeout is None else timeout,
        logs=(logs.level.upper(), logs.form.value),
        health=None if health is None else _address("--health", health),
        crew=CrewSettings(
            prefetch=prefetch or 2 * processes * coroutines,
            visibility_s=visibility_timeout,
            grace_s=grace,
            idle_s=inf if idle_timeout is None else idle_timeout,
            min_priority=min_priority,
            backoff=Backoff(base_s=backoff, most_s=backoff_max, jitter=jitter),
        ),
    )
    with connection.open() as client, dispatching(client.schedules):
        found = client.queue(queue).settings
        if found.dead_letter_queue is None or found.max_deliveries is None:
            logs.note(
                f"queue {queue!r} has no dead-letter queue: a message that always fails is tried "
                "for ever. Set max-deliveries and dead-letter-queue with cassieq queue alter",
                logging.WARNING,
            )
        if timeout is None:
            logs.note(
                f"There is no --timeout: a message is renewed for as long as {function} runs, for "
                "ever if it hangs"
            )
        work(
            client,
            queue,
            settings,
            on_start=lambda: logs.note(f"Calling {function} with {how}"),
            on_health=lambda address: logs.note(f"Health is at {address}"),
        )
