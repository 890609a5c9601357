"""Work for many keys at once: what does not get on gives its place up (ADR 21)."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from cassieq_spark.errors import StoreTimeout
from cassieq_spark.store import side_by_side
from cassieq_spark.store.call import acting
from cassieq_spark.store.side_by_side import MOST_THREADS, WIDTH, SideBySide, _Place, _Places
from cassieq_spark.testing import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def threads() -> Iterator[SideBySide]:
    one = SideBySide()
    yield one
    one.close()


def test_results_come_in_the_order_of_the_items(threads: SideBySide) -> None:
    assert [number * 2 for number in range(100)] == threads.map(lambda one: one * 2, range(100))
    assert [] == threads.map(str, [])


def test_no_more_than_sixteen_that_get_on_are_under_way_at_once(threads: SideBySide) -> None:
    lock, now, most = threading.Lock(), [0], [0]

    def work(_: int) -> None:
        with lock:
            now[0] += 1
            most[0] = max(most[0], now[0])
        with lock:
            now[0] -= 1

    threads.map(work, range(400))
    assert 1 <= most[0] <= WIDTH


def test_places_are_given_in_the_order_in_which_they_were_asked_for() -> None:
    """A call that asks for one place after the other takes none from a call that waits."""
    places, order = _Places(1, MOST_THREADS), []

    def one_item() -> None:
        held = taken(places, None)
        order.append("waited")
        places.leave(held)

    held = taken(places, None)
    other = threading.Thread(target=one_item)
    other.start()
    wait_until(lambda: len(places._lines) == 1)
    places.leave(held)
    held = taken(places, None)
    order.append("came later")
    places.leave(held)
    other.join(60)
    assert ["waited", "came later"] == order


def taken(places: _Places, account: str | None) -> _Place:
    place = places.take(account)
    assert place is not None
    return place


def test_accounts_get_places_in_turn() -> None:
    """An account with many items costs another one turn for each of its items."""
    places, order = _Places(1, MOST_THREADS), list[str]()
    held = taken(places, "a")

    def one_item(account: str) -> None:
        mine = taken(places, account)
        order.append(account)
        places.leave(mine)

    with ThreadPoolExecutor(6) as pool:
        for at, account in enumerate("aaaabb"):
            pool.submit(one_item, account)
            wait_until(lambda at=at: len(places._lines) == at + 1)  # type: ignore[misc]
        places.leave(held)
    assert "ababaa" == "".join(order)


def test_items_of_one_account_that_stand_still_leave_threads_to_the_others(
    threads: SideBySide,
) -> None:
    """Nothing but its end frees a thread, and a part of Cassandra may be away for long."""
    goes_on, begun = threading.Event(), list[int]()

    def stands_still(number: int) -> None:
        begun.append(number)
        assert goes_on.wait(60)

    def greedy() -> None:
        acting.set("greedy")
        threads.map(stands_still, range(MOST_THREADS))

    with ThreadPoolExecutor(1) as caller:
        ended = caller.submit(greedy)
        try:
            wait_until(lambda: len(begun) == MOST_THREADS // 2)
            acting.set("other")
            assert [0, 1, 2] == threads.map(lambda one: one, range(3))
            assert MOST_THREADS // 2 == len(begun)
        finally:
            acting.set(None)
            goes_on.set()
        ended.result(60)
    assert MOST_THREADS == len(begun)


def test_an_item_does_an_inner_one_itself_if_its_account_has_no_thread_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All of its threads may belong to items that wait for inner ones."""
    monkeypatch.setattr(side_by_side, "MOST_THREADS", 8)
    threads = SideBySide()
    all_have_begun = threading.Barrier(4)

    def outer(number: int) -> list[int]:
        all_have_begun.wait(60)
        return threads.map(lambda one: 10 * number + one, range(3))

    acting.set("greedy")
    try:
        assert [[10 * at, 10 * at + 1, 10 * at + 2] for at in range(4)] == threads.map(
            outer, range(4)
        )
        assert 0 == threads._places._threads.used
    finally:
        acting.set(None)
        threads.close()


@pytest.mark.invariant("I10")
def test_t5_items_that_stand_still_give_their_places_to_others(threads: SideBySide) -> None:
    goes_on, done = threading.Event(), []

    def work(number: int) -> None:
        if number < 2 * WIDTH:
            assert goes_on.wait(60)
        done.append(number)

    flights = [threads.begin(work, number) for number in range(2 * WIDTH + 5)]
    try:
        wait_until(lambda: len(done) == 5)
    finally:
        goes_on.set()
    for flight in flights:
        flight.result()


def test_after_an_error_of_map_nothing_more_is_begun_and_what_was_has_ended(
    threads: SideBySide,
) -> None:
    begun: list[int] = []

    def work(number: int) -> None:
        begun.append(number)
        raise StoreTimeout(f"number {number}")

    with pytest.raises(StoreTimeout, match="number 0"):
        threads.map(work, range(10_000))
    assert len(begun) < 10_000


@pytest.mark.invariant("I10")
def test_t5_an_error_of_each_is_its_items_own(threads: SideBySide) -> None:
    def work(number: int) -> int:
        if number % 7 == 0:
            raise StoreTimeout(f"number {number}")
        return number

    results = threads.each(work, range(100))
    assert [one for one in range(100) if one % 7] == [one for one in results if type(one) is int]
    assert 15 == sum(isinstance(one, StoreTimeout) for one in results)


def test_what_is_begun_has_the_patience_of_who_began_it(threads: SideBySide) -> None:
    def left(now: float) -> float:
        return side_by_side.present().left_s(now)

    with side_by_side.limited(100.0, 7.0):
        assert [7.0, 5.0] == threads.map(left, [0.0, 95.0])
        with side_by_side.limited(200.0, 3.0):
            assert 3.0 == threads.begin(left, 0.0).result()
            assert side_by_side.LEAST_S == left(150.0)
    assert float("inf") == left(0.0)


def test_closing_leaves_nobody_waiting_for_what_had_no_thread_yet(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(side_by_side, "MOST_THREADS", WIDTH)
    threads, goes_on = SideBySide(), threading.Event()
    with ThreadPoolExecutor(2) as pool:
        caller = pool.submit(threads.map, lambda _: goes_on.wait(60), range(WIDTH + 4))
        wait_until(lambda: threads._pool._work_queue.qsize() == 4)
        closing = pool.submit(threads.close)
        wait_until(lambda: threads._pool._shutdown)
        goes_on.set()
        assert [True] * (WIDTH + 4) == caller.result(60)
        closing.result(60)
