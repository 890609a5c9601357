"""Spark on a node with logins and TLS: what it prints, logs, stores and reports holds no secret."""

from __future__ import annotations

import io
import logging
from contextlib import redirect_stdout
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException

from cassieq_spark.options import parse_read
from cassieq_spark.queue.find import LaneSpec
from cassieq_spark.spark.partition import PlannedPartition
from tests.fixtures.security import KEY_PASSWORD, KEYSPACE, Secured, password_of, secured
from tests.fixtures.streams import Streams, failure_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

__all__ = ["secured"]

LOGIN = "both"


class SecuredStreams(Streams):
    """A queue behind a login and TLS; all options as a program would give them."""

    secured: Secured
    given: dict[str, str]

    def another(self, suffix: str, **settings: Any) -> SecuredStreams:
        """Made by the operator: this login may not."""
        with self.secured.connect("ops") as client:
            client.create_queue(f"{self.queue.name}.{suffix}", bucket_size=500, **settings)
        queue = self.client.queue(f"{self.queue.name}.{suffix}")
        made = SecuredStreams(self.spark, self.client, self._node, queue, self.directory / suffix)
        made.secured, made.given = self.secured, {}
        return made

    @property
    def options(self) -> dict[str, str]:
        files = self.secured.files
        return {
            **super().options,
            "keyspace": KEYSPACE,
            "username": LOGIN,
            "password": password_of(LOGIN),
            "sslCaFile": files["ssl_ca_file"],
            "sslCertFile": files["ssl_cert_file"],
            "sslKeyFile": files["ssl_key_file"],
            "sslKeyPassword": KEY_PASSWORD,
            **self.given,
        }


@pytest.fixture(scope="module")
def login(secured: Secured) -> str:
    """One that plays two parts, as on the page."""
    secured.run(f"CREATE ROLE {LOGIN} WITH PASSWORD = '{password_of(LOGIN)}' AND LOGIN = true")
    secured.run(f"GRANT cassieq_producer TO {LOGIN}")
    secured.run(f"GRANT cassieq_consumer TO {LOGIN}")
    return LOGIN


@pytest.fixture
def streams(
    spark: SparkSession, secured: Secured, login: str, queue_name: str, tmp_path: Path
) -> Iterator[SecuredStreams]:
    with secured.connect("ops") as client, secured.connect(login) as own:
        client.create_queue(queue_name, bucket_size=500)
        made = SecuredStreams(spark, own, secured.node, own.queue(queue_name), tmp_path)
        made.secured, made.given = secured, {}
        yield made


def secrets_in(text: str) -> list[str]:
    """Those of them that are there."""
    return [secret for secret in (password_of(LOGIN), KEY_PASSWORD) if secret in text]


def explained(frame: DataFrame) -> str:
    """Every form of its plan."""
    printed = io.StringIO()
    with redirect_stdout(printed):
        for mode in ("simple", "extended", "codegen", "cost", "formatted"):
            frame.explain(mode)
    return printed.getvalue() + frame._jdf.queryExecution().toString()


def in_the_ui(spark: SparkSession) -> str:
    """What Spark's UI has of all plans that were run; its event log has the same."""
    executions = spark._jsparkSession.sharedState().statusStore().executionsList()
    found = [executions.apply(at) for at in range(executions.size())]
    return "\n".join(one.physicalPlanDescription() + one.details() for one in found)


def test_what_spark_prints_of_readers_and_writers_holds_no_secret(streams: SecuredStreams) -> None:
    streams.put(streams.numbered(0, 5))

    plan = explained(streams.look())
    assert 5 == streams.look().count()
    kept = in_the_ui(streams.spark)

    assert "BatchScan cassieq" in plan
    assert "AppendData" in kept
    assert "BatchScan cassieq" in kept
    assert [] == secrets_in(plan + kept)


def test_a_streaming_query_through_a_login_and_tls_tells_no_secret(
    streams: SecuredStreams, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    streams.put(streams.numbered(0, 5))
    target = streams.another("copy")

    query = target.into(streams.source())
    assert query.awaitTermination(120)

    printed = io.StringIO()
    with redirect_stdout(printed):
        query.explain(extended=True)
    progress = [str(one) for one in query.recentProgress]
    # py4j logs each call that a program makes, at DEBUG, with what it passes to `option`: only
    # variables keep that out (docs/operations/security.md).
    logged = [repr(vars(one)) for one in caplog.records if not one.name.startswith("py4j")]
    assert 5 == target.queue.stats().visible
    assert "WriteToMicroBatchDataSource" in printed.getvalue()
    assert 5 == sum(one["numInputRows"] for one in query.recentProgress)
    assert [] == secrets_in(printed.getvalue() + "".join(progress) + "".join(logged))


def test_a_checkpoint_holds_no_secret(streams: SecuredStreams) -> None:
    streams.put(streams.numbered(0, 5))

    assert 5 == len(streams.drain().rows)

    files = [path for path in streams.checkpoint().rglob("*") if path.is_file()]
    assert any(path.parent.name == "offsets" and b"leases" in path.read_bytes() for path in files)
    assert [] == secrets_in("".join(path.read_bytes().decode("latin-1") for path in files))


def test_an_error_that_spark_hands_on_names_the_role_and_no_secret(
    streams: SecuredStreams,
) -> None:
    wrong = "guess-4a7d"
    streams.given = {"password": wrong}

    with pytest.raises(PySparkException) as refused:
        streams.look().count()
    failure = failure_of(streams.start(streams.source(), lambda *_: None))

    for told in (str(refused.value), failure):
        assert "[cassieq:cassandra_login_failed]" in told
        assert f"refuses the login of '{LOGIN}'" in told
        assert [] == [secret for secret in (wrong, KEY_PASSWORD) if secret in told]


def test_a_refused_option_is_named_and_its_secret_is_not(streams: SecuredStreams) -> None:
    streams.given = {"password": "nul-\0-2f6e"}

    with pytest.raises(
        PySparkException, match=r"option 'password' .* is \*\*\*, allowed"
    ) as refused:
        streams.look().count()

    assert "2f6e" not in str(refused.value)


def test_an_input_partition_shows_no_secret(streams: SecuredStreams) -> None:
    connection = parse_read(streams.options).connection
    partition = PlannedPartition(connection, ("body",), ((LaneSpec.of(streams.lane), ()),))

    shown = repr(partition) + repr(vars(partition))

    assert "password=***" in shown
    assert [] == secrets_in(shown)
