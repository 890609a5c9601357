"""A call is over when it has waited for so long without an answer."""

from __future__ import annotations

import asyncio

import pytest

from cassieq_spark.clock import SystemClock
from cassieq_spark.errors import StoreTimeout
from cassieq_spark.store.call import LEAST_S, Call, Patience, Turn, in_turn, one_call, present
from cassieq_spark.store.side_by_side import SideBySide
from cassieq_spark.testing import ManualClock

CLOCK = SystemClock()


def test_a_calls_time_runs_only_while_it_waits_and_begins_anew_with_an_answer() -> None:
    clock = ManualClock()
    call = Call(24.0, clock, waited_s=4.0)
    clock.advance(100)  # it works on something
    with call.waiting():
        clock.advance(5)
        with call.waiting():  # another of its threads
            clock.advance(5)
        clock.advance(2)
        assert 24.0 - 4 - 12 == call.left_s
    clock.advance(100)
    assert 24.0 - 4 - 12 == call.left_s
    with call.waiting():
        clock.advance(3)
        call.heard()
        clock.advance(1)
        assert 23.0 == call.left_s
    assert 23.0 == call.left_s


def test_what_a_call_begins_is_a_part_of_it_and_its_statements_end_with_it() -> None:
    with one_call(7.0, CLOCK, waited_s=5.0) as call, one_call(100.0, CLOCK) as inner:
        assert call is inner
        assert 2.0 == pytest.approx(present().left_s(0.0))

        async def limits(_: int) -> Patience:
            return present()

        (seen,) = {id(one.call) for one in asyncio.run(SideBySide(CLOCK).map(limits, range(3)))}
        assert id(call) == seen
    with one_call(7.0, CLOCK, waited_s=9.0):
        assert LEAST_S == present().left_s(0.0)
    assert present().call is None


async def test_a_turn_that_does_not_come_ends_with_nothing_sent_and_uses_up_the_calls_time() -> (
    None
):
    turn = Turn()
    async with in_turn(turn, "this", 0.05, CLOCK):
        with one_call(5.0, CLOCK) as call:
            before_s = call.left_s
            with pytest.raises(StoreTimeout, match="Nothing was sent"):
                async with in_turn(turn, "this", 0.05, CLOCK):
                    pytest.fail("another has the turn")
            assert call.left_s <= before_s - 0.04
    async with in_turn(turn, "this", 0.05, CLOCK):
        assert turn.lock.locked()
    assert not turn.lock.locked()
