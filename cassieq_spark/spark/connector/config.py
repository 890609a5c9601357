"""Make the connector's settings, for a session and for a bulk write. Needs no Spark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from cassieq_spark.errors import OptionInvalid, OptionUnknown, UsageError
from cassieq_spark.options import ConnectionOptions, connection_of
from cassieq_spark.options.values import Secret

CONNECTOR: Final = "com.datastax.spark:spark-cassandra-connector_2.13:3.5.1"
"""The Maven coordinates of the tested connector, on Spark 4.3.0, as a plain data source. Its
`CassandraSparkExtensions` do not load there (NoSuchMethodError): never set them."""

BATCH_BYTES: Final = ("spark.sql.execution.arrow.maxBytesPerBatch", "8m")
"""The bytes that Spark hands to a Python worker at once. By default it is 64 MB: with large bodies
a worker then holds some 300 MB: the batch before, this one, and its way in (measured, 4.3.0)."""

UNIX_SOCKETS: Final = ("spark.python.unix.domain.socket.enabled", "true")
"""By TCP, its default, Spark feeds a Python task in two steps, and the second waits for the first
to be acknowledged, which the task's machine delays by 40 ms (measured, 4.3.0)."""

FORMAT: Final = "org.apache.spark.sql.cassandra"

PREFIX: Final = "spark.cassandra."
SSL: Final = f"{PREFIX}connection.ssl."
SSL_ENABLED: Final = f"{SSL}enabled"

# By default the connector offers two suites without forward secrecy. A node whose certificate has
# an elliptic-curve key answers them with handshake_failure (3.5.1).
_CIPHERS: Final = (
    "TLS_AES_256_GCM_SHA384",
    "TLS_AES_128_GCM_SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384",
    "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384",
    "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",
    "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",
)

STRONG: Final = ("LOCAL_QUORUM", "QUORUM", "EACH_QUORUM", "ALL")
"""The write consistencies that are allowed. Weaker ones could lose an acknowledged batch (G1)."""

_CONSISTENCY: Final = f"{PREFIX}output.consistency.level"

# A program may have set these for its own tables in its session, and they must not hold for ours:
# a TTL would delete messages, IF NOT EXISTS would make each row an LWT, an unset column a
# tombstone.
_ALWAYS: Final = {
    f"{PREFIX}output.ignoreNulls": "true",
    f"{PREFIX}output.ifNotExists": "false",
    f"{PREFIX}output.ttl": "0",
}

_BY_ARGUMENT: Final = {
    f"{PREFIX}connection.host": "contact_points",
    f"{PREFIX}connection.port": "contact_points",
    f"{PREFIX}connection.localDC": "datacenter",
    f"{PREFIX}auth.username": "username",
    f"{PREFIX}auth.password": "password",
    f"{PREFIX}output.concurrent.writes": "writes_in_flight",
}

_OURS: Final = {
    name.lower(): name for name in (*_ALWAYS, f"{PREFIX}output.timestamp", *_BY_ARGUMENT)
}


def spark_config(
    contact_points: str | Sequence[str] | None = None,
    *,
    datacenter: str | None = None,
    username: str | None = None,
    password: str | Secret | None = None,
    trust_store: str | None = None,
    trust_store_password: str | None = None,
    key_store: str | None = None,
    key_store_password: str | None = None,
) -> dict[str, str]:
    """The settings that `foreach_batch` needs, for ``SparkSession.builder.config(map=...)``.

    They also bound the memory of Python workers that put large bodies, with either writer, and let
    Python tasks begin sooner.

    Pure: it looks nothing up and connects to nobody. `foreach_batch` passes host, login and
    consistency with each write; they are here for a program's own use of the connector too. Only
    these settings can load the connector itself, and turn on TLS.

    Args:
        contact_points: As for `cassieq_spark.connect`; default: variable CASSIEQ_CONTACT_POINTS.
        trust_store: Java key store (JKS or PKCS 12) with the CAs of the nodes' certificates; it
            turns TLS on. It must be on every machine, and so must ``key_store``, which holds this
            client's certificate.

    Raises:
        UsageError: A value has a wrong form; or TLS is configured by PEM files (variable
            CASSIEQ_SSL_CA_FILE), which the connector cannot read, and no trust store is given.
    """
    keywords = {"datacenter": datacenter, "username": username, "password": password}
    connection = connection_of(keywords, contact_points, of="spark_config")
    stores = {
        "trustStore.path": trust_store,
        "trustStore.password": trust_store_password,
        "keyStore.path": key_store,
        "keyStore.password": key_store_password,
    }
    tls = {f"{SSL}{name}": value for name, value in stores.items() if value is not None}
    if tls and trust_store is None:
        raise UsageError(
            f"{', '.join(sorted(tls))} is set without trust_store, but there is no TLS without "
            "it. Set it too"
        )
    if tls:
        tls[SSL_ENABLED] = "true"
        tls[f"{SSL}enabledAlgorithms"] = ",".join(_CIPHERS)
    if key_store is not None:
        tls[f"{SSL}clientAuth.enabled"] = "true"
    check_tls(connection, tls)
    return {
        "spark.jars.packages": CONNECTOR,
        **dict([BATCH_BYTES, UNIX_SOCKETS]),
        **_reach(connection, connection.datacenter),
        f"{PREFIX}input.consistency.level": "LOCAL_QUORUM",
        _CONSISTENCY: "LOCAL_QUORUM",
        **tls,
    }


