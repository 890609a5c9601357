"""The oldest Cassandra that is supported: the simulated one answers as it does, too."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from cassieq_spark.embedded.software import CASSANDRA
from cassieq_spark.testing import EmbeddedCassandra
from tests.fixtures.differential import alone, compare_sequences

SEQUENCES = int(os.environ.get("SEQUENCES", "100"))


def test_random_sequences_have_the_same_answers_and_tables_on_5_0_0(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    oldest = replace(CASSANDRA, version="5.0.0")
    monkeypatch.setattr("cassieq_spark.embedded.cluster.CASSANDRA", oldest)
    with EmbeddedCassandra() as node:
        with alone(node) as client:
            (found,) = client._session.transport.session.execute(
                "SELECT release_version FROM system.local"
            )
            assert "5.0.0" == found.release_version
            compare_sequences(client, SEQUENCES)
        node.kill()
