"""`bootstrap` makes the tables that the protocol needs, once, and touches nobody else's."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

import cassieq_spark as cassieq
from cassieq_spark.entropy import new_uuid
from cassieq_spark.errors import ReplicationDiffers, SchemaMismatch, SchemaMissing, UsageError
from cassieq_spark.store import portal, schema, statements
from cassieq_spark.store.schema import TABLES
from cassieq_spark.store.session import CqlSession
from cassieq_spark.store.statements import Kind
from tests.fixtures.transports import driver_of, prepared

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from cassieq_spark.testing import EmbeddedCassandra

DAY_S = 86_400
NTS = "NetworkTopologyStrategy"
WRITTEN_ONCE = {"message", "kept", "overlay", "sink_list", "expiry"}


@pytest.fixture
def connect(cassandra: EmbeddedCassandra) -> Iterator[Callable[[], cassieq.Client]]:
    """Clients of a keyspace of the test's own: not there at first, dropped at the end."""
    keyspace = f"t_{new_uuid().hex[:16]}"
    clients: list[cassieq.Client] = []

    def one() -> cassieq.Client:
        clients.append(cassieq.connect(cassandra.contact_points, keyspace=keyspace))
        return clients[-1]

    yield one
    portal.run(one()._session.define(f"DROP KEYSPACE IF EXISTS {keyspace}"))
    for client in clients:
        client.close()


def rows(client: cassieq.Client, cql: str) -> list[Any]:
    return list(driver_of(client._session).session.execute(cql, (client._session.keyspace,)))


def test_it_is_idempotent_and_may_be_run_by_several_at_once(connect: Any) -> None:
    clients = [connect() for _ in range(3)]
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(lambda client: client.bootstrap(), clients))
    clients[0].bootstrap()

    tables = rows(clients[0], "SELECT table_name FROM system_schema.tables WHERE keyspace_name=%s")
    assert set(TABLES) == {row.table_name for row in tables}
    assert schema.SCHEMA_VERSION == portal.run(schema.read_version(clients[0]._session))
    queue = clients[1].create_queue("q")
    clients[2].bootstrap()
    assert queue.name == clients[2].queue("q").name


def test_a_new_keyspace_is_created_without_an_error_in_the_log(
    connect: Any, caplog: pytest.LogCaptureFixture
) -> None:
    client = connect()
    with pytest.raises(SchemaMissing):  # raised, so the driver need not log it, too
        client.check()
    client.bootstrap()
    assert [] == [one.getMessage() for one in caplog.records if one.levelname == "ERROR"]


def test_the_replication_is_the_one_that_was_asked_for_and_stays(connect: Any) -> None:
    client = connect()
    client.bootstrap(replication={"class": "SimpleStrategy", "replication_factor": 1})
    client.bootstrap()

    cql = "SELECT replication FROM system_schema.keyspaces WHERE keyspace_name = %s"
    [row] = rows(client, cql)
    assert row.replication["class"].endswith("SimpleStrategy")


@pytest.mark.parametrize(
    "replication",
    [
        *({}, {"dc1": 1}, {"replication_factor": 1}, {"class": 3.5}, {"class": "NoSuchStrategy"}),
        *("SimpleStrategy", b"", 0, 5, [("class", "SimpleStrategy")], {"class": NTS, 5: 1}),
        *({"class": NTS}, {"class": NTS, "datacenter1": True}, {"class": NTS, "datacenter1": "x"}),
    ],
    ids=repr,
)
def test_a_replication_that_is_none_is_refused(connect: Any, replication: Any) -> None:
    with pytest.raises(UsageError):
        connect().bootstrap(replication=replication)


ONE_HERE = {"class": NTS, "datacenter1": 1}


@pytest.mark.parametrize(
    ("asked", "named"),
    [
        ({"class": NTS, "dc9": 1}, r"names data centre 'dc9', .* It has 'datacenter1'"),
        ({"class": NTS, "datacenter1": 1, "dc9": 0}, "names data centre 'dc9'"),
        ({"class": NTS, "datacenter1": 0}, "keeps no copy anywhere"),
        ({"class": NTS, "replication_factor": "0"}, "keeps no copy anywhere"),
    ],
)
def test_a_data_centre_that_is_not_there_is_named_whether_the_keyspace_is_there_or_not(
    connect: Any, asked: Any, named: str
) -> None:
    client = connect()
    for _ in range(2):
        with pytest.raises(UsageError, match=named):
            client.bootstrap(asked)
        client.bootstrap()


def test_more_copies_than_a_quorum_of_nodes_are_refused_before_the_keyspace_is_made(
    connect: Any,
) -> None:
    client = connect()
    with pytest.raises(UsageError, match="has 1 nodes, but a quorum of 3 copies is 2"):
        client.bootstrap({"class": NTS, "datacenter1": 3})
    with pytest.raises(SchemaMissing):
        client.queues()


