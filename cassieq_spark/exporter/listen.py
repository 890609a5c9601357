"""Serve a registry at ``/metrics`` on a port of its own, in a thread."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from prometheus_client import start_http_server

from cassieq_spark.errors import OptionInvalid

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client import CollectorRegistry


@contextmanager
def listening(registry: CollectorRegistry, host: str, port: int) -> Iterator[str]:
    """Serve while the block runs; yields the address.

    Args:
        port: 0: any free one.

    Raises:
        OptionInvalid: Nobody can listen there.
    """
    try:
        server, thread = start_http_server(port, host, registry)
    except OSError as error:
        raise cannot_listen("metrics", host, port, error) from error
    shown = f"[{host}]" if ":" in host else host
    try:
        yield f"http://{shown}:{server.server_port}/metrics"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def cannot_listen(what: str, host: str, port: int, error: OSError) -> OptionInvalid:
    """The error for an address that another program has, or that this machine does not have."""
    return OptionInvalid(
        f"nothing can listen for {what} on {host} port {port}: {error.strerror or error}. Choose "
        "another address or port"
    )
