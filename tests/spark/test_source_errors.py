"""What a user can do to a running query, or under its checkpoint: each failure has a code.

What is wrong from the start is in `test_refused.py`; a copied checkpoint in `test_shared_queue.py`;
an outage in `tests/fault/test_source_outage.py`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from cassieq_spark.store import portal
from cassieq_spark.testing import wait_until
from tests.fixtures.streams import Collected, Streams, failure_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame

    Action = Callable[[Streams], object]

MESSAGES = 40


def delete(streams: Streams) -> None:
    streams.queue.delete()


def delete_and_create(streams: Streams) -> None:
    streams.queue.delete()
    streams.client.create_queue(streams.queue.name)


def purge(streams: Streams) -> None:
    streams.queue.purge()


def purge_and_drop(streams: Streams) -> None:
    streams.queue.purge()
    streams.client.repair(streams.queue.name)


def take_what_ran_out(streams: Streams) -> None:
    with streams.in_an_hour() as later:
        assert portal.run(streams.consumer(later).get(MESSAGES))


def age_the_release(streams: Streams) -> None:
    """The logged batch is of a release to come."""
    log = streams.checkpoint() / "offsets"
    text = (log / "0").read_text(encoding="utf-8")
    (log / ".0.crc").unlink()
    (log / "0").write_text(text.replace('"v": 1', '"v": 99'), encoding="utf-8")


def while_it_runs(streams: Streams, action: Action) -> str:
    """It has read all there was, and waits for more."""
    query = streams.start(streams.source(), Collected(), once=False)
    try:
        wait_until(lambda: not query.isActive or streams.is_empty(), deadline_s=120)
        action(streams)
        return failure_of(query)
    finally:
        query.stop()


def in_its_batch(streams: Streams, action: Action) -> str:
    """Claimed, and not read yet."""

    def handler(frame: DataFrame, _: int) -> None:
        action(streams)
        frame.collect()

    return failure_of(streams.start(streams.source(), handler))


def while_it_is_down(streams: Streams, action: Action) -> str:
    """With a batch that is logged, and not committed."""

    def fails(frame: DataFrame, _: int) -> None:
        frame.collect()
        raise RuntimeError("in the batch")

    source = streams.source(onLeaseLost="fail")
    assert "in the batch" in failure_of(streams.start(source, fails))
    action(streams)
    return failure_of(streams.start(source, Collected()))


@pytest.mark.parametrize(
    ("when", "action", "says"),
    [
        (while_it_runs, delete, r"\[cassieq:queue_deleted\] queue '{queue}' was deleted .*restart"),
        (while_it_runs, delete_and_create, r"\[cassieq:queue_deleted\] queue '{queue}' was del"),
        (while_it_is_down, delete, r"\[cassieq:queue_not_found\] .*'{queue}' in keyspace .*Create"),
        (
            while_it_is_down,
            delete_and_create,
            r"\[cassieq:data_loss\] queue '{queue}' was deleted and created .*new checkpoint, or",
        ),
        (
            while_it_is_down,
            purge,
            r"\[cassieq:data_loss\] queue '{queue}' was purged .*new checkpoint, or set failOn",
        ),
        (in_its_batch, purge_and_drop, r"\[cassieq:data_loss\] .* of queue '{queue}' .*purged"),
        (
            while_it_is_down,
            take_what_ran_out,
            r"\[cassieq:lease_lost\] 40 messages .* of queue '{queue}' .*Set onLeaseLost to 'skip'",
        ),
        (while_it_is_down, age_the_release, r"\[cassieq:offset_unreadable\] .*99"),
    ],
    ids=lambda part: getattr(part, "__name__", ""),
)
def test_what_is_done_to_a_query_reaches_its_user_with_a_code_the_queue_and_a_remedy(
    streams: Streams, when: Callable[[Streams, Action], str], action: Action, says: str
) -> None:
    streams.put(streams.numbered(0, MESSAGES, 1))

    told = when(streams, action)

    wanted = says.replace("{queue}", re.escape(streams.queue.name))
    assert re.search(wanted, told), told
