"""What a program that logs warnings reads while the node is away: a line a second of each kind."""

from __future__ import annotations

import logging
from collections import Counter
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TYPE_CHECKING

import pytest

import cassieq_spark as cassieq
from tests.fixtures.cassandra import KEYSPACE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cassieq_spark.testing import EmbeddedCassandra

AT_ONCE = 64


class Lines(logging.Handler):
    """Keeps what a program's handler gets."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


@pytest.fixture
def lines() -> Iterator[Lines]:
    handler = Lines()
    logging.getLogger().addHandler(handler)
    yield handler
    logging.getLogger().removeHandler(handler)


def kind(record: logging.LogRecord) -> str:
    words = str(record.msg).partition(" left_out=")[0]
    return f"{record.name} {record.levelname} {vars(record).get('event', words)}"


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("how", "away_s"),
    [pytest.param("kill", 5, marks=pytest.mark.sample), ("kill", 20), ("pause", 20)],
)
def test_an_outage_is_one_line_a_second_of_each_kind(
    own_cassandra: EmbeddedCassandra, queue_name: str, lines: Lines, how: str, away_s: int
) -> None:
    (node,) = own_cassandra.nodes
    with (
        cassieq.connect(own_cassandra.contact_points, keyspace=KEYSPACE) as client,
        ThreadPoolExecutor(AT_ONCE) as pool,
    ):
        client.bootstrap()
        queue = client.create_queue(queue_name)
        queue.put(b"before")
        lines.records.clear()
        getattr(node, how)()
        calls = [pool.submit(queue.stats) for _ in range(AT_ONCE)]
        wait(calls, away_s)
        found = list(lines.records)
        node.resume()
        if not node.is_running:
            node.start()
        wait(calls)

    told = Counter(map(kind, found))
    last: dict[str, float] = {}
    for one in found:
        assert one.created - last.get(kind(one), 0.0) >= 1, told
        last[kind(one)] = one.created
    assert sum(told.values()) <= 2 * away_s, told
    assert any(" left_out=" in one.getMessage() for one in found), told
