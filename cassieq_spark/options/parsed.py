"""Define the frozen values that options are parsed into; they pickle safely into tasks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cassieq_spark.model.ids import QueueName
    from cassieq_spark.options.selection import QueueSelection
    from cassieq_spark.options.values import Secret


@dataclass(frozen=True, slots=True, kw_only=True)
class Login:
    """The role to log in as, with its password."""

    username: str
    password: Secret


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsOptions:
    """The files to verify nodes by, and this client's certificate. Paths only: tasks read them."""

    ca_file: str
    cert_file: str | None = None
    key_file: str | None = None
    key_password: Secret | None = None
    verifies_hostname: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionOptions:
    """How to reach Cassandra. Hashable, since a process keeps one session for each.

    Attributes:
        login: None: no login.
        tls: None: no TLS.
    """

    contact_points: tuple[tuple[str, int], ...]
    keyspace: str
    datacenter: str | None
    connect_timeout_s: float
    login: Login | None = None
    tls: TlsOptions | None = None

    @property
    def addresses(self) -> str:
        """The contact points as a user writes them."""
        return ", ".join(
            f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
            for host, port in self.contact_points
        )

    def __str__(self) -> str:
        """Show what a client is connected to."""
        return f"{self.addresses!r}, keyspace={self.keyspace!r}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """Options of ``spark.read``.

    Attributes:
        queues: All only for a view of many queues.
    """

    connection: ConnectionOptions
    queues: QueueSelection
    min_partitions: int | None
    view: str = "messages"
    push_filters: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """Options of ``spark.readStream``."""

    connection: ConnectionOptions
    queues: QueueSelection
    min_partitions: int | None
    max_messages_per_trigger: int | None
    max_bytes_per_trigger: int | None
    min_messages_per_trigger: int | None
    max_trigger_delay_s: float
    visibility_timeout_s: float | None
    consumer: str | None
    on_lease_lost: str
    fail_on_data_loss: bool
    max_batch_duration_s: float
    lag_interval_s: float
    ack_mode: str
    min_priority: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    """Options of ``df.writeStream`` and ``df.write``."""

    connection: ConnectionOptions
    queue: QueueName
    sink_id: str | None
    batch_id: int | None
    chunk_messages: int
    chunk_bytes: int
    bucket_bytes: int
    writes_in_flight: int
