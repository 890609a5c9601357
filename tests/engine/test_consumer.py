"""A consumer: prefetch, grouped acks, and what becomes of both when something ends.

See docs/design/get-and-leases.md.
"""

from __future__ import annotations

import signal
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING

import pytest

import cassieq_spark as cassieq
from cassieq_spark.errors import ClientClosed, OptionInvalid, StoreTimeout
from cassieq_spark.model.settlement import Extend
from cassieq_spark.queue import consumer as module
from cassieq_spark.queue.settle import ack_buffer
from cassieq_spark.store import caller, cas, session
from cassieq_spark.store.statements import Kind, every_statement
from cassieq_spark.testing import wait_until
from tests.fixtures.faults import Fault

if TYPE_CHECKING:
    from collections.abc import Collection

    from cassieq_spark.model.receipt import Receipt
    from cassieq_spark.model.settlement import Action
    from cassieq_spark.queue.get.getter import GetRequest
    from cassieq_spark.queue.lane import Lane
    from tests.fixtures.queues import Door, OpenDoor

LWTS = {one.name for one in every_statement() if one.kind is Kind.CAS}


def put(door: Door, count: int) -> Counter[bytes]:
    bodies = [b"%d" % number for number in range(count)]
    door.queue.put_many(bodies)
    return Counter(bodies)


def renew(consumer: cassieq.Consumer) -> None:
    """Renew what is due now: a timer does not see that a test has turned the clock."""
    consumer._ahead._loop.call_soon_threadsafe(consumer._ahead._renew)


def is_over(door: Door) -> bool:
    stats = door.queue.stats()
    return (stats.visible, stats.in_flight, stats.delayed, stats.dead) == (0, 0, 0, 0)


