"""The connector's door ends at each of its driver's statements, and in each of Spark's writes.

What Cassandra sees of it is what it sees of a driver that is killed there: nothing comes after.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tests.children.stopping_sink import Countdown, SinkStop
from tests.fixtures.transports import intercept

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from pathlib import Path

    from pyspark.sql.streaming import StreamingQuery

    from cassieq_spark import Queue
    from cassieq_spark.store.session import CqlSession

A_BATCH = 120
BATCHES = 24

#: (statement, which of them): a driver is admitted, reserves, opens three buckets, has them
#: written, prepares them, commits by its first update of the sink's row, and makes them visible.
PLACES = [
    ("insert_sink", 0),
    ("reserve", 0),
    ("insert_bucket", 0),
    ("insert_bucket", 2),
    ("fill_bucket", 0),
    ("fill_bucket", 2),
    ("update_sink", 0),
    ("update_bucket", 0),
    ("update_bucket", 2),
]
STOPS = [
    SinkStop(notes="", step="driver", statement=name, number=number, is_sent=is_sent, dies=False)
    for name, number in PLACES
    for is_sent in (False, True)
]


def stopped() -> None:
    """End here."""
    raise RuntimeError("stopped by the test")


def run(
    begin: Callable[[], StreamingQuery],
    session: CqlSession,
    queue: Queue,
    notes: Path,
    saving: Callable[[Callable[[], None], Callable[[], None]], AbstractContextManager[None]],
) -> dict[str, Any]:
    """One checkpoint, run after run, each with another end, the last one with none.

    Args:
        begin: Starts the query.
        session: What its driver sends statements by.
        notes: Where a stop notes that it was reached.
        saving: For a block: act before and after what Spark's tasks write.
    """
    torn: list[str] = []
    missed: list[str] = []
    failures = 0

    def one(name: str, *, is_reached: Callable[[], bool]) -> None:
        nonlocal failures
        try:
            begin().awaitTermination()
        except Exception:  # noqa: BLE001 - Spark has several for it
            failures += 1
        intercept(session, None)
        if not is_reached():
            missed.append(name)
        seen = Counter(message.body for message in queue.peek(A_BATCH * BATCHES))
        if set(seen.values()) - {1} or seen.total() % A_BATCH:
            torn.append(f"{name}: {seen.total()}, {max(seen.values())} of one")

    for number, planned in enumerate(STOPS):
        stop = replace(planned, notes=str(notes / f"stop{number}"))
        intercept(session, Countdown(stop, "driver"))
        one(str(stop), is_reached=lambda stop=stop: stop.is_reached)  # type: ignore[misc]  # bound now
    reached: list[str] = []

    def end() -> None:
        reached.append("")
        stopped()

    for before, after in ((end, lambda: None), (lambda: None, end)):
        with saving(before, after):
            one("save", is_reached=lambda: bool(reached))
        reached.clear()
    before_last = failures
    one("none", is_reached=lambda: True)
    return {
        "runs": len(STOPS) + 2,
        "failures": before_last,
        "at_the_end": failures - before_last,
        "torn": torn,
        "missed": missed,
    }
