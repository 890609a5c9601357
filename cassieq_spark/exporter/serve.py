"""Run ``cassieq exporter`` until it is told to end: metrics of all queues, without a gateway."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final

from cassieq_spark.client import Client
from cassieq_spark.errors import AuthenticationRefused, StoreTimeout, StoreUnavailable, TlsFailed
from cassieq_spark.exporter.collector import registry_of
from cassieq_spark.exporter.listen import listening
from cassieq_spark.exporter.scan import Scanner
from cassieq_spark.log import event, get_logger

AGAIN_S: Final = 1.0
"""The pause between two tries to connect."""

CLOSE_S: Final = 5.0
"""How long a scan under way may hold up the end."""

_logger = get_logger("exporter")


def export(
    open_client: Callable[[], Client],
    *,
    host: str,
    port: int,
    host_names: Collection[str],
    every_s: float,
    on_start: Callable[[str], None],
    pause: Callable[[float], bool],
) -> None:
    """Export metrics; it may begin before Cassandra answers.

    Args:
        host_names: Names by which Prometheus asks, besides addresses and localhost.
        every_s: The time from one scan to the next.
        on_start: Called with the address once it listens.
        pause: Waits for so many seconds, and returns False if the exporter shall end.

    Raises:
        OptionInvalid: Nobody can listen there, or a name is none.
        CassieqError: Cassandra cannot be used, and waiting would not help.
    """
    scanner = Scanner(every_s)
    with listening(registry_of(scanner), host, port, host_names) as address:
        on_start(address)
        client = _connected(open_client, pause)
        if client is None:
            return
        with client:
            scanner.start(client.store)
            while pause(AGAIN_S):
                pass
            scanner.close(CLOSE_S)


def _connected(open_client: Callable[[], Client], pause: Callable[[float], bool]) -> Client | None:
    """The client, when Cassandra answers; None: the exporter was ended before."""
    while True:
        try:
            client = open_client()
        except (AuthenticationRefused, TlsFailed):
            raise
        except (StoreUnavailable, StoreTimeout) as error:
            event(_logger, "exporter_waits", error=str(error))
            if not pause(AGAIN_S):
                return None
        else:
            event(_logger, "exporter_connected", keyspace=client.keyspace)
            return client
