"""``cassieq load put``, ``load get`` and ``watch``: counts, signals, what is given back."""

from __future__ import annotations

import json
import signal
from typing import TYPE_CHECKING, Any

import pytest

import cassieq_spark as cassieq
from cassieq_spark.errors import StoreTimeout, StoreUnavailable
from cassieq_spark.testing import wait_until
from tests.fixtures.commands import CommandLine, end

if TYPE_CHECKING:
    pass


def lie(queue: cassieq.Queue) -> tuple[int, int]:
    """Visible, invisible."""
    stats = queue.stats()
    return stats.visible, stats.in_flight


def test_load_put_puts_so_many_messages_of_that_size_and_says_how_fast(
    cli: CommandLine, queue: cassieq.Queue
) -> None:
    done = cli("load", "put", queue.name, "--count", "25", "--size", "7", "--batch", "10", "--json")
    found = done.object

    assert (0, 25, 175) == (done.code, found["messages"], found["bytes"])
    assert found["messages_per_s"] == pytest.approx(25 / found["seconds"], rel=0.1)
    assert ["p50", "p90", "p99", "p99_9", "max"] == list(found["put_ms"])
    assert sorted(found["put_ms"].values()) == list(found["put_ms"].values())
    assert [7] * 25 == [len(message.body) for message in queue.peek(100)]
    assert 25 == len({message.body for message in queue.peek(100)})


def test_load_put_is_no_faster_than_its_rate(cli: CommandLine, queue: cassieq.Queue) -> None:
    found = cli("load", "put", queue.name, "--count", "40", "--rate", "20", "--json").object

    # A lower bound that is the rate's own: batch of one, the last is due 39/20 s after the first.
    assert found["seconds"] >= 39 / 20
    assert (40, 0) == lie(queue)


def test_load_get_is_no_faster_than_its_rate_though_all_is_there(
    cli: CommandLine, queue: cassieq.Queue
) -> None:
    queue.put_many([b"x"] * 60)
    found = cli(
        "load", "get", queue.name, "--ack", "--count", "40", "--rate", "20", "--json"
    ).object

    # As of `load put`: each get is of one message.
    assert found["seconds"] >= 39 / 20
    assert (40, (20, 0)) == (found["messages"], lie(queue))


def test_load_get_acks_all_there_is_and_ends_when_nothing_came_for_a_while(
    cli: CommandLine, queue: cassieq.Queue
) -> None:
    queue.put_many([b"seven b"] * 25)
    queue.release(queue.get(2))

    done = cli("load", "get", queue.name, "--ack", "--batch", "10", "--idle-timeout", "0", "--json")
    found = done.object

    assert (0, 25, 175) == (done.code, found["messages"], found["bytes"])
    assert (2, 0, 0) == (found["redelivered"], found["stale"], found["unknown"])
    assert {"get_and_ack_ms", "put_to_get_ms"} <= found.keys()
    assert (0, 0) == lie(queue)


def test_the_time_from_put_to_get_is_the_clusters_and_not_the_timeout(
    cli: CommandLine, queue: cassieq.Queue
) -> None:
    queue.put(b"x")
    found = cli("load", "get", queue.name, "--ack", "--idle-timeout", "0", "--json").object

    # The lease's end, 600 s after the claim, is what the client knows of the cluster's clock.
    assert 0 <= found["put_to_get_ms"]["max"] < 300_000


def test_load_get_takes_no_more_than_its_count(cli: CommandLine, queue: cassieq.Queue) -> None:
    queue.put_many([b"x"] * 25)

    done = cli("load", "get", queue.name, "--ack", "--count", "7", "--batch", "5", "--json")

    assert (0, 7) == (done.code, done.object["messages"])
    assert (18, 0) == lie(queue)


def test_load_get_that_finds_fewer_than_its_count_has_exit_code_3(
    cli: CommandLine, queue: cassieq.Queue
) -> None:
    queue.put_many([b"x"] * 2)

    done = cli("load", "get", queue.name, "--ack", "--count", "7", "--idle-timeout", "0", "--json")

    assert (3, 2) == (done.code, done.object["messages"])


def test_load_get_without_ack_gives_everything_back(cli: CommandLine, queue: cassieq.Queue) -> None:
    queue.put_many([b"x"] * 25)

    done = cli("load", "get", queue.name, "--count", "20", "--json")

    assert (0, 20) == (done.code, done.object["messages"])
    assert "stale" not in done.object
    assert (25, 0) == lie(queue)


@pytest.mark.parametrize(("count", "code"), [([], 0), (["--count", "100"], 130)])
def test_ctrl_c_ends_load_get_with_its_summary_and_what_was_not_acked_given_back(
    cli: CommandLine, queue: cassieq.Queue, count: list[str], code: int
) -> None:
    queue.put_many([b"x"] * 50)
    process = cli.start("load", "get", queue.name, *count, "--json")
    wait_until(lambda: lie(queue) == (0, 50), describe="all to be leased")

    process.send_signal(signal.SIGINT)
    done = end(process)

    assert (code, "") == (done.code, done.err)
    assert done.object["messages"] in {0, 50}  # the signal may come before the get returns
    assert (50, 0) == lie(queue)


