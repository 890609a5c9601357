"""What is on the wire: consistency, conditions, columns (G1)."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from cassandra import ConsistencyLevel
from cassandra.policies import FallthroughRetryPolicy

from cassieq_spark.store import portal, schema, statements
from cassieq_spark.store.statements import Kind, Reach, Statement, every_statement
from tests.fixtures.transports import driver_of, prepared

if TYPE_CHECKING:
    import cassieq_spark as cassieq

LWT_ONLY = {
    *("queue", "dedup", "monoton", "bucket", "sink", "leader", "account", "account_key"),
    "timetable",
}


OURS = [one for one in every_statement() if one.kind is not Kind.SYSTEM]


def table_of(statement: Statement) -> str:
    found = re.search(r"\{ks\}\.(\w+)", statement.cql)
    assert found is not None, statement.cql
    return found[1]


@pytest.mark.parametrize("statement", every_statement(), ids=lambda one: one.name)
def test_p20_both_consistencies_are_on_the_prepared_statement(
    client: cassieq.Client, statement: Statement
) -> None:
    local = statement.reach is Reach.HOME
    quorum = ConsistencyLevel.LOCAL_QUORUM if local else ConsistencyLevel.QUORUM
    serial = ConsistencyLevel.LOCAL_SERIAL if local else ConsistencyLevel.SERIAL
    found = prepared(client._session, statement)
    if statement.kind is Kind.SERIAL_READ:
        assert serial == found.consistency_level
    elif statement.kind in (Kind.GLANCE, Kind.SYSTEM):
        assert ConsistencyLevel.LOCAL_ONE == found.consistency_level
    else:
        assert quorum == found.consistency_level
    if statement.kind is Kind.CAS:
        assert serial == found.serial_consistency_level
    assert (statement.kind is not Kind.CAS) == found.is_idempotent


@pytest.mark.parametrize("statement", OURS, ids=lambda one: one.name)
def test_p20_a_table_is_written_by_lwt_only_or_never(statement: Statement) -> None:
    is_conditional = re.search(r"\bIF\b", statement.cql) is not None
    writes = not statement.cql.startswith("SELECT")
    assert is_conditional == (statement.kind is Kind.CAS)
    if writes:
        assert (table_of(statement) in LWT_ONLY) == is_conditional


def test_g2_every_update_is_conditional_on_the_writer_as_read() -> None:
    """But for the leader's lease, on which nothing depends [P29]."""
    updates = [
        one
        for one in OURS
        if one.kind is Kind.CAS and "UPDATE" in one.cql and table_of(one) != "leader"
    ]
    assert len(updates) >= 4
    assert [] == [one.name for one in updates if not one.cql.endswith("IF writer = ?")]


def test_p19_only_one_statement_ever_writes_pointers_and_by_their_own_timestamp() -> None:
    writers = [
        one for one in OURS if table_of(one) == "pointer" and not one.cql.startswith("SELECT")
    ]
    assert [statements.ADVANCE_POINTER] == writers
    assert "USING TIMESTAMP ? SET value = ?" in statements.ADVANCE_POINTER.cql
    assert "TTL" not in schema.TABLES["pointer"].upper()


def test_p4_the_seals_scan_selects_every_column_of_a_message(client: cassieq.Client) -> None:
    table = (
        driver_of(client._session)
        .cluster.metadata.keyspaces[client._session.keyspace]
        .tables["message"]
    )
    selected = set(re.findall(r"\w+", statements.SCAN_MESSAGES.cql.split("FROM")[0])) - {"SELECT"}
    # The static column is of no row, so no read repair of rows can tear it; one replica is asked.
    assert set(table.columns) - {"lane", "bucket", "has_ttl"} == selected


@pytest.mark.parametrize(
    "statement",
    [
        one
        for one in every_statement()
        if one.kind in (Kind.READ, Kind.SERIAL_READ)
        and table_of(one) in LWT_ONLY | {"sink_list"}
        and "SELECT DISTINCT" not in one.cql
    ],
    ids=lambda one: one.name,
)
def test_t10_a_quorum_read_of_a_row_that_decides_selects_all_of_it(
    client: cassieq.Client, statement: Statement
) -> None:
    """What its read repair writes back is of one version, whichever replica has missed one.

    That of a ``SELECT DISTINCT`` does so whatever it selects: see tests/fault/test_replicas.py.
    """
    name = table_of(statement)
    table = (
        driver_of(client._session).cluster.metadata.keyspaces[client._session.keyspace].tables[name]
    )
    keys = {column.name for column in table.primary_key}
    selected = set(re.findall(r"\w+", statement.cql.split("FROM")[0])) - {"SELECT"}
    assert set(table.columns) - keys == selected - keys


def test_p13_a_reservation_needs_a_row_that_is_there() -> None:
    assert statements.RESERVE.cql.startswith("UPDATE")
    assert statements.RESERVE.cql.endswith("IF writer = ?")


def test_i5_a_manifest_is_written_by_one_statement() -> None:
    writers = [
        one.name
        for one in every_statement()
        if "manifest" in one.cql and table_of(one) == "bucket" and "SELECT" not in one.cql
    ]
    assert ["fill_bucket"] == writers


@pytest.mark.parametrize("table", sorted(schema.TABLES))
def test_p20_a_quorum_read_is_sticky_in_every_table(client: cassieq.Client, table: str) -> None:
    found = (
        driver_of(client._session)
        .cluster.metadata.keyspaces[client._session.keyspace]
        .tables[table]
    )
    assert "BLOCKING" == found.options["read_repair"]
    assert "UnifiedCompactionStrategy" in found.options["compaction"]["class"]


def test_p20_the_driver_never_sends_again_by_itself(client: cassieq.Client) -> None:
    profile = driver_of(client._session).cluster.profile_manager.default
    assert isinstance(profile.retry_policy, FallthroughRetryPolicy)
    for statement in every_statement():
        found = prepared(client._session, statement)
        plan = profile.speculative_execution_policy.new_plan(None, found)
        assert plan.next_execution(None) == -1


def test_r9_plain_writes_carry_the_servers_time(client: cassieq.Client) -> None:
    assert driver_of(client._session).session.use_client_timestamp is False
    stamped = [one.name for one in every_statement() if "TIMESTAMP" in one.cql]
    # A drop is written a day ahead, on purpose [P14]. A sign of life and a key's use carry their
    # own time, so that the latest one wins, whichever node takes it.
    assert [
        "advance_pointer",
        "drop_messages",
        "drop_overlay",
        "drop_overlays",
        "probe_timestamp",
        "write_alive",
        "write_key_use",
    ] == sorted(stamped)


def test_a_cas_cannot_be_sent_but_by_the_cas_machinery(client: cassieq.Client) -> None:
    with pytest.raises(ValueError, match="CAS"):
        portal.run(client._session.run(statements.RESERVE, ()))
