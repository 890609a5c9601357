"""The example of the guide to `settle` runs as it stands, but for the address of Cassandra."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import cassieq_spark as cassieq
from cassieq_spark.store import store
from tests.docs.test_readme import run_example

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from cassieq_spark.testing import EmbeddedCassandra

KEYSPACE = "cassieq_settle_guide"


@pytest.fixture
def _disconnected() -> Iterator[None]:
    yield
    store.close_shared()


@pytest.mark.usefixtures("spark", "_disconnected")
def test_the_settle_guide_acks_one_order_releases_one_and_buries_one(
    pytestconfig: pytest.Config,
    cassandra: EmbeddedCassandra,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run_example(
        pytestconfig.rootpath / "docs" / "guides" / "settle.md",
        {
            "127.0.0.1:9042": cassandra.contact_points,
            '"cassieq"}': f'"{KEYSPACE}"}}',
            "checkpoints/orders": f"{tmp_path}/orders",
        },
    )

    settled = [line for line in capsys.readouterr().out.splitlines() if "Settled(" in line]
    assert [
        f"{cassieq.Settled(acked=1, released=1, rejected=1)}",
        f"{cassieq.Settled(acked=1)}",
    ] == (settled)
    with cassieq.connect(cassandra.contact_points, keyspace=KEYSPACE) as client:
        stats = client.queue("orders").stats()
        assert (0, 0, 1) == (stats.visible, stats.in_flight, stats.dead)
        client.repair("orders")
        (moved,) = client.queue("orders.dead").get()
    assert (b"no JSON", "not an order") == (moved.body, moved.headers["cassieq-reason"])
