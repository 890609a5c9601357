"""A session's connections: what they send of long messages, and that they compress nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import cassieq_spark as cassieq
from cassieq_spark.entropy import generator
from cassieq_spark.store import driver

if TYPE_CHECKING:
    from cassieq_spark.testing import EmbeddedCassandra

LONG = generator(7).randbytes(700_000)
"""Six segments."""


def _refuse(_: Any) -> bytes:
    raise AssertionError("the driver compresses")  # or it cannot even connect


@pytest.mark.usefixtures("client")
def test_the_driver_compresses_nothing_whatever_is_installed(
    cassandra: EmbeddedCassandra, keyspace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As if package lz4 were there: the node knows it, too, so the driver would choose it.
    known = {"lz4": (_refuse, _refuse)}
    monkeypatch.setattr("cassandra.connection.locally_supported_compressions", known)
    with cassieq.connect(cassandra.contact_points, keyspace=keyspace) as client:
        queue = client.create_queue("connection.plain")
        queue.put(LONG)
        assert [one.body for one in queue.get(1, wait=5)] == [LONG]


@pytest.mark.usefixtures("client")
def test_long_messages_are_cut_by_our_segments(
    cassandra: EmbeddedCassandra, keyspace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver asks for them where we say so, and the node understands them."""
    sent: list[int] = []

    class Counted(driver.Segments):
        def encode(self, buffer: Any, msg: bytes) -> None:
            sent.append(len(msg))
            super().encode(buffer, msg)

    monkeypatch.setattr(driver, "_SEGMENTS", Counted())
    with cassieq.connect(cassandra.contact_points, keyspace=keyspace) as client:
        queue = client.create_queue("connection.long")
        queue.put(LONG)
        assert [one.body for one in queue.get(1, wait=5)] == [LONG]
    assert max(sent) > len(LONG)
