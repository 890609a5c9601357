"""Prometheus itself watches a ring with a node whose clock becomes wrong, and right again."""

from __future__ import annotations

from pathlib import Path

import pytest

from cassieq_spark.testing import EmbeddedCassandra
from tests.fixtures.node_clocks import needs_libfaketime, own_clock
from tests.server.test_alerts_live import needs_prometheus, watching

pytestmark = [needs_prometheus, needs_libfaketime, pytest.mark.timeout(900)]


def test_a_node_whose_clock_is_wrong_is_told_until_it_is_right(tmp_path: Path) -> None:
    ahead = tmp_path / "ahead"
    ahead.write_text("+0s\n")
    # Of two nodes no majority agrees, so that a client asks them again every five seconds.
    with (
        EmbeddedCassandra(nodes=2, environment={2: own_clock(ahead)}, start_timeout_s=400) as ring,
        watching(ring, tmp_path) as watched,
    ):
        ahead.write_text("+3600s\n")
        watched.wait_until_firing("CassieqNodeClockWrong")
        (alert,) = watched.alerts("CassieqNodeClockWrong")
        assert ring.nodes[1].address == alert["labels"]["node"]

        ahead.write_text("+0s\n")
        watched.wait_until_over("CassieqNodeClockWrong")
        told = watched.end()
        ring.kill()
    assert f"node_clock_wrong node={ring.nodes[1].address} ahead_s=3" in told
