"""Leads and heartbeats end by what was written, and not by the clock of the node that took it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from cassieq_spark.entropy import new_uuid
from cassieq_spark.repair.lead import LEASE_S, leading
from cassieq_spark.store import portal
from tests.fixtures.transports import driver_of

if TYPE_CHECKING:
    from uuid import UUID

    import cassieq_spark as cassieq

HOUR_S = 3_600
INSERT = (
    "INSERT INTO KS.leader (name, holder, since_us) VALUES (%s, %s, %s) IF NOT EXISTS USING TTL %s"
)
"""How an older release takes a lead."""
WRITTEN = "SELECT at_us, WRITETIME(at_us) AS written FROM KS.TABLE WHERE KEY = %s"


@pytest.fixture
def name(client: cassieq.Client) -> str:
    """A lead that no other test takes."""
    assert client  # its tables
    return f"lead {new_uuid()}"


def run(client: cassieq.Client, cql: str, *params: object) -> Any:
    """The first row that a statement of somebody else's returns."""
    return (
        driver_of(client._session).session.execute(cql.replace("KS", client.keyspace), params).one()
    )


def left_behind(client: cassieq.Client, name: str, *, age_s: float) -> UUID:
    """A row as an older release writes it through a node whose clock is an hour ahead."""
    holder = new_uuid()
    since_us = client.now_us() - round(age_s * 1e6)
    run(client, INSERT, name, holder, since_us, HOUR_S + LEASE_S)
    return holder


@pytest.mark.parametrize("age_s", [LEASE_S + 1, 11 * 60, -HOUR_S], ids=["just", "long", "ahead"])
def test_a_lead_that_has_ended_is_taken_although_its_row_is_still_there(
    client: cassieq.Client, name: str, age_s: float, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "cassieq_spark.store")
    gone = left_behind(client, name, age_s=age_s)

    with portal.entered(leading(client.store, name)) as lead:
        assert lead is not None
        assert lead.is_held
        assert portal.run(lead.take())  # again: it is kept
        with portal.entered(leading(client.store, name)) as second:
            assert second is None
    with portal.entered(leading(client.store, name)) as next_one:
        assert next_one is not None

    told = [one.getMessage() for one in caplog.records if "leadership_outlived" in one.getMessage()]
    assert [True] == [f"holder={gone}" in one for one in told]


def test_a_lead_that_an_older_release_keeps_is_not_taken(client: cassieq.Client, name: str) -> None:
    left_behind(client, name, age_s=LEASE_S / 3)

    with portal.entered(leading(client.store, name)) as lead:
        assert lead is None


def test_an_older_release_finds_the_lead_of_this_one_and_the_end_of_it(
    client: cassieq.Client, name: str
) -> None:
    older = (name, new_uuid(), 1, LEASE_S)
    with portal.entered(leading(client.store, name)):
        assert not run(client, INSERT, *older)[0]
    assert run(client, INSERT, *older)[0]


def test_a_writer_that_is_silent_is_dead_although_its_heartbeat_is_still_there(
    client: cassieq.Client, name: str
) -> None:
    beats = client.store.heartbeats
    portal.run(beats.beat(name, ttl_s=HOUR_S))
    assert portal.run(beats.is_alive(name, timeout_s=60))
    at_us = client.now_us() - 61_000_000
    run(
        client,
        "INSERT INTO KS.alive (sink_id, at_us) VALUES (%s, %s) USING TIMESTAMP %s AND TTL 3600",
        *(name, at_us, client.now_us() + 1_000_000),
    )
    assert not portal.run(beats.is_alive(name, timeout_s=60))


def test_the_newest_heartbeat_and_use_win_whichever_node_takes_them(
    client: cassieq.Client, name: str
) -> None:
    """Their write time is what they say, so a node whose clock is ahead cannot hide later ones."""
    before_us = client.now_us()
    portal.run(client.store.heartbeats.beat(name, ttl_s=HOUR_S))
    portal.run(client.store.key_uses.record(name, before_us))

    for table, key in (("alive", "sink_id"), ("key_use", "key_id")):
        select = WRITTEN.replace("TABLE", table).replace("KEY", key)
        row = run(client, select, name)
        assert row.at_us == row.written
