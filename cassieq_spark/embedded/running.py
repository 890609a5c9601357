"""Find out whether a node runs on a directory, and how it is, without a driver.

A directory is locked exactly while a JVM uses it. The JVM inherits the locked descriptor, so the
kernel releases the lock when the JVM ends, however that happens. Unlike a pid file it cannot be
stale, and no reused pid is ever taken for a node's.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import socket
import ssl
import struct
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from cassieq_spark.embedded.config import NodeConfig
from cassieq_spark.errors import EmbeddedFailed

_LOCK_FILE = "node.lock"

#: From taking the lock to recording the JVM: a fork and exec, on whatever loaded machine.
_RECORD_TIMEOUT_S = 10.0

#: A look at the lock takes it for an instant, so a refusal counts only when it lasts.
_TAKE_TIMEOUT_S = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """The JVM that uses a directory."""

    pid: int
    port: int


def take_lock(directory: Path) -> int | None:
    """Return the locked descriptor, which the JVM inherits and we close; None while one runs."""
    descriptor = os.open(directory / _LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o600)
    if not becomes_true(lambda: _try_lock(descriptor), limit_s=_TAKE_TIMEOUT_S):
        os.close(descriptor)
        return None
    os.ftruncate(descriptor, 0)
    return descriptor


def record_holder(descriptor: int, holder: Holder) -> None:
    """Record which JVM has inherited the lock; it counts for as long as the lock is held."""
    os.pwrite(descriptor, json.dumps(asdict(holder)).encode(), 0)


def holder_of(directory: Path) -> Holder | None:
    """Return the JVM that uses the directory now; None if no JVM does.

    Raises:
        EmbeddedFailed: Somebody has held the lock for a while without recording a JVM.
    """
    found: list[Holder] = []

    def is_settled() -> bool:
        if not is_locked(directory):
            return True
        text = (directory / _LOCK_FILE).read_text(encoding="utf-8")
        if text.endswith("}"):
            found.append(Holder(**json.loads(text)))
        return bool(found)

    if not becomes_true(is_settled, limit_s=_RECORD_TIMEOUT_S):
        raise EmbeddedFailed(
            f"{directory / _LOCK_FILE} is held by a process that has not started a node. End that "
            "process"
        )
    return found[0] if found else None


def is_locked(directory: Path) -> bool:
    """Whether a JVM uses this directory, or is being started on it."""
    try:
        descriptor = os.open(directory / _LOCK_FILE, os.O_RDWR)
    except FileNotFoundError:
        return False
    try:
        return not _try_lock(descriptor)
    finally:
        os.close(descriptor)


def directory_in_use(directory: Path) -> str:
    """The message to a user who starts a node on a locked directory."""
    return (
        f"a node is already running on {directory}. Stop that one first, or name another data "
        "directory"
    )


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


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


def answers(config: NodeConfig) -> bool:
    """Whether CQL answers within a second."""
    options = config.settings.get("client_encryption_options")
    is_encrypted = isinstance(options, dict) and bool(
        options.get("enabled") and not options.get("optional")
    )
    look = answers_tls if is_encrypted else answers_cql
    return look(config.address, config.native_port)


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