def test_a_signal_between_a_claim_and_its_ack_gives_the_messages_back(
    cli: CommandLine, queue: cassieq.Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue.put_many([b"x"] * 5)
    get = cassieq.Queue.get

    def get_and_be_terminated(*args: Any, **more: Any) -> list[cassieq.Delivery]:
        found = get(*args, **more)
        signal.raise_signal(signal.SIGTERM)
        return found

    monkeypatch.setattr(cassieq.Queue, "get", get_and_be_terminated)
    done = cli("load", "get", queue.name, "--ack", "--count", "10", "--json")

    assert (143, 0) == (done.code, done.object["messages"])
    assert (5, 0) == lie(queue)


def test_what_an_error_ends_has_a_summary_and_gives_back_what_it_holds(
    cli: CommandLine, queue: cassieq.Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue.put_many([b"x"] * 5)

    def refuse(*_: Any) -> None:
        raise StoreTimeout("nobody answered. Try again")

    monkeypatch.setattr(cassieq.Queue, "ack_each", refuse)
    done = cli("load", "get", queue.name, "--ack", "--json")

    assert (1, 0) == (done.code, done.object["messages"])
    assert "[cassieq:store_timeout]" in done.err
    assert (5, 0) == lie(queue)


def test_ctrl_c_ends_load_put_with_its_summary(cli: CommandLine, queue: cassieq.Queue) -> None:
    process = cli.start("load", "put", queue.name, "--rate", "100", "--json")
    wait_until(lambda: queue.stats().visible > 0, describe="a message")

    process.send_signal(signal.SIGINT)
    done = end(process)

    assert (0, "") == (done.code, done.err)
    assert (done.object["messages"], 0) == lie(queue)


def test_a_progress_bar_is_for_terminals_and_off_standard_output(
    cli: CommandLine, queue: cassieq.Queue
) -> None:
    piped = end(cli.start("load", "put", queue.name, "--count", "10", "--json"))
    on_terminal = cli.in_a_terminal("load", "put", queue.name, "--count", "10", "--json")

    assert ("", 1) == (piped.err, len(piped.lines))
    assert "10/10" in on_terminal.out


def test_watch_prints_json_lines_where_there_is_no_terminal(
    cli: CommandLine, queue: cassieq.Queue
) -> None:
    queue.put_many([b"x"] * 3)
    queue.get(1, consumer="me")

    done = cli("watch", queue.name, "--count", "2", "--interval", "100ms")

    assert (0, 2) == (done.code, len(done.lines))
    for found in done.objects:
        assert (queue.name, 2, 1, {"me": 1}) == (
            found["queue"],
            found["visible"],
            found["in_flight"],
            found["consumers"],
        )
        assert found["at"].endswith("+00:00")


def test_watch_of_no_name_shows_all_queues_also_new_ones_and_drops_deleted_ones(
    cli: CommandLine, client: cassieq.Client, queue: cassieq.Queue
) -> None:
    process = cli.start("watch", "--interval", "100ms")
    new = f"{queue.name}.new"

    def is_seen(name: str) -> bool:
        """In the next look that is all of one moment."""
        assert process.stdout is not None
        one = last = json.loads(process.stdout.readline())
        seen = set()
        while one["at"] == last["at"]:
            one = json.loads(process.stdout.readline())
        at = one["at"]
        while one["at"] == at:
            seen.add(one["queue"])
            one = json.loads(process.stdout.readline())
        return name in seen

    wait_until(lambda: is_seen(queue.name), describe="the queue")
    client.create_queue(new)
    wait_until(lambda: is_seen(new), describe="the new queue")
    client.delete_queue(new)
    wait_until(lambda: not is_seen(new), describe="the new queue to be gone")

    process.send_signal(signal.SIGINT)
    done = end(process)
    assert (0, "") == (done.code, done.err)


def test_watch_of_a_queue_that_is_not_there_is_exit_code_1(
    cli: CommandLine, queue_name: str
) -> None:
    done = cli("watch", queue_name)
    assert (1, "") == (done.code, done.out)
    assert "[cassieq:queue_not_found]" in done.err


def test_watch_outlives_a_store_that_is_away_for_a_while(
    cli: CommandLine, queue: cassieq.Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    stats, calls = cassieq.Queue.stats, []

    def away_at_first(one: cassieq.Queue) -> cassieq.QueueStats:
        calls.append(one)
        if len(calls) == 1:
            raise StoreUnavailable("no node answers. Bring one back")
        return stats(one)

    monkeypatch.setattr(cassieq.Queue, "stats", away_at_first)
    done = cli("watch", queue.name, "--count", "2", "--interval", "100ms")

    assert (0, 1) == (done.code, len(done.lines))
    assert "[cassieq:store_unavailable] no node answers" in done.err


def test_watch_draws_a_table_on_a_terminal(cli: CommandLine, queue: cassieq.Queue) -> None:
    queue.put_many([b"x"] * 1_234)

    done = cli.in_a_terminal("watch", queue.name, "--count", "1")

    assert 0 == done.code, done
    assert "1,234" in done.out
    assert "visible" in done.out
    assert '"visible"' not in done.out
