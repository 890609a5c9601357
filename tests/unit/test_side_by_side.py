"""Work for many keys at once: what does not get on gives its place up (ADR 21)."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from cassieq_spark.clock import SystemClock
from cassieq_spark.errors import StoreTimeout
from cassieq_spark.store.call import LEAST_S, acting, limited, present
from cassieq_spark.store.side_by_side import WIDTH, Places, SideBySide

CLOCK = SystemClock()


def works() -> SideBySide:
    return SideBySide(CLOCK)


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, 60))


async def doubled(number: int) -> int:
    return number * 2


async def test_results_come_in_the_order_of_the_items() -> None:
    assert [number * 2 for number in range(100)] == await works().map(doubled, range(100))
    assert [] == await works().map(doubled, [])


async def test_no_more_than_sixteen_that_get_on_are_under_way_at_once() -> None:
    now, most = 0, 0

    async def work(number: int) -> None:
        nonlocal now, most
        now += 1
        most = max(most, now)
        await asyncio.sleep(0.001 * (number % 3))
        now -= 1

    await works().map(work, range(400))

    assert WIDTH == most


async def test_places_are_given_in_the_order_in_which_they_were_asked_for() -> None:
    """A call that asks for one place after the other takes none from a call that waits."""
    order: list[str] = []

    places = Places(1, CLOCK)
    held = await places.take(None)

    async def one_item() -> None:
        mine = await places.take(None)
        order.append("waited")
        places.leave(mine)

    other = asyncio.create_task(one_item())
    await asyncio.sleep(0)
    places.leave(held)
    held = await places.take(None)
    order.append("came later")
    places.leave(held)
    await other

    assert ["waited", "came later"] == order


async def test_accounts_get_places_in_turn() -> None:
    """An account with many items costs another one turn for each of its items."""
    order: list[str] = []

    places = Places(1, CLOCK)
    held = await places.take("a")

    async def one_item(account: str) -> None:
        mine = await places.take(account)
        order.append(account)
        places.leave(mine)

    tasks = [asyncio.create_task(one_item(account)) for account in "aaaabb"]
    await asyncio.sleep(0)
    places.leave(held)
    await asyncio.gather(*tasks)

    assert "ababaa" == "".join(order)


def test_an_item_may_begin_inner_ones_however_many_items_there_are() -> None:
    """All places may belong to items that wait for inner ones: they become free by themselves."""

    async def main() -> None:
        one = works()

        async def outer(number: int) -> list[int]:
            return await one.map(doubled, range(number, number + 3))

        found = await one.map(outer, range(WIDTH + 4))
        assert [[2 * at, 2 * at + 2, 2 * at + 4] for at in range(WIDTH + 4)] == found

    acting.set("greedy")
    try:
        run(main())
    finally:
        acting.set(None)


@pytest.mark.invariant("I10")
async def test_t5_items_that_stand_still_give_their_places_to_others() -> None:
    done: list[int] = []

    one, goes_on = works(), asyncio.Event()

    async def work(number: int) -> None:
        if number < 2 * WIDTH:
            await goes_on.wait()
        done.append(number)

    flights = [one.begin(work, number) for number in range(2 * WIDTH + 5)]
    while len(done) < 5:
        await asyncio.sleep(0.01)
    goes_on.set()
    await asyncio.gather(*flights)

    assert list(range(2 * WIDTH + 5)) == sorted(done)


async def test_after_an_error_of_map_nothing_more_is_begun_and_what_was_has_ended() -> None:
    begun: list[int] = []
    under_way = 0

    async def work(number: int) -> None:
        nonlocal under_way
        begun.append(number)
        under_way += 1
        await asyncio.sleep(0.001)
        under_way -= 1
        raise StoreTimeout(f"number {number}")

    with pytest.raises(StoreTimeout, match="number 0"):
        await works().map(work, range(10_000))

    assert len(begun) < 10_000
    assert 0 == under_way


@pytest.mark.invariant("I10")
async def test_t5_an_error_of_each_is_its_items_own() -> None:
    async def work(number: int) -> int:
        if number % 7 == 0:
            raise StoreTimeout(f"number {number}")
        return number

    results = await works().each(work, range(100))
    ended = [one for one in results if type(one) is int]
    assert [one for one in range(100) if one % 7] == ended
    assert 15 == sum(isinstance(one, StoreTimeout) for one in results)


async def test_what_is_begun_has_the_patience_of_who_began_it() -> None:
    async def left(now: float) -> float:
        return present().left_s(now)

    one = works()
    with limited(100.0, 7.0):
        assert [7.0, 5.0] == await one.map(left, [0.0, 95.0])
        with limited(200.0, 3.0):
            begun = one.begin(left, 0.0)
        assert 3.0 == await begun
    with limited(100.0, 3.0):
        assert LEAST_S == await left(150.0)
    assert float("inf") == await left(0.0)


async def test_closing_waits_for_what_had_no_place_yet() -> None:
    done: list[int] = []

    one, goes_on = works(), asyncio.Event()

    async def work(number: int) -> None:
        await goes_on.wait()
        done.append(number)

    for number in range(WIDTH + 4):
        one.begin(work, number)
    closing = asyncio.create_task(one.close())
    await asyncio.sleep(0.01)
    assert not closing.done()
    goes_on.set()
    await closing

    assert WIDTH + 4 == len(done)
