"""What a restart finds that is not as it was: the checkpoint, the options, the queue's settings."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from tests.fixtures.streams import Collected, bodies, failure_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from tests.fixtures.streams import Streams


def fail_in_batch_one(streams: Streams, **options: object) -> list[int]:
    """300 messages are done, 300 leased and processed in vain; the rest waits."""
    sizes: list[int] = []

    def fails(frame: DataFrame, batch_id: int) -> None:
        sizes.append(frame.count())
        if batch_id == 1:
            raise RuntimeError("as a user's function may")

    source = streams.source(maxMessagesPerTrigger=300, **options)
    assert "as a user's function may" in failure_of(streams.start(source, fails))
    return sizes


@pytest.mark.invariant("I1")
def test_a_deleted_checkpoint_is_a_new_consumer_and_the_old_ones_leases_run_out(
    streams: Streams,
) -> None:
    streams.put(streams.numbered(0, 900))
    fail_in_batch_one(streams, visibilityTimeout="1s")
    shutil.rmtree(streams.checkpoint())
    collected = Collected()
    query = streams.start(streams.source(), collected, once=False)
    try:
        streams.wait_until_empty()
    finally:
        query.stop()
    # What batch 0 held may come again with the new checkpoint: only the next look would have
    # acked it, and that one came before batch 1.
    assert 600 == len(collected.rows)
    again = [row for row in collected.rows if row.delivery_count == 2]
    assert 300 == len(again)


@pytest.mark.invariant("I8")
def test_changed_options_hold_for_new_batches_and_not_for_the_replayed_one(
    streams: Streams,
) -> None:
    streams.put(streams.numbered(0, 900))
    assert [300, 300] == fail_in_batch_one(streams)
    collected = streams.drain(
        maxMessagesPerTrigger=100, visibilityTimeout="9s", consumer="another", minPartitions=3
    )
    assert [1, 2, 3, 4] == collected.batch_ids
    assert [300, 100, 100, 100] == [len(rows) for _, rows in collected.calls]
    streams.wait_until_empty()


def test_altered_settings_of_a_queue_hold_from_the_restart_on(streams: Streams) -> None:
    streams.put(streams.numbered(0, 600))
    fail_in_batch_one(streams)
    streams.client.alter_queue(streams.queue.name, visibility_timeout=7_200)
    now_us = streams.lane.clock.now_us()
    ends: list[int] = []

    def looks(frame: DataFrame, _: int) -> None:
        frame.collect()
        ends.extend(lease.until_us for lease in streams.leases)

    query = streams.start(streams.source(), looks)
    assert query.awaitTermination(60)
    assert min(ends) > now_us + 3_600_000_000
    streams.wait_until_empty()


@pytest.mark.invariant("I8")
def test_a_checkpoint_of_before_a_batch_replays_what_still_exists(streams: Streams) -> None:
    """A backup that is one batch old: its batch was acked since, so nothing of it comes again."""
    streams.put(streams.numbered(0, 300))
    assert bodies(0, 300) == streams.drain().bodies
    backup = streams.directory / "backup"
    shutil.copytree(streams.checkpoint(), backup)
    streams.put(streams.numbered(300, 600))
    assert bodies(300, 600) == streams.drain().bodies

    shutil.rmtree(streams.checkpoint())
    shutil.copytree(backup, streams.checkpoint())
    streams.put(streams.numbered(600, 700))
    assert bodies(600, 700) == streams.drain().bodies
