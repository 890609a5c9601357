"""Serve metrics, or a worker's health, on a port of their own, in a few threads."""

from __future__ import annotations

import socket
import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from cassieq_spark.clock import SystemClock
from cassieq_spark.errors import OptionInvalid
from cassieq_spark.model.hosts import is_known, known_hosts

if TYPE_CHECKING:
    from wsgiref.types import WSGIApplication

    from prometheus_client import CollectorRegistry

CONNECTIONS: Final = 8
"""Connections at once, each with a thread. Prometheus and a person need two."""

LONGEST_S: Final = 10.0
"""A connection ends after this time, whatever its client does. Prometheus waits as long."""

_CLOCK: Final = SystemClock()


class _Handler(WSGIRequestHandler):
    """A request, which is not logged."""

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - as its base has it
        """Say nothing: a scrape every few seconds is no news."""


class MetricsServer(WSGIServer):
    """A server with a bound for threads, and for the time of each.

    Prometheus' own has a thread for each connection, without either. Where all threads are taken,
    a connection makes room whose thread waits for its client, the oldest first. So whoever holds
    connections open cannot shut Prometheus out, and a new one waits for nothing but answers that
    are being made.
    """

    daemon_threads = True

    def __init__(
        self, make: WSGIApplication, host: str, port: int, host_names: Collection[str]
    ) -> None:
        self._names = known_hosts(host, host_names)
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        self.address_family = found[0][0]
        self._open: dict[socket.socket, float] = {}
        self._making: set[socket.socket] = set()
        self._mine = threading.local()
        self._changed = threading.Condition()
        self._make = make
        super().__init__((host, port), _Handler)
        self.set_app(self._answered)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread, once there is one."""
        with self._changed:
            while len(self._open) >= CONNECTIONS:
                if waiting := self._open.keys() - self._making:
                    _end(min(waiting, key=self._open.__getitem__))
                self._changed.wait()
            self._open[request] = _CLOCK.monotonic()
        threading.Thread(
            target=self._answer, args=(request, client_address), name="cassieq-metrics", daemon=True
        ).start()

    def service_actions(self) -> None:
        """End the connections that are open for too long; called at least twice a second."""
        now = _CLOCK.monotonic()
        with self._changed:
            for request, began in self._open.items():
                if now - began >= LONGEST_S:
                    _end(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: a client that goes away is no error of ours."""

    def _answered(self, environ: Any, start_response: Any) -> Any:
        """Make an answer: meanwhile its thread waits for no client."""
        host = environ.get("HTTP_HOST")  # several are one with commas, which is no name
        if host is not None and not is_known(host, self._names):
            start_response("403 Forbidden", [("Content-Type", "text/plain; charset=utf-8")])
            return [
                b"This host is not known. Use an address or localhost, or give each further name: "
                b"--host-name of the command, or host_names of CassieqListener.serve.\n"
            ]
        request = self._mine.request
        with self._changed:
            self._making.add(request)
        try:
            return self._make(environ, start_response)
        finally:
            with self._changed:
                self._making.discard(request)
                self._changed.notify()  # from now on it waits for its client

    def _answer(self, request: Any, client_address: Any) -> None:
        self._mine.request = request
        try:
            self.finish_request(request, client_address)
        except OSError:
            self.handle_error(request, client_address)
        finally:
            with self._changed:
                del self._open[request]
                self._changed.notify()
            self.shutdown_request(request)


def _end(request: socket.socket) -> None:
    """End a connection; the thread that waits for it sees that."""
    with suppress(OSError):
        request.shutdown(socket.SHUT_RDWR)


@contextmanager
def listening(
    make: WSGIApplication,
    host: str,
    port: int,
    host_names: Collection[str],
    *,
    what: str = "metrics",
) -> Iterator[str]:
    """Serve while the block runs; yields the address.

    Args:
        make: Makes the answers; see `metrics`.
        port: 0: any free one.
        host_names: Names by which Prometheus asks, besides addresses and localhost.
        what: The path of the address.

    Raises:
        OptionInvalid: Nobody can listen there, or a name is not a host name.
    """
    server, thread = start(make, host, port, host_names, what=what)
    shown = f"[{host}]" if ":" in host else host
    try:
        yield f"http://{shown}:{server.server_port}/{what}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def metrics(registry: CollectorRegistry) -> WSGIApplication:
    """Return what answers with the metrics of a registry. It needs package prometheus_client."""
    from prometheus_client import make_wsgi_app  # noqa: PLC0415 - health goes without it

    return make_wsgi_app(registry)


def start(
    make: WSGIApplication,
    host: str,
    port: int,
    host_names: Collection[str],
    *,
    what: str = "metrics",
) -> tuple[MetricsServer, Any]:
    """Serve from now on, in a thread, until the server is told to end.

    Raises:
        OptionInvalid: Nobody can listen there, or a name is not a host name.
    """
    try:
        server = MetricsServer(make, host, port, host_names)
    except OSError as error:
        raise cannot_listen(what, host, port, error) from error
    thread = threading.Thread(target=server.serve_forever, name="cassieq-metrics", daemon=True)
    thread.start()
    return server, thread


def cannot_listen(what: str, host: str, port: int, error: OSError) -> OptionInvalid:
    """The error for an address that another program has, or that this machine does not have."""
    return OptionInvalid(
        f"nothing can listen for {what} on {host} port {port}: {error.strerror or error}. Choose "
        "another address or port"
    )