def checked(given: Mapping[str, object] | None) -> dict[str, str]:
    """Check the connector's own settings that a program adds to its writes.

    Raises:
        OptionUnknown: The connector has no such setting.
        OptionInvalid: An argument of ours sets it, or it would break a guarantee.
    """
    found: dict[str, str] = {}
    for name, value in (given or {}).items():
        if not name.lower().startswith(PREFIX):
            raise OptionUnknown(
                f"{name!r} is not a setting of the Spark Cassandra Connector: its settings begin "
                f"with {PREFIX!r}, for example '{PREFIX}output.throughputMBPerSec'"
            )
        text = str(value).lower() if isinstance(value, bool) else str(value)
        ours = _OURS.get(name.lower())
        if ours in _BY_ARGUMENT:
            raise OptionInvalid(
                f"{ours!r} is set by argument {_BY_ARGUMENT[ours]!r}. Use that argument"
            )
        if ours is not None:
            raise OptionInvalid(
                f"{ours!r} is fixed for messages: another value would lose some, or leave "
                "tombstones. Leave it out"
            )
        if name.lower() == _CONSISTENCY.lower() and text not in STRONG:
            raise OptionInvalid(
                f"{_CONSISTENCY!r} is {text!r}, allowed: {', '.join(STRONG)}. A message that "
                "fewer replicas have could be lost after its batch is committed"
            )
        found[name] = text
    return found


def check_tls(connection: ConnectionOptions, settings: Mapping[str, str]) -> None:
    """Refuse TLS on our own session when the connector would not use it too.

    Args:
        settings: The connector's own, of the write and of the session.

    Raises:
        UsageError: It says what to set.
    """
    lower = {name.lower(): value.lower() for name, value in settings.items()}
    if connection.tls is not None and lower.get(SSL_ENABLED.lower()) != "true":
        raise UsageError(
            f"TLS is set up with a PEM file ({connection.tls.ca_file}), but the Spark Cassandra "
            "Connector reads only Java key stores. Put that CA into one (keytool -importcert "
            f"-file {connection.tls.ca_file} -keystore trust.p12 -storetype PKCS12), copy it to "
            f"every machine, and set {SSL_ENABLED}=true, {SSL}trustStore.path and "
            f"{SSL}trustStore.password in the session (spark_config(trust_store=...)). If nodes "
            f"ask for a client's certificate, also set {SSL}keyStore.path, {SSL}keyStore.password "
            f"and {SSL}clientAuth.enabled=true"
        )


def write_options(
    connection: ConnectionOptions,
    given: Mapping[str, str],
    *,
    datacenter: str,
    writes_in_flight: int,
    write_time_us: int,
) -> dict[str, Any]:
    """The connector's options of one bulk write. They go with each write, not with the session.

    Args:
        given: As `checked` returns it.
        datacenter: The one that our own session works in: its quorum decides (G1).
        write_time_us: The write time of all rows of the batch: cluster time, as the driver has
            measured it. Otherwise each executor's own clock would decide.
    """
    lower = {name.lower() for name in given}
    defaults = {
        _CONSISTENCY: "LOCAL_QUORUM",
        # One row, one statement: chunks are large, and nodes refuse a batch of them.
        f"{PREFIX}output.batch.size.rows": "1",
        f"{PREFIX}connection.timeoutMS": str(int(connection.connect_timeout_s * 1000)),
    }
    return {
        "keyspace": connection.keyspace,
        "table": "message",
        "writetime": str(write_time_us),
        **_ALWAYS,
        **_reach(connection, datacenter),
        f"{PREFIX}output.concurrent.writes": str(writes_in_flight),
        **{name: value for name, value in defaults.items() if name.lower() not in lower},
        **given,
    }


def _reach(connection: ConnectionOptions, datacenter: str | None) -> dict[str, str]:
    hosts = ",".join(
        f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        for host, port in connection.contact_points
    )
    reach = {f"{PREFIX}connection.host": hosts}
    if datacenter is not None:
        reach[f"{PREFIX}connection.localDC"] = datacenter
    if connection.login is not None:
        reach[f"{PREFIX}auth.username"] = connection.login.username
        reach[f"{PREFIX}auth.password"] = connection.login.password.reveal()
    return reach
