"""The peers of the benchmarks: each gives out what it was given, once, and costs what it should."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("bench", reason="the benchmarks are not in a source distribution")
from bench.peers import cassieq, postgres, rabbitmq
from bench.peers.peer import PeerMissing

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cassieq_spark.testing import EmbeddedCassandra

MESSAGES = 45
LWTS = {"next_monoton", "insert", "consume", "move", "move_back", "tombstone", "ack"}


@pytest.fixture
def original(cassandra: EmbeddedCassandra) -> Iterator[cassieq.Client]:
    with cassieq.Client(cassandra.contact_points) as client:
        client.bootstrap()
        yield client


def drained(queue: Any, at_once: int) -> list[bytes]:
    found: list[bytes] = []
    while messages := queue.get(at_once):
        found += [one.body for one in messages]
        queue.ack(messages)
    return found


def test_cassieq_costs_what_its_source_says(original: cassieq.Client) -> None:
    queue = original.create_queue("costs")
    reads, spent = Counter[str](), {}
    for call in ("put", "get", "ack") * MESSAGES:
        before = Counter(original.statements)
        if call == "put":
            queue.put_many([b"m"])
        elif call == "get":
            messages = queue.get()
        else:
            queue.ack(messages)
        for name, count in (original.statements - before).items():
            kind = "LWT" if name in LWTS else "counter" if name == "size" else "read"
            reads[f"{call}: {kind}"] += count
    spent = {name: count / MESSAGES for name, count in reads.items()}
    get = spent.pop("get: LWT"), spent.pop("get: read")
    # 3.10 of the notes: a get of one consumer has 3.1 LWTs, and 9 to 10 reads, on average.
    assert 3.0 < get[0] < 3.2
    assert 9.0 < get[1] < 10.5
    assert {
        "put: read": 3.0,
        "put: LWT": 2.0,
        "put: counter": 1.0,
        "ack: read": 4.0,
        "ack: LWT": 1.0,
        "ack: counter": 1.0,
    } == spent


def test_cassieq_gives_out_each_message_of_several_buckets_once(original: cassieq.Client) -> None:
    queue = original.create_queue("buckets")
    bodies = [b"%d" % number for number in range(MESSAGES)]
    queue.put_many(bodies)
    assert Counter(bodies) == Counter(drained(queue, 1))


def test_cassieq_gives_no_message_to_two_consumers(original: cassieq.Client) -> None:
    queue = original.create_queue("leases")
    queue.put_many([b"one", b"two"])
    first, second = queue.get(), original.queue("leases").get()
    assert {b"one", b"two"} == {first[0].body, second[0].body}
    assert [] == queue.get()


def test_postgres_gives_out_each_message_once_and_to_one_consumer() -> None:
    try:
        with (
            postgres.server() as dsn,
            postgres.Client(dsn) as client,
            postgres.Client(dsn) as other,
        ):
            queue = client.create_queue("once")
            queue.put_many([b"\x00first"])
            queue.put_many([b"%d" % number for number in range(MESSAGES)])
            held = queue.get(1)
            assert [b"\x00first"] == [one.body for one in held]
            assert {b"%d" % number for number in range(MESSAGES)} == set(
                drained(other.queue("once"), 10)
            )
            queue.ack(held)
            with pytest.raises(RuntimeError, match="1 deleted, 0 were there"):
                queue.ack(held)
    except PeerMissing as missing:
        pytest.skip(str(missing))


@pytest.mark.long
def test_rabbitmq_gives_back_what_a_consumer_had_not_acked() -> None:
    try:
        with rabbitmq.server() as port, rabbitmq.Client(port) as client:
            queue = client.create_queue("once")
            bodies = [b"%d" % number for number in range(MESSAGES)]
            queue.put_many(bodies)
            consumer = client.queue("once")
            first = consumer.get(10, wait=5)  # and ten or more wait in its buffer
            consumer.ack(first)
            consumer.close()
            assert Counter(bodies) == Counter([one.body for one in first] + drained(queue, 1))
    except PeerMissing as missing:
        pytest.skip(str(missing))


def test_a_peer_that_is_not_installed_says_so_in_one_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(postgres, "_INSTALLED", tmp_path)
    monkeypatch.setattr(rabbitmq, "_SERVERS", ())
    for peer in (postgres, rabbitmq):
        with pytest.raises(PeerMissing, match=r"^.*: apt install \S+$"), peer.server():
            pass
