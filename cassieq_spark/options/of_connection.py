"""Define the options of every connection: how to reach Cassandra, and how to log in."""

from __future__ import annotations

from typing import Final

from cassieq_spark.options import values
from cassieq_spark.options.option import EVERYWHERE, Option

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
        name="connectTimeoutSeconds",
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
