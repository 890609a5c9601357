"""What the Spark Cassandra Connector is told: how to reach the cluster, and what is fixed."""

from __future__ import annotations

import subprocess
import sys

import pytest

from cassieq_spark.errors import OptionInvalid, UsageError
from cassieq_spark.options import parse_connection
from cassieq_spark.spark import foreach_batch, spark_config
from cassieq_spark.spark.connector import config

NODES = "10.0.0.1:9142,[fd00::2]"


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CONTACT_POINTS", "USERNAME", "PASSWORD", "SSL_CA_FILE", "DATACENTER"):
        monkeypatch.delenv(f"CASSIEQ_{name}", raising=False)


def written(connector: dict[str, object] | None = None, **connection: object) -> dict[str, str]:
    """The options of one write."""
    return config.write_options(
        parse_connection({"contactPoints": NODES, **connection}),
        config.checked(connector),
        datacenter="dc1",
        writes_in_flight=6,
        write_time_us=17,
    )


def test_a_write_carries_all_that_it_needs_itself() -> None:
    assert {
        "keyspace": "cassieq",
        "table": "message",
        "writetime": "17",
        "spark.cassandra.output.ignoreNulls": "true",
        "spark.cassandra.output.ifNotExists": "false",
        "spark.cassandra.output.ttl": "0",
        "spark.cassandra.connection.host": "10.0.0.1:9142,[fd00::2]:9042",
        "spark.cassandra.connection.localDC": "dc1",
        "spark.cassandra.output.concurrent.writes": "6",
        "spark.cassandra.output.consistency.level": "LOCAL_QUORUM",
        "spark.cassandra.output.batch.size.rows": "1",
        "spark.cassandra.connection.timeoutMS": "10000",
    } == written()


def test_a_login_is_carried_over() -> None:
    found = written(username="billing", password="p")  # noqa: S106 - a test's
    assert "billing" == found["spark.cassandra.auth.username"]
    assert "p" == found["spark.cassandra.auth.password"]


def test_throttle_and_a_stronger_consistency_are_passed_through() -> None:
    found = written(
        {
            "spark.cassandra.output.throughputMBPerSec": 2.5,
            "Spark.Cassandra.Output.Consistency.Level": "ALL",
            "spark.cassandra.output.metrics": False,
        }
    )
    assert "2.5" == found["spark.cassandra.output.throughputMBPerSec"]
    assert "false" == found["spark.cassandra.output.metrics"]
    assert ["ALL"] == [
        value for name, value in found.items() if name.lower().endswith("consistency.level")
    ]


@pytest.mark.parametrize("level", ["ONE", "LOCAL_ONE", "ANY", "TWO", "local_quorum", ""])
def test_a_consistency_that_may_lose_messages_is_refused(level: str) -> None:
    with pytest.raises(OptionInvalid, match="LOCAL_QUORUM, QUORUM, EACH_QUORUM, ALL"):
        config.checked({"spark.cassandra.output.consistency.level": level})


@pytest.mark.parametrize("name", ["ttl", "ifNotExists", "ignoreNulls", "timestamp", "IGNORENULLS"])
def test_what_is_fixed_for_messages_is_refused(name: str) -> None:
    with pytest.raises(OptionInvalid, match="fixed for messages"):
        config.checked({f"spark.cassandra.output.{name}": "1"})


@pytest.mark.parametrize(
    ("name", "argument"),
    [
        ("connection.host", "contact_points"),
        ("connection.localDC", "datacenter"),
        ("auth.password", "password"),
        ("output.concurrent.writes", "writes_in_flight"),
    ],
)
def test_what_an_argument_sets_is_refused_and_the_argument_named(name: str, argument: str) -> None:
    with pytest.raises(OptionInvalid, match=argument) as refused:
        config.checked({f"spark.cassandra.{name}": "a-secret-value"})
    assert "a-secret-value" not in str(refused.value)


def test_a_session_gets_the_connector_and_how_to_reach_the_cluster() -> None:
    found = spark_config(NODES, datacenter="dc1", username="u", password="p")  # noqa: S106 - a test's
    assert {
        "spark.jars.packages": "com.datastax.spark:spark-cassandra-connector_2.13:3.5.1",
        "spark.sql.execution.arrow.maxBytesPerBatch": "8m",
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.cassandra.connection.host": "10.0.0.1:9142,[fd00::2]:9042",
        "spark.cassandra.connection.localDC": "dc1",
        "spark.cassandra.auth.username": "u",
        "spark.cassandra.auth.password": "p",
        "spark.cassandra.input.consistency.level": "LOCAL_QUORUM",
        "spark.cassandra.output.consistency.level": "LOCAL_QUORUM",
    } == found


def test_a_session_with_tls_gets_javas_key_stores() -> None:
    found = spark_config(
        NODES,
        trust_store="/t.p12",
        trust_store_password="t",  # noqa: S106 - a test's
        key_store="/k.p12",
        key_store_password="k",  # noqa: S106 - a test's
    )
    ssl = "spark.cassandra.connection.ssl."
    assert {
        "enabled": "true",
        "clientAuth.enabled": "true",
        "trustStore.path": "/t.p12",
        "trustStore.password": "t",
        "keyStore.path": "/k.p12",
        "keyStore.password": "k",
    } == {
        name.removeprefix(ssl): value
        for name, value in found.items()
        if name.startswith(ssl) and not name.endswith("enabledAlgorithms")
    }
    ciphers = found[f"{ssl}enabledAlgorithms"].split(",")
    assert all("_GCM_" in one and "TLS_RSA" not in one for one in ciphers)


def test_a_key_store_without_a_trust_store_is_refused() -> None:
    with pytest.raises(UsageError, match="without trust_store"):
        spark_config(NODES, key_store="/k.p12")


def test_tls_by_pem_files_needs_javas_key_stores_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CASSIEQ_SSL_CA_FILE", "/etc/ca.pem")
    with pytest.raises(UsageError, match=r"keytool -importcert -file /etc/ca\.pem"):
        spark_config(NODES)
    assert "true" == spark_config(NODES, trust_store="/t")[config.SSL_ENABLED]


def test_settings_need_no_spark() -> None:
    source = (
        "import sys; from cassieq_spark.spark import spark_config; spark_config('localhost');"
        "assert not any(name.split('.')[0] in ('pyspark', 'py4j') for name in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", source], check=True)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"queue": "a b"}, "'queue'"),
        ({"queue": "q", "chunk_messages": 0}, "'chunk_messages'"),
        ({"queue": "q", "connector": {"a": 1}}, "not a setting of the Spark Cassandra Connector"),
    ],
)
def test_a_wrong_argument_is_refused_when_the_function_is_made(
    given: dict[str, object], said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        foreach_batch(contact_points=NODES, **given)  # type: ignore[arg-type]  # wrong on purpose
