"""Build the TLS context from its files, and explain why a handshake with Cassandra fails."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

from cassieq_spark.errors import OptionInvalid, TlsFailed
from cassieq_spark.options import ConnectionOptions
from cassieq_spark.options.option import TlsOptions

_LOOK_S: Final = 3.0
"""The timeout of each probe of one node after a connection has failed."""

_OPTIONS_FRAME: Final = bytes((0x04, 0, 0, 0, 0x05, 0, 0, 0, 0))
"""OPTIONS of native protocol v4: the one request a node answers before a login; it has no
secret."""

_RESPONSE_BIT: Final = 0x80

_ISSUER_UNKNOWN: Final = frozenset({2, 18, 19, 20, 21})
"""OpenSSL's X509_V_ERR_*: no issuer's certificate, self-signed, or a chain without a known end."""

_NAME_MISMATCH: Final = frozenset({62, 64})
"""X509_V_ERR_HOSTNAME_MISMATCH, X509_V_ERR_IP_ADDRESS_MISMATCH."""


def context(tls: TlsOptions) -> ssl.SSLContext:
    """Make a context that verifies a node by the CA file alone, not by the machine's CAs.

    Raises:
        OptionInvalid: A file does not exist, cannot be read, or has the wrong content; the error
            names it.
    """
    # Python's defaults for a client: TLS 1.2 or later, a certificate, and one for this host.
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    # This is Python's default since 3.10, which Debian's Python 3.11 leaves to the system.
    made.minimum_version = max(made.minimum_version, ssl.TLSVersion.TLSv1_2)
    made.check_hostname = tls.verifies_hostname
    named = tls.spelling.named
    _load_certificates(made, named("sslCaFile"), tls.ca_file)
    if tls.cert_file is not None:
        # Into a context of its own: a client's certificate is not a CA.
        own = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        _load_certificates(own, named("sslCertFile"), tls.cert_file)
        _load_key(made, tls, tls.cert_file)
    return made


class Files:
    """The driver's TLS context; it reads the files anew for each connection.

    So certificates can be renewed while clients run.
    """

    def __init__(self, tls: TlsOptions) -> None:
        context(tls)  # raises for a file that cannot be used
        self._tls = tls
        self.check_hostname = tls.verifies_hostname

    def wrap_socket(self, plain: socket.socket, **options: Any) -> ssl.SSLSocket:
        """Encrypt one connection.

        Raises:
            OptionInvalid: See `context`.
        """
        return context(self._tls).wrap_socket(plain, **options)


def disagreement(options: ConnectionOptions, own: Files | None) -> TlsFailed | None:
    """Return why no node could be connected to, if TLS is the cause; None if not, or unclear.

    Call it after a failure: the driver wraps OpenSSL's message in a text of its own, and reports
    "closed" if one side speaks TLS and the other does not. It sends no login.
    """
    for host, port in options.contact_points:
        try:
            found = (_look_plain if own is None else partial(_look, own))(host, port, options)
        except OSError:  # no node there, or it keeps silent: not because of TLS
            continue
        if found is not None:
            return TlsFailed(f"the node at {host}:{port} {found}")
    return None


def _load_certificates(made: ssl.SSLContext, option: str, path: str) -> None:
    _check_readable(option, path)
    try:
        made.load_verify_locations(path)
    except (ssl.SSLError, OSError) as error:
        raise OptionInvalid(
            f"{option}: there is no certificate in {path!r} ({error}). It must be a PEM "
            "file, with BEGIN CERTIFICATE"
        ) from error


def _load_key(made: ssl.SSLContext, tls: TlsOptions, cert_file: str) -> None:
    of, path = tls.spelling.of, tls.key_file or cert_file
    option = tls.spelling.named("sslCertFile" if tls.key_file is None else "sslKeyFile")
    _check_readable(option, path)
    try:
        made.load_cert_chain(cert_file, tls.key_file, _password(tls, option, path))
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            why = (
                f"the key in {path!r} does not belong to the certificate in {cert_file!r}. Name a "
                "key and a certificate that belong together"
            )
        else:
            what = f"there is no key in {path!r}"
            if tls.key_password is not None:
                what = f"no key in {path!r} can be read with this {of('sslKeyPassword')}"
            why = f"{what} ({error}). It must be a PEM file, with BEGIN ... PRIVATE KEY"
        raise OptionInvalid(f"{option}: {why}") from error


def _password(tls: TlsOptions, option: str, path: str) -> Callable[[], str]:
    """Give OpenSSL the key's password. Otherwise it would ask a terminal, and hang a task."""

    def answer() -> str:
        if tls.key_password is None:
            raise OptionInvalid(
                f"{option}: the key in {path!r} is encrypted, and "
                f"{tls.spelling.of('sslKeyPassword')} is not set. Set it, or its variable "
                "CASSIEQ_SSL_KEY_PASSWORD"
            )
        return tls.key_password.reveal()

    return answer


