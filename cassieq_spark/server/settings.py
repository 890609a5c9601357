"""Define the settings of a gateway process."""

from __future__ import annotations

import ipaddress
import os
import ssl
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cassieq_spark.errors import OptionInvalid, UsageError
from cassieq_spark.model.hosts import known_hosts

MIB: Final = 1_048_576

BODIES: Final = 2
"""The number of longest bodies that must find room: one address may hold half, see `Shares`."""

_CGROUP: Final = Path("/sys/fs/cgroup/memory.max")


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewaySettings:
    """Settings of a gateway: how it listens, and its limits.

    Attributes:
        checks_accounts: Whether requests need a key of an account.
        is_insecure: Other machines are let in although no accounts are checked.
        host_names: Names by which clients reach the gateway, such as that of a Service or a proxy.
        max_body_bytes: The longest body of a request. Longer ones are refused before they are read.
        max_header_bytes: The most bytes of request line and headers together, and of 32 more for
            each header.
        max_connections: Connections at once; further ones get 503 and are closed.
        request_timeout_s: A request must have arrived whole within this time.
        keep_alive_s: How long a connection may be idle between requests.
        max_memory_bytes: The most bytes that bodies and unread answers of all connections may take
            together; None: `memory_bytes` says how much.
        calls: Client calls at once.
        metrics_host: The address of the port for metrics.
        metrics_port: Serves metrics on a port of their own, too; None: it does not.
        scans_every_s: How often queues are counted for metrics.
        repairs_every_s: How often repair runs in the background; None: never.
    """

    host: str = "127.0.0.1"
    port: int = 8080
    tls_cert: Path | None = None
    tls_key: Path | None = None
    checks_accounts: bool = False
    is_insecure: bool = False
    host_names: tuple[str, ...] = ()
    max_body_bytes: int = 4 * MIB
    max_header_bytes: int = 65_536
    max_connections: int = 2_000
    max_memory_bytes: int | None = None
    request_timeout_s: float = 30.0
    keep_alive_s: float = 75.0
    calls: int = 256
    repairs_every_s: float | None = 30.0
    metrics_host: str = "127.0.0.1"
    metrics_port: int | None = None
    scans_every_s: float = 30.0

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach the gateway."""
        return is_loopback(self.host.strip("[]"))

    @property
    def access(self) -> str:
        """The sentence that tells whoever starts the gateway who may do what."""
        if self.checks_accounts:
            is_open = not (self.is_loopback or self.tls_cert)
            return "Requests need a key of an account" + (
                ". Without TLS, others on the network can read messages and tokens" * is_open
            )
        who = "this machine" if self.is_loopback else "the NETWORK"
        return f"No accounts are checked: everybody on {who} has all rights"

    @property
    def memory_bytes(self) -> int:
        """The most bytes that bodies and unread answers of all connections may take together.

        Unless it was said, an eighth of what this process may have: an operation holds a body
        several times, as bytes, text and values. It is never less than `BODIES` of the longest.
        """
        if self.max_memory_bytes is not None:
            return self.max_memory_bytes
        return max(memory_of_process() // 8, BODIES * self.max_body_bytes)

    @property
    def scheme(self) -> str:
        """The scheme of the gateway's own address."""
        return "https" if self.tls_cert else "http"

    def check(self) -> None:
        """Refuse settings that do not fit together.

        Raises:
            UsageError: Everybody on the network could use the queues without a login.
            OptionInvalid: A TLS file is missing, a name is not a host name, or no body fits.
        """
        if not (self.is_loopback or self.checks_accounts or self.is_insecure):
            raise UsageError(
                f"--host {self.host} lets other machines in, but without --auth no accounts are "
                "checked: everybody who reaches the port could read and delete all messages. Say "
                "--auth, listen on 127.0.0.1, or say --insecure if the network is closed"
            )
        if self.memory_bytes < BODIES * self.max_body_bytes:
            raise OptionInvalid(
                f"--max-memory {self.memory_bytes} is too small for --max-body "
                f"{self.max_body_bytes}: one client may hold half of it. Say at least "
                f"--max-memory {BODIES * self.max_body_bytes}, or a smaller --max-body"
            )
        known_hosts(self.host, self.host_names)
        if (self.tls_cert is None) != (self.tls_key is None):
            raise OptionInvalid(
                "--tls-cert and --tls-key belong together, but only one was given. Give both, or "
                "neither"
            )
        for file in (self.tls_cert, self.tls_key):
            if file is not None and not file.is_file():
                raise OptionInvalid(f"TLS file {file} does not exist. Name a PEM file")
        if self.tls_cert is not None:
            try:
                ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(self.tls_cert, self.tls_key)
            except OSError as error:
                raise OptionInvalid(
                    f"TLS files {self.tls_cert} and {self.tls_key} cannot be used: "
                    f"{error.strerror or error}. Name a certificate chain and its key, both as PEM"
                ) from error


def is_loopback(host: str) -> bool:
    """Whether a name or address is this machine's own."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def memory_of_process() -> int:
    """Return the bytes of memory that this process may have: its machine's, or its container's."""
    found = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with suppress(OSError, ValueError):  # no container, or one without a limit ("max")
        found = min(found, int(_CGROUP.read_text()))
    return found
