"""Define the options of every connection: how to reach Cassandra, and how to log in."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from os import PathLike
from typing import Annotated, Any, Final, TypedDict

from cassieq_spark.errors import OptionUnknown
from cassieq_spark.options import values
from cassieq_spark.options.option import (
    EVERYWHERE,
    Option,
    Row,
    camel_case,
    did_you_mean,
    rows_of,
)
from cassieq_spark.options.values import Secret

_SECRET: Final = Row(values=values.secret(1_000), example="***", is_secret=True)


def _file(example: str) -> Row:
    return Row(values=values.file_path(), example=example)


class ConnectionArguments(TypedDict, total=False):
    """The keywords of `connect` and `foreach_batch` that say how to reach Cassandra.

    Each is an option in Python's spelling: ``connect_timeout`` is ``connectTimeout``. None means
    the default. Times may be text such as ``"5s"``.

    Attributes:
        keyspace: The keyspace that holds the queues. `bootstrap` creates it.
        datacenter: The local data centre. Unset: the data centre of the contact points.
        connect_timeout: How long to wait for a first answer from a node.
        username: The role to log in as. It needs `password`. Unset: no login.
        password: The password of `username`. Prefer the environment variable, so that no secret is
            in your code.
        ssl_ca_file: PEM file with the certificates of the CAs that may sign the nodes'
            certificates. If it is set, every connection uses TLS; if not, none does. This file,
            `sslCertFile` and `sslKeyFile` must be on every machine that runs tasks.
        ssl_cert_file: PEM file with this client's certificate and the certificates between it and
            its CA, for nodes that ask for one.
        ssl_key_file: PEM file with the private key of `sslCertFile`. Unset: the key is in
            `sslCertFile` itself.
        ssl_key_password: The password of the private key, if the key is encrypted.
        ssl_verify_hostname: Check that a node's certificate names the address that the driver
            connects to. Drivers connect to the addresses that nodes tell each other, so
            certificates must name those.
    """

    keyspace: Annotated[str | None, Row(values=values.keyspace(), default="cassieq")]
    datacenter: Annotated[str | None, Row(values=values.text(200), example="datacenter1")]
    connect_timeout: Annotated[
        float | str | None, Row(values=values.seconds(1, 60), default=10.0, unit="seconds")
    ]
    username: Annotated[str | None, Row(values=values.text(200), example="billing")]
    # Spark hides an option whose name contains "password" (spark.redaction.regex) where it
    # prints plans; so the names of secrets must contain it.
    password: Annotated[str | Secret | None, _SECRET]
    ssl_ca_file: Annotated[str | PathLike[str] | None, _file("/etc/cassieq/ca.pem")]
    ssl_cert_file: Annotated[str | PathLike[str] | None, _file("/etc/cassieq/client.pem")]
    ssl_key_file: Annotated[str | PathLike[str] | None, _file("/etc/cassieq/client.key")]
    ssl_key_password: Annotated[str | Secret | None, _SECRET]
    ssl_verify_hostname: Annotated[bool | None, Row(values=values.flag(), default=True)]


def by_option(
    connection: Mapping[str, Any],
    own: Mapping[str, Any],
    *,
    of: str,
    others: Iterable[str] = (),
) -> dict[str, Any]:
    """Name a function's keywords as their options: ``contact_points`` is ``contactPoints``.

    Args:
        connection: What it was given beside its own.
        own: Its own keywords that are options, too.
        of: Its name, for the error.
        others: Its keywords that are no options.

    Raises:
        OptionUnknown: ``connection`` has what `ConnectionArguments` has not; names the nearest.
    """
    for keyword in connection:
        if keyword not in ConnectionArguments.__annotations__:
            known = [*ConnectionArguments.__annotations__, *own, *others]
            spelt = re.sub(r"[A-Z]", lambda found: f"_{found[0].lower()}", keyword)
            hint = did_you_mean(spelt, known) or f" It has: {', '.join(sorted(known))}"
            raise OptionUnknown(f"{of}() has no keyword {keyword!r}.{hint}")
    return {camel_case(keyword): value for keyword, value in {**connection, **own}.items()}


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


CONNECTION: Final[tuple[Option, ...]] = (
    Option(
        name="contactPoints",
        scopes=EVERYWHERE,
        values=values.contact_points(),
        is_required=True,
        example="10.0.0.1:9042,10.0.0.2:9042",
        doc="Cassandra nodes to connect to first. The default port is 9042.",
    ),
    *rows_of(ConnectionArguments, EVERYWHERE),
)