def _check_readable(option: str, path: str) -> None:
    """Check by hand that a file can be read: OpenSSL's errors name no file."""
    try:
        with Path(path).open("rb"):
            return
    except OSError as error:
        raise OptionInvalid(
            f"{option}: the file {path!r} cannot be read on this machine "
            f"({error.strerror}). Put it there, and make it readable for the user that runs this "
            "process"
        ) from error


def _look(own: Files, host: str, port: int, options: ConnectionOptions) -> str | None:
    """Describe the problem between this client's TLS and a node."""
    said = "it closed the connection"
    with socket.create_connection((host, port), _LOOK_S) as plain:
        try:
            # The driver resolves contact points, and knows nodes only by their addresses.
            address = plain.getpeername()[0]
            with own.wrap_socket(plain, server_hostname=address) as encrypted:
                # With TLS 1.3 a node refuses a client's certificate after the handshake.
                if _answers(encrypted):
                    return None
        except ssl.SSLCertVerificationError as error:
            return _unacceptable(error, options)
        except ssl.SSLError as error:
            said = (error.reason or said).replace("_", " ").lower()
        except ConnectionError:
            pass  # the node's message may be lost with the connection
    if _answers_plain(host, port):
        return (
            f"does not speak TLS, but {options.spelling.of('sslCaFile')} demands it. Encrypt its "
            "native transport (client_encryption_options in cassandra.yaml), or leave out the ssl "
            "options"
        )
    return _broken_off(said, options)


def told(error: ssl.SSLError, options: ConnectionOptions) -> str:
    """Describe the problem with a node's TLS, by the error of a connection to it."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return _unacceptable(error, options)
    return _broken_off((error.reason or str(error)).replace("_", " ").lower(), options)


def _unacceptable(error: ssl.SSLCertVerificationError, options: ConnectionOptions) -> str:
    words, advice = error.verify_message, _advice(error, options.spelling.of)
    return f"shows a certificate that cannot be accepted ({words}). {advice}"


def _broken_off(said: str, options: ConnectionOptions) -> str:
    of = options.spelling.of
    if options.tls is not None and options.tls.cert_file is None:
        return (
            f"breaks off TLS ({said}), and this client shows no certificate. If nodes demand one "
            f"(require_client_auth), set {of('sslCertFile')} and {of('sslKeyFile')}"
        )
    return (
        f"breaks off TLS ({said}). Does its truststore hold the CA that signed this client's "
        f"certificate ({of('sslCertFile')})? Has that certificate expired? Do both sides allow the "
        "same TLS version?"
    )


def _advice(error: ssl.SSLCertVerificationError, of: Callable[[str], str]) -> str:
    if error.verify_code in _NAME_MISMATCH:
        return (
            "Give the nodes certificates that name their addresses, or "
            f"turn {of('sslVerifyHostname')} off if any certificate of your own CA will do"
        )
    if error.verify_code in _ISSUER_UNKNOWN:
        return f"Is {of('sslCaFile')} the CA that signed it?"
    return "Renew it, or check this machine's clock"


def _look_plain(host: str, port: int, options: ConnectionOptions) -> str | None:
    """Explain a plain failure: whether a node wants TLS from a client that has none."""
    if _answers_plain(host, port):
        return None
    # This context trusts anybody and sends nothing: it only asks whether the node speaks TLS.
    anybody = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    anybody.check_hostname = False
    anybody.verify_mode = ssl.CERT_NONE
    try:
        with (
            socket.create_connection((host, port), _LOOK_S) as plain,
            anybody.wrap_socket(plain) as encrypted,
        ):
            encrypted.version()
    except ssl.SSLEOFError:
        return None
    except ssl.SSLError as error:
        if "ALERT" not in (error.reason or ""):
            return None
    of = options.spelling.of
    return (
        f"speaks only TLS, and this client does not. Set {of('sslCaFile')}, and also "
        f"{of('sslCertFile')} with {of('sslKeyFile')} if nodes demand a client's certificate"
    )


def _answers_plain(host: str, port: int) -> bool:
    try:
        with socket.create_connection((host, port), _LOOK_S) as connection:
            return _answers(connection)
    except OSError:
        return False


def _answers(connection: socket.socket) -> bool:
    """Whether the response looks like CQL's native protocol."""
    connection.settimeout(_LOOK_S)
    connection.sendall(_OPTIONS_FRAME)
    answer = connection.recv(len(_OPTIONS_FRAME))
    return bool(answer) and bool(answer[0] & _RESPONSE_BIT)
