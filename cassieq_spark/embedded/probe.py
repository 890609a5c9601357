"""Ask a node over a raw socket whether CQL answers, and wait for it: neither needs a driver."""

from __future__ import annotations

import socket
import ssl
import struct
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

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
