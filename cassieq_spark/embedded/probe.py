"""Find out how a node is, without a driver: over a raw socket, and from its log."""

from __future__ import annotations

import re
import socket
import ssl
import struct
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from cassieq_spark.embedded.config import NodeConfig

#: Native protocol v4: version, flags, stream, opcode, body length. Only the request without a body.
_HEADER = struct.Struct(">BBhBi")
_REQUEST_V4 = 0x04
_RESPONSE_V4 = 0x84
_OPTIONS = 0x05
_SUPPORTED = 0x06

_POLL_S = 0.05


def answers_tls(host: str, port: int, *, timeout_s: float = 1.0) -> bool:
    """Whether a node that takes only encrypted connections answers a TLS handshake.

    This is as far as it can go: the node may demand a certificate that only its clients have. The
    kernel cannot answer in a stopped JVM's place, and a JVM that is booting has not bound the port.
    """
    # It trusts nobody and sends nothing.
    anybody = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    anybody.check_hostname = False
    anybody.verify_mode = ssl.CERT_NONE
    try:
        with (
            socket.create_connection((host, port), timeout=timeout_s) as connection,
            anybody.wrap_socket(connection),
        ):
            return True
    except ssl.SSLError as error:
        return "ALERT" in (error.reason or "")  # TLS 1.2: it asks for the certificate first
    except OSError:
        return False


def answers_cql(host: str, port: int, *, timeout_s: float = 1.0) -> bool:
    """Whether the node answers OPTIONS with SUPPORTED, the first exchange of every driver.

    An open port is not enough: the kernel accepts connections for a stopped (SIGSTOP) JVM too.
    """
    request = _HEADER.pack(_REQUEST_V4, 0, 0, _OPTIONS, 0)
    try:
        with socket.create_connection((host, port), timeout=timeout_s) as connection:
            connection.sendall(request)
            header = b""
            while len(header) < _HEADER.size:
                received = connection.recv(_HEADER.size - len(header))
                if not received:
                    return False
                header += received
    except OSError:
        return False
    version, _flags, _stream, opcode, _length = _HEADER.unpack(header)
    return bool(version == _RESPONSE_V4 and opcode == _SUPPORTED)


def becomes_true(condition: Callable[[], bool], *, limit_s: float) -> bool:
    """Whether the condition holds before the limit; it is asked once at least."""
    deadline = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_S)  # noqa: TID251 - no Clock moves another process forward
    return True


#: Gossiper.java of Cassandra 5.0: the last of these about a peer is what this node believes of it.
_PEER_STATE = re.compile(r"InetAddress /(?P<address>[\d.]+):\d+ is now (?P<state>UP|DOWN)")

_CONSOLE_LINES = 25
_LAST_LINES = 12


class NodeLog:
    """The two log files of one node."""

    def __init__(self, config: NodeConfig) -> None:
        self._system = config.system_log
        self._console = config.console_log
        self._start = 0

    def mark_start(self) -> None:
        """Forget what earlier lives of the node logged."""
        self._start = self.position()

    def position(self) -> int:
        """The present end of the log, for ``peers(since=...)``."""
        return self._system.stat().st_size if self._system.is_file() else 0

    def peers(self, *, since: int = 0) -> dict[str, bool]:
        """Each peer's address, and whether it is up as this node last said after ``since``."""
        text = self._text(max(since, self._start))
        return {match["address"]: match["state"] == "UP" for match in _PEER_STATE.finditer(text)}

    def tail(self) -> str:
        """The best explanation of an end: the JVM's words, the last warnings, the last lines."""
        console = ""
        if self._console.is_file():
            console = self._console.read_text(encoding="utf-8", errors="replace")
        logged = self._text(self._start).splitlines()
        last = logged[-_LAST_LINES:]
        # A node that dies logs its shutdown at length after the reason.
        warnings = [
            line for line in logged[:-_LAST_LINES] if line.startswith(("WARN", "ERROR", "FATAL"))
        ]
        return "\n".join(console.splitlines()[-_CONSOLE_LINES:] + warnings[-_LAST_LINES:] + last)

    def _text(self, start: int) -> str:
        try:
            with self._system.open("rb") as log:
                log.seek(start if start <= self.position() else 0)  # it rolls at 20 MB
                return log.read().decode("utf-8", errors="replace")
        except FileNotFoundError:
            return ""