def test_another_replication_than_is_there_is_refused_with_both_and_what_to_do(
    connect: Any,
) -> None:
    client = connect()
    client.bootstrap(ONE_HERE)
    for asked, shown in [
        (
            {"class": NTS, "datacenter1": 3},
            "{'class': 'NetworkTopologyStrategy', 'datacenter1': '3'}",
        ),
        ({"class": "SimpleStrategy", "replication_factor": 1}, "'SimpleStrategy'"),
        ({"class": NTS, "replication_factor": 2}, "'datacenter1': '2'"),
    ]:
        with pytest.raises(ReplicationDiffers) as refused:
            client.bootstrap(asked)
        text = str(refused.value)
        assert (
            "exists with replication {'class': 'NetworkTopologyStrategy', 'datacenter1': '1'}"
            in text
        )
        assert shown in text.partition("asked for ")[2]
        assert "ALTER KEYSPACE" in text


@pytest.mark.parametrize(
    "same",
    [
        ONE_HERE,
        {"class": f"org.apache.cassandra.locator.{NTS}", "datacenter1": "1"},
        {"class": NTS, "replication_factor": 1},
        {"datacenter1": "01", "class": NTS},
        None,
    ],
)
def test_the_same_replication_however_it_is_written_is_taken(connect: Any, same: Any) -> None:
    client = connect()
    client.bootstrap(ONE_HERE)
    client.bootstrap(same)


def test_tables_of_another_keyspace_user_stay(connect: Any) -> None:
    client = connect()
    client.bootstrap()
    session = client._session
    portal.run(session.define(f"CREATE TABLE {session.keyspace}.theirs (a int PRIMARY KEY)"))
    driver_of(session).session.execute(f"INSERT INTO {session.keyspace}.theirs (a) VALUES (1)")  # noqa: S608

    client.bootstrap()

    cql = f"SELECT a FROM {session.keyspace}.theirs"  # noqa: S608
    assert 1 == len(list(driver_of(session).session.execute(cql)))


@pytest.mark.parametrize("verb", ["create_queue", "queue", "queues"])
def test_a_keyspace_that_is_not_there_says_what_to_call(connect: Any, verb: str) -> None:
    arguments = () if verb == "queues" else ("q",)
    with pytest.raises(SchemaMissing, match=r"bootstrap\(replication"):
        getattr(connect(), verb)(*arguments)


def test_a_keyspace_of_another_release_is_refused_before_anything_is_made(connect: Any) -> None:
    client = connect()
    client.bootstrap()
    session = client._session
    portal.run(
        session.run(statements.WRITE_META, ("schema_version", str(schema.SCHEMA_VERSION + 1)))
    )
    portal.run(session.define(f"DROP TABLE {session.keyspace}.overlay"))

    for refused in (client.bootstrap, client.queues, lambda: client.create_queue("q")):
        with pytest.raises(SchemaMismatch, match=f"version {schema.SCHEMA_VERSION + 1}"):
            refused()

    tables = rows(client, "SELECT table_name FROM system_schema.tables WHERE keyspace_name = %s")
    assert "overlay" not in {row.table_name for row in tables}


def test_p27_every_table_has_the_settings_of_its_load(connect: Any) -> None:
    """Read back: a misspelt one would be the default in silence."""
    client = connect()
    client.bootstrap()
    found = rows(client, "SELECT * FROM system_schema.tables WHERE keyspace_name = %s")
    assert len(TABLES) == len(found)
    for row in found:
        assert DAY_S == row.gc_grace_seconds, row.table_name
        assert 0 == row.default_time_to_live, row.table_name
        compaction = dict(row.compaction)
        expected = "T4" if row.table_name in WRITTEN_ONCE else "L10"
        assert expected == compaction["scaling_parameters"], row.table_name
        assert compaction["class"].endswith("UnifiedCompactionStrategy"), row.table_name
        is_compressed = "false" != dict(row.compression).get("enabled")
        assert is_compressed == (row.table_name != "message"), row.table_name
        assert "BLOCKING" == row.read_repair, row.table_name


def test_every_statement_fits_the_tables(connect: Any) -> None:
    client = connect()
    client.bootstrap()
    for statement in statements.every_statement():
        if statement.kind is not Kind.SYSTEM:  # these are sent as text
            assert prepared(client._session, statement).query_string


@pytest.mark.parametrize(
    ("nodes", "asked", "warnings"), [(3, None, 1), (1, None, 0), (3, ONE_HERE, 0)]
)
def test_one_copy_on_several_nodes_that_nobody_asked_for_is_warned_of(
    connect: Callable[[], cassieq.Client],
    *,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    nodes: int,
    asked: Any,
    warnings: int,
) -> None:
    """The keyspace is a real one; of the cluster, the count of its nodes is another one."""
    monkeypatch.setattr(CqlSession, "nodes", lambda _: {"datacenter1": nodes})

    connect().bootstrap(asked)

    said = [one for one in caplog.records if one.message.startswith("keyspace_has_one_copy")]
    assert warnings == len(said)
