"""Define the options of every connection: how to reach Cassandra, and how to log in."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from os import PathLike
from typing import Any, Final, TypedDict

from cassieq_spark.errors import OptionUnknown
from cassieq_spark.options import values
from cassieq_spark.options.option import EVERYWHERE, Option
from cassieq_spark.options.values import Secret


class ConnectionArguments(TypedDict, total=False):
    """The keywords of `connect` and `foreach_batch` that say how to reach Cassandra.

    Each is an option in Python's spelling: ``connect_timeout`` is ``connectTimeout``. None means
    the default, as in the reference of options.

    Attributes:
        keyspace: Default ``cassieq``.
        datacenter: The local data centre; default: that of the contact points.
        connect_timeout: Seconds to wait for a node to answer, or text such as ``"5s"``; default 10.
        username: The role to log in as, with its ``password``; default: no login.
        ssl_ca_file: PEM file of the CA that signed the nodes' certificates; it turns TLS on.
        ssl_cert_file: PEM file of this client's own certificate; its key is in ``ssl_key_file``,
            or in the same file. ``ssl_key_password`` decrypts the key, if it is encrypted.
        ssl_verify_hostname: Whether a node's certificate must name its address; default true.
    """

    keyspace: str | None
    datacenter: str | None
    connect_timeout: float | str | None
    username: str | None
    password: str | Secret | None
    ssl_ca_file: str | PathLike[str] | None
    ssl_cert_file: str | PathLike[str] | None
    ssl_key_file: str | PathLike[str] | None
    ssl_key_password: str | Secret | None
    ssl_verify_hostname: bool | None


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
            near = get_close_matches(spelt, known, n=1)
            raise OptionUnknown(
                f"{of}() has no keyword {keyword!r}. "
                + (f"Did you mean {near[0]!r}?" if near else f"It has: {', '.join(sorted(known))}")
            )
    return {
        re.sub(r"_([a-z])", lambda found: found[1].upper(), keyword): value
        for keyword, value in {**connection, **own}.items()
    }


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
    Option(
        name="keyspace",
        scopes=EVERYWHERE,
        values=values.keyspace(),
        default="cassieq",
        doc="The keyspace that holds the queues. `bootstrap` creates it.",
    ),
    Option(
        name="datacenter",
        scopes=EVERYWHERE,
        values=values.text(200),
        example="datacenter1",
        doc="The local data centre. Unset: the data centre of the contact points.",
    ),
    Option(
        name="connectTimeout",
        scopes=EVERYWHERE,
        values=values.seconds(1, 60),
        default=10.0,
        unit="seconds",
        doc="How long to wait for a first answer from a node.",
    ),
    Option(
        name="username",
        scopes=EVERYWHERE,
        values=values.text(200),
        example="billing",
        doc="The role to log in as. It needs `password`. Unset: no login.",
    ),
    # Spark hides an option whose name contains "password" (spark.redaction.regex) where it
    # prints plans; so the names of secrets must contain it.
    Option(
        name="password",
        scopes=EVERYWHERE,
        values=values.secret(1_000),
        example="***",
        is_secret=True,
        doc="The password of `username`. Prefer the environment variable, so that no secret is "
        "in your code.",
    ),
    Option(
        name="sslCaFile",
        scopes=EVERYWHERE,
        values=values.file_path(),
        example="/etc/cassieq/ca.pem",
        doc="PEM file with the certificates of the CAs that may sign the nodes' certificates. If "
        "it is set, every connection uses TLS; if not, none does. This file, `sslCertFile` "
        "and `sslKeyFile` must be on every machine that runs tasks.",
    ),
    Option(
        name="sslCertFile",
        scopes=EVERYWHERE,
        values=values.file_path(),
        example="/etc/cassieq/client.pem",
        doc="PEM file with this client's certificate and the certificates between it and its CA, "
        "for nodes that ask for one.",
    ),
    Option(
        name="sslKeyFile",
        scopes=EVERYWHERE,
        values=values.file_path(),
        example="/etc/cassieq/client.key",
        doc="PEM file with the private key of `sslCertFile`. Unset: the key is in `sslCertFile` "
        "itself.",
    ),
    Option(
        name="sslKeyPassword",
        scopes=EVERYWHERE,
        values=values.secret(1_000),
        example="***",
        is_secret=True,
        doc="The password of the private key, if the key is encrypted.",
    ),
    Option(
        name="sslVerifyHostname",
        scopes=EVERYWHERE,
        values=values.flag(),
        default=True,
        doc="Check that a node's certificate names the address that the driver connects to. "
        "Drivers connect to the addresses that nodes tell each other, so certificates must "
        "name those.",
    ),
)
