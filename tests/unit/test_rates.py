"""The rates of the page: an hour, minute by minute, of what this process has counted."""

from __future__ import annotations

from cassieq_spark import metrics
from cassieq_spark.entropy import new_uuid
from cassieq_spark.server.beside import MINUTES, Rates


def minutes(rates: Rates, queue: str) -> dict[str, tuple[int, ...]]:
    return {one.kind: one.minutes for one in rates.of(queue)}


def test_each_minute_has_what_was_counted_in_it() -> None:
    queue = f"q-{new_uuid().hex}"
    metrics.MESSAGES_PUT.inc(queue, 1_000)  # before it began
    rates = Rates()
    assert {"put": (), "got": (), "acked": ()} == minutes(rates, queue)
    metrics.MESSAGES_PUT.inc(queue, 5)
    rates.end_minute()
    metrics.MESSAGES_PUT.inc(queue, 2)
    metrics.MESSAGES_CLAIMED.inc(queue, 4)
    rates.end_minute()
    metrics.MESSAGES_ACKED.inc(queue, 3)
    rates.end_minute()
    assert {"put": (5, 2, 0), "got": (0, 4, 0), "acked": (0, 0, 3)} == minutes(rates, queue)
    put = rates.of(queue)[0]
    assert (7, 5) == (put.total, put.most)
    assert (0, 0, 0) == minutes(rates, "another")["put"]


def test_an_hour_is_kept_and_idle_queues_take_no_space() -> None:
    queue = f"q-{new_uuid().hex}"
    rates = Rates()
    for minute in range(1, MINUTES + 11):
        metrics.MESSAGES_PUT.inc(queue, minute)
        rates.end_minute()
    assert tuple(range(11, MINUTES + 11)) == minutes(rates, queue)["put"]
    for _ in range(MINUTES):
        rates.end_minute()
    assert (0,) * MINUTES == minutes(rates, queue)["put"]
    rates.end_minute()
    assert queue not in rates._rings["put"]


def test_a_queue_that_was_deleted_and_created_anew_counts_from_nothing() -> None:
    queue = f"q-{new_uuid().hex}"
    rates = Rates()
    metrics.MESSAGES_PUT.inc(queue, 5)
    rates.end_minute()
    metrics.forget_queue(queue)
    metrics.MESSAGES_PUT.inc(queue, 2)
    rates.end_minute()
    assert (5, 2) == minutes(rates, queue)["put"]
