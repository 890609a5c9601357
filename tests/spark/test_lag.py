"""How far a query is behind: in its progress, in the log, for Prometheus; and its last ack."""

from __future__ import annotations

import json
import logging
import urllib.request
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from cassieq_spark.errors import OptionUnknown
from cassieq_spark.spark import CassieqListener
from cassieq_spark.testing import wait_until
from tests.fixtures.cassandra import KEYSPACE
from tests.fixtures.streams import Collected, bodies

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.fixtures.streams import Streams


@contextmanager
def listening(streams: Streams, *, acks: bool = False) -> Iterator[CassieqListener]:
    connection = {"contact_points": streams.options["contactPoints"], "keyspace": KEYSPACE}
    listener = CassieqListener(**connection if acks else {})
    streams.spark.streams.addListener(listener)
    try:
        yield listener
    finally:
        streams.spark.streams.removeListener(listener)


def samples(text: str, query: str) -> dict[str, float]:
    return {
        sample.name: sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.labels["query"] == query
    }


def start(streams: Streams, collected: Collected, name: str, **options: object) -> Any:
    return (
        streams.source(lagInterval="0.1s", **options)
        .writeStream.foreachBatch(collected)
        .queryName(name)
        .option("checkpointLocation", str(streams.checkpoint()))
        .start()
    )


def test_a_querys_progress_tells_how_far_it_is_behind(streams: Streams) -> None:
    streams.put(streams.numbered(0, 900))
    query = streams.start(streams.source(maxMessagesPerTrigger=300), Collected())
    assert query.awaitTermination(60)
    first = json.loads(query.recentProgress[0]["sources"][0]["latestOffset"])
    assert streams.queue.name == first["queue"]
    assert 900 == first["lag"] + first["in_flight"]
    assert first["oldest_age_s"] > 0
    last = json.loads(query.recentProgress[-1]["sources"][0]["latestOffset"])
    assert (900, 600) == (last["claimed"], last["acked"])
    assert (0, 0) == (last["redelivered"], last["leases_lost"])
    # Spark asks no Python source for metrics (4.2, 4.3); the guide says so.
    assert {} == query.recentProgress[-1]["sources"][0]["metrics"]


def test_a_listener_has_the_figures_of_running_queries_in_log_and_prometheus_text(
    streams: Streams, caplog: pytest.LogCaptureFixture
) -> None:
    streams.put(streams.numbered(0, 700))
    name = "lag-" + streams.queue.name
    collected = Collected()
    with caplog.at_level(logging.INFO, logger="cassieq_spark"), listening(streams) as listener:
        query = start(streams, collected, name, maxMessagesPerTrigger=300)
        try:
            wait_until(lambda: collected.bodies == bodies(0, 700))
            wait_until(
                lambda: samples(listener.prometheus(), name).get("cassieq_messages_lag") == 0
            )
            seen = samples(listener.prometheus(), name)
            assert 700 == seen["cassieq_messages_claimed_total"]
            assert 0 == seen["cassieq_messages_redelivered_total"]
            assert 0 == seen["cassieq_oldest_message_age_seconds"]

            port = listener.serve(0)
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as page:
                assert samples(page.read().decode(), name).keys() == seen.keys()
        finally:
            query.stop()
        wait_until(lambda: not samples(listener.prometheus(), name))
    told = [one.fields for one in caplog.records if getattr(one, "event", "") == "query_progress"]
    assert [0, 1, 2] == [one["batch"] for one in told if one["query"] == name]
    assert {streams.queue.name} == {one["queue"] for one in told if one["query"] == name}


@pytest.mark.parametrize("acks", [True, False])
def test_the_last_batch_of_a_query_that_ended_is_acked_where_a_listener_can(
    streams: Streams, *, acks: bool
) -> None:
    """Trigger.Once ends without another look; Spark has committed the batch."""
    streams.put(streams.numbered(0, 300))
    with listening(streams, acks=acks):
        query = (
            streams.source()
            .writeStream.foreachBatch(Collected())
            .option("checkpointLocation", str(streams.checkpoint()))
            .trigger(once=True)
            .start()
        )
        assert query.awaitTermination(60)
        if acks:
            streams.wait_until_empty()
    if not acks:
        assert 300 == streams.queue.stats().in_flight


def test_what_a_failed_query_has_not_committed_stays_leased_for_its_restart(
    streams: Streams,
) -> None:
    streams.put(streams.numbered(0, 600))

    def fails(_: object, batch_id: int) -> None:
        if batch_id == 1:
            raise RuntimeError("as a user's function may")

    with listening(streams, acks=True):
        query = streams.start(streams.source(maxMessagesPerTrigger=300), fails)
        with pytest.raises(Exception, match="as a user's function may"):
            query.awaitTermination(60)
        wait_until(
            lambda: (0, 300) == (streams.queue.stats().visible, streams.queue.stats().in_flight)
        )
    replayed = streams.drain()
    assert [1] == replayed.batch_ids
    assert 300 == len(replayed.rows)


def test_options_of_a_listener_are_refused_by_name(streams: Streams) -> None:
    assert streams.options
    with pytest.raises(OptionUnknown, match="Did you mean 'contact_points'"):
        CassieqListener(contact_point="127.0.0.1")