def test_a_loop_over_a_consumer_takes_everything_once_and_acks_it(
    open_door: OpenDoor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One message after the other, for a twentieth of an LWT each."""
    # The more slowly the loop goes, the more often acks are stored because of their age.
    monkeypatch.setattr(ack_buffer, "ACK_WITHIN_S", 600)
    door = open_door(bucket_size=1_000, visibility_timeout=3_600)
    expected = put(door, 3_000)
    before = Counter(door.session.counts)
    found: Counter[bytes] = Counter()
    with door.queue.consumer(idle_timeout=0.5) as consumer:
        for message in consumer:
            found[message.body] += 1
            consumer.ack(message)
    assert expected == found
    assert is_over(door)
    assert 0 == consumer.stale
    spent = Counter(door.session.counts) - before
    assert sum(spent[name] for name in LWTS) <= 0.05 * 3_000


def test_acks_are_stored_without_anybody_asking(door: Door) -> None:
    put(door, 3)
    with door.queue.consumer(prefetch=10) as consumer:
        for _ in range(3):
            message = consumer.get(wait=30)
            assert message is not None
            consumer.ack(message)
        wait_until(lambda: is_over(door), describe=lambda: str(door.queue.stats()))


def test_flush_returns_when_acks_are_stored(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ack_buffer, "ACK_WITHIN_S", 600)
    put(door, 3)
    with door.queue.consumer(visibility_timeout=3_600) as consumer:
        message = consumer.get(wait=30)
        assert message is not None
        consumer.ack(message)
        assert 3 == door.queue.stats().in_flight
        consumer.flush()
        assert 2 == door.queue.stats().in_flight


@pytest.mark.invariant("I2")
def test_what_was_not_handed_out_is_given_back_and_nobody_has_counted_it(
    open_door: OpenDoor,
) -> None:
    """What was handed out and not acked stays leased."""
    door, other = open_door(), open_door()
    put(door, 9)
    with door.queue.consumer(prefetch=5) as consumer:
        first, second = consumer.get(wait=30), consumer.get(wait=30)
        assert first is not None
        assert second is not None
        consumer.ack(first)
    rest = other.queue.get(10)
    assert Counter({1: 7}) == Counter(one.delivery_count for one in rest)
    assert not {first.id, second.id} & {one.id for one in rest}
    other.queue.ack(second)
    other.queue.ack(rest)
    assert is_over(door)


@pytest.mark.invariant("I2")
def test_what_waits_to_be_handed_out_stays_leased(open_door: OpenDoor) -> None:
    """However long the program takes over the first one; that one runs out."""
    door, other = open_door(), open_door()
    put(door, 5)
    with door.queue.consumer(visibility_timeout=20, prefetch=5) as consumer:
        first = consumer.get(wait=30)
        assert first is not None
        for _ in range(6):
            before = door.session.counts["update_bucket"]
            for one in (door, other):
                one.clock.advance(12)
            renew(consumer)
            wait_until(lambda before=before: door.session.counts["update_bucket"] > before)
        taken = other.queue.get(10)
        assert [first.id] == [one.id for one in taken]
        rest = [consumer.get(wait=0) for _ in range(4)]
        left_s = [one.visible_until.timestamp() - door.clock.now_us() / 1e6 for one in rest if one]
        assert 4 == len(left_s)
        assert min(left_s) > 10
        consumer.ack(first)
        consumer.flush()
        assert 1 == consumer.stale
        consumer.ack([one for one in rest if one])
    other.queue.ack(taken)
    assert is_over(door)


@pytest.mark.invariant("I2")
def test_what_ran_out_before_it_was_handed_out_is_not_handed_out(open_door: OpenDoor) -> None:
    """Its renewal is on its way for longer than the lease."""
    door, other = open_door(), open_door()
    put(door, 3)
    arrives = threading.Event()
    with door.queue.consumer(visibility_timeout=20, prefetch=3) as consumer:
        assert consumer.get(wait=30) is not None
        door.faults.before("update_bucket", partial(arrives.wait, 60))
        for one in (door, other):
            one.clock.advance(60)
        assert 3 == len(other.queue.get(10))
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(consumer.get, 0)
            wait_until(lambda: not consumer._ahead.shelf.waiting())
            arrives.set()
            assert waiting.result() is None


def test_iteration_ends_when_nothing_came_for_the_idle_timeout(door: Door) -> None:
    with door.queue.consumer(idle_timeout=0.2) as consumer:
        assert [] == list(consumer)
        put(door, 1)
        assert [b"0"] == [one.body for one in consumer]


def test_a_consumer_may_be_closed_by_another_thread(door: Door) -> None:
    with door.queue.consumer() as consumer, ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(list, consumer)
        consumer.close()
        assert [] == waiting.result()
        assert consumer.get() is None
        with pytest.raises(ClientClosed, match="closed"):
            consumer.ack([])


def test_threads_may_share_a_consumer(open_door: OpenDoor) -> None:
    door = open_door(bucket_size=100)
    expected = put(door, 1_000)
    lock, found = threading.Lock(), Counter[bytes]()

    with door.queue.consumer(prefetch=50, idle_timeout=0.5) as consumer:

        def work() -> None:
            for message in consumer:
                with lock:
                    found[message.body] += 1
                consumer.ack(message)

        with ThreadPoolExecutor(4) as pool:
            for one in [pool.submit(work) for _ in range(4)]:
                one.result()
    assert expected == found
    assert is_over(door)


def test_an_error_of_the_store_is_raised_where_the_program_waits_and_then_it_goes_on(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    for room in (module, ack_buffer):
        monkeypatch.setattr(room, "RETRY_S", 0.05)
    for room in (cas, session):
        monkeypatch.setattr(room, "DEADLINE_S", 0.3)
    put(door, 1)
    door.faults.plan("insert_bucket", Fault.TIMEOUT_BEFORE, times=1_000)
    with door.queue.consumer() as consumer:
        with pytest.raises(cassieq.StoreError):
            consumer.get(wait=60)
        door.faults._plan.clear()
        message = consumer.get(wait=60)
        while message is None:
            message = consumer.get(wait=60)
        consumer.ack(message)
    assert is_over(door)


@pytest.mark.invariant("I4")
def test_an_ack_that_could_not_be_stored_is_stored_later(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    for room in (module, ack_buffer):
        monkeypatch.setattr(room, "RETRY_S", 0.05)
    for room in (cas, session):
        monkeypatch.setattr(room, "DEADLINE_S", 0.3)
    put(door, 1)
    with door.queue.consumer() as consumer:
        message = consumer.get(wait=30)
        assert message is not None
        door.faults.plan("update_bucket", Fault.TIMEOUT_BEFORE, times=100)
        fail, told = consumer._ahead.shelf.fail, []
        monkeypatch.setattr(
            consumer._ahead.shelf, "fail", lambda error: (told.append(error), fail(error))
        )
        consumer.ack(message)
        wait_until(lambda: told)
        assert not is_over(door)
        door.faults._plan.clear()
        wait_until(lambda: is_over(door), describe=lambda: str(door.queue.stats()))


def test_a_consumer_of_a_deleted_queue_says_so(open_door: OpenDoor) -> None:
    door, other = open_door(), open_door()
    with door.queue.consumer() as consumer:
        other.queue.delete()
        door.clock.advance(10)
        with pytest.raises(cassieq.QueueDeleted):
            consumer.get(wait=60)


def test_arguments_are_checked_before_anything_is_got(door: Door) -> None:
    for bad in (0, -1, True, "5", 10_000_000):
        with pytest.raises(OptionInvalid, match="prefetch"):
            door.queue.consumer(prefetch=bad)  # type: ignore[arg-type]
    with pytest.raises(OptionInvalid, match="idle_timeout"):
        door.queue.consumer(idle_timeout=-1)
    with pytest.raises(cassieq.UsageError, match="with"):
        door.queue.consumer().get()
    with door.queue.consumer() as consumer, pytest.raises(cassieq.ReceiptInvalid):
        consumer.ack("no receipt")


@pytest.mark.long
def test_an_idle_consumer_reads_less_than_five_times_a_second(door: Door) -> None:
    with door.queue.consumer() as consumer:
        assert consumer.get(wait=3) is None  # it has slowed down by now
        before = door.session.counts.total()
        assert consumer.get(wait=6) is None
        assert door.session.counts.total() - before < 5 * 6


@pytest.mark.invariant("I2")
def test_a_renewal_takes_nothing_from_what_the_program_has_extended(
    open_door: OpenDoor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was on its way when the program got the message."""
    door, other = open_door(), open_door()
    put(door, 2)
    begun, extended = threading.Event(), threading.Event()
    settle = module.settle_in_background

    async def settle_later(
        operation: str, lane: Lane, receipts: Collection[Receipt], action: Action
    ) -> list[Receipt]:
        if isinstance(action, Extend) and action.never_sooner:  # as a renewal asks, and no program
            begun.set()
            assert await caller.in_a_thread(partial(extended.wait, 60))
        return await settle(operation, lane, receipts, action)

    with door.queue.consumer(visibility_timeout=20, prefetch=2) as consumer:
        assert consumer.get(wait=30) is not None
        monkeypatch.setattr(module, "settle_in_background", settle_later)
        for one in (door, other):
            one.clock.advance(12)
        renew(consumer)
        assert begun.wait(60)
        second = consumer.get(wait=30)
        assert second is not None
        door.queue.extend(second, 600)
        extended.set()
    for one in (door, other):
        one.clock.advance(60)
    assert second.id not in [one.id for one in other.queue.get()]


@pytest.mark.invariant("I4")
@pytest.mark.parametrize("error", [KeyboardInterrupt, StoreTimeout])
def test_acks_that_a_flush_could_not_store_are_stored_later(
    door: Door, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    """A Ctrl-C ends the flush, and not what is under way."""
    monkeypatch.setattr(ack_buffer, "ACK_WITHIN_S", 600)
    for room in (module, ack_buffer):
        monkeypatch.setattr(room, "RETRY_S", 0.05)
    put(door, 1)

    def fail() -> None:
        if error is KeyboardInterrupt:
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        else:
            raise error("on purpose")

    with door.queue.consumer(visibility_timeout=3_600) as consumer:
        message = consumer.get(wait=30)
        assert message is not None
        consumer.ack(message)
        door.faults.before("update_bucket", fail)
        with pytest.raises(error):
            consumer.flush()
        wait_until(lambda: is_over(door), describe=lambda: str(door.queue.stats()))


@pytest.mark.invariant("I10")
def test_a_bucket_that_cannot_be_acked_stops_nothing_else(
    open_door: OpenDoor,
) -> None:
    """Others are got, and what waits is renewed, while that ack is unanswered."""
    door, other = open_door(), open_door()
    put(door, 1)
    arrives = threading.Event()
    with door.queue.consumer(visibility_timeout=20, prefetch=2) as consumer:
        first = consumer.get(wait=30)
        assert first is not None
        door.faults.before("update_bucket", partial(arrives.wait, 60))
        consumer.ack(first)
        consumed = []
        for number in range(3):
            other.queue.put(b"other %d" % number)
            message = consumer.get(wait=60)
            assert message is not None
            consumed.append(message.body)
        assert [b"other 0", b"other 1", b"other 2"] == consumed
        arrives.set()


def test_an_error_that_is_over_is_not_told_later(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    for room in (module, ack_buffer):
        monkeypatch.setattr(room, "RETRY_S", 0.05)
    getter = door.queue._work.waiting.getter
    look, looks = getter.look, []

    async def fail_once(lane: Lane, wanted: GetRequest) -> list[cassieq.Delivery]:
        looks.append(wanted)
        if len(looks) == 1:
            raise StoreTimeout("once")
        return await look(lane, wanted)

    monkeypatch.setattr(getter, "look", fail_once)
    with door.queue.consumer() as consumer:
        wait_until(lambda: len(looks) > 2)
        assert consumer.get(wait=0) is None


def test_a_consumer_is_for_one_block(door: Door) -> None:
    with (
        door.queue.consumer() as consumer,
        pytest.raises(cassieq.UsageError, match="one block"),
        consumer,
    ):
        pass


def test_a_consumer_of_a_closed_client_says_so(door: Door) -> None:
    with door.queue.consumer() as consumer:
        door.client.close()
        with pytest.raises(ClientClosed, match="client is closed"):
            consumer.get(wait=60)


@pytest.mark.parametrize("is_late", [False, True])
def test_a_get_that_ctrl_c_ends_loses_no_message(door: Door, *, is_late: bool) -> None:
    """It comes before there is a message, or when one was handed out and not returned yet."""
    main = threading.main_thread().ident or 0

    def interrupt() -> None:
        wait_until(lambda: consumer._ahead.shelf._waiting)
        if not is_late:
            signal.pthread_kill(main, signal.SIGINT)
            return
        serve = consumer._ahead.shelf._serve

        def serve_and_interrupt() -> None:
            serve()
            if consumer._ahead.shelf.waiting():
                consumer._ahead.shelf._serve = serve  # type: ignore[method-assign]
                signal.pthread_kill(main, signal.SIGINT)

        consumer._ahead.shelf._serve = serve_and_interrupt  # type: ignore[method-assign]
        door.queue.put_many([b"a", b"b"])

    with door.queue.consumer() as consumer:
        with ThreadPoolExecutor(1) as pool:
            interrupting = pool.submit(interrupt)
            with pytest.raises(KeyboardInterrupt):
                consumer.get()
            interrupting.result()
        if not is_late:
            door.queue.put_many([b"a", b"b"])
        found = [consumer.get(30), consumer.get(30)]
        assert [b"a", b"b"] == sorted(one.body for one in found if one is not None)
