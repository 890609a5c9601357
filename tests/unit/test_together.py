"""Callers whose messages are put together: who gathers, for how long, and what each is told."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextvars import ContextVar
from math import inf
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from cassieq_spark.clock import SystemClock
from cassieq_spark.entropy import Entropy
from cassieq_spark.errors import PutAmbiguous, QueueDeleted, StoreTimeout
from cassieq_spark.model.ids import LaneId
from cassieq_spark.queue.put import together as together_module
from cassieq_spark.queue.put.encode import AT_ONCE
from cassieq_spark.queue.put.results import Puts, State, firsts, for_all
from cassieq_spark.queue.put.together import MOST_BYTES, MOST_MESSAGES, Asked, Together
from cassieq_spark.store import caller, side_by_side
from cassieq_spark.store.call import Patience, acting, limited, one_call, present
from cassieq_spark.store.chunk import Row

SESSION = SimpleNamespace(clock=SystemClock())
LANE: Any = SimpleNamespace(queue="q", store=SimpleNamespace(session=SESSION))

mine: ContextVar[str] = ContextVar("mine", default="nobody's")


def asked(name: str, count: int = 1, *, body: bytes = b"", due_in_us: int = 0) -> Asked:
    kind = LaneId(UUID(int=0)), None, due_in_us, 0, None
    rows = [Row(body=body, message_id=None, tag=f"{name}{at}", headers={}) for at in range(count)]
    return Asked(kind=kind, lane=LANE, due=None, times=AT_ONCE, rows=rows, keys=None)


class Joining(Together):
    """Puts of several callers, which a test ends."""

    def __init__(self, store: Store) -> None:
        super().__init__(Entropy(), lambda: None)
        self._store = store

    async def _put(self, together: Sequence[Asked]) -> Puts:
        return await self._store._put(together)


class Store:
    """Puts that end when they are told to; the id of a message is its tag."""

    def __init__(self) -> None:
        self.together = Joining(self)
        self.begun: list[list[str]] = []
        self.limits: list[Patience] = []
        self.seen: list[tuple[str, str | None]] = []
        self._under_way: list[asyncio.Future[Puts]] = []

    def put(
        self, name: str, count: int = 1, *, body: bytes = b"", due_in_us: int = 0
    ) -> asyncio.Task[Puts]:
        """Begin a caller."""

        async def call() -> Puts:
            one = asked(name, count, body=body, due_in_us=due_in_us)
            return (await self.together._joined(one)).checked("q")

        return asyncio.get_running_loop().create_task(call())

    async def _put(self, some: Sequence[Asked]) -> Puts:
        ids = [str(row.tag) for one in some for row in one.rows]
        self.begun.append(ids)
        self.limits.append(present())
        self.seen.append((mine.get(), acting.get()))
        answer: asyncio.Future[Puts] = asyncio.get_running_loop().create_future()
        self._under_way.append(answer)
        return await answer

    def end(self, found: Puts | Exception | None = None) -> None:
        """End the put that was begun first of those under way."""
        answer = self._under_way.pop(0)
        if answer.cancelled():
            return  # its only caller was
        if isinstance(found, Exception):
            answer.set_exception(found)
        else:
            ids = self.begun[len(self.begun) - 1 - self.left]
            answer.set_result(found or Puts([(one, State.STORED) for one in ids]))

    @property
    def left(self) -> int:
        return len(self._under_way)


async def others_run() -> None:
    """Let all that is ready go as far as it can."""
    for _ in range(20):
        await asyncio.sleep(0)


async def test_whoever_finds_no_put_under_way_waits_for_nobody_and_the_others_gather() -> None:
    store = Store()
    first = store.put("a")
    await others_run()
    rest = [store.put("b", 2), store.put("c")]
    await others_run()
    assert [["a0"]] == store.begun
    store.end()
    await others_run()
    assert [["a0"], ["b0", "b1", "c0"]] == store.begun
    store.end()
    found = [(await one).results for one in (first, *rest)]
    assert [["a0"], ["b0", "b1"], ["c0"]] == found


async def test_puts_of_different_kinds_do_not_wait_for_each_other() -> None:
    store = Store()
    some = [store.put("a"), store.put("b", due_in_us=1)]
    await others_run()
    assert [["a0"], ["b0"]] == store.begun
    for _ in some:
        store.end()
    await asyncio.gather(*some)


async def test_t5_a_put_that_is_not_answered_holds_up_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(side_by_side, "SLOW_S", 0.05)

    store = Store()
    some = [store.put("a")]
    await others_run()
    some += [store.put("b"), store.put("c")]
    while len(store.begun) < 2:
        await asyncio.sleep(0.01)
    assert [["a0"], ["b0", "c0"]] == store.begun
    store.end()
    store.end()
    await asyncio.gather(*some)


async def test_a_put_that_is_shared_has_so_many_messages_and_bytes_at_most() -> None:
    store = Store()
    body = b"x" * (MOST_BYTES // 2)
    some = [store.put("a")]
    await others_run()
    some += [store.put("b", 1_500), store.put("c", 500), store.put("d")]
    some += [store.put("e", body=body), store.put("f", body=body)]
    await others_run()
    for _ in range(4):
        store.end()
        await others_run()
    await asyncio.gather(*some)
    assert [1, MOST_MESSAGES, 2, 1] == [len(one) for one in store.begun]
    assert [["d0", "e0"], ["f0"]] == store.begun[2:]


async def test_what_is_large_or_has_limits_of_its_own_is_put_by_itself_at_once() -> None:
    store = Store()
    some = [store.put("a")]
    await others_run()
    some += [store.put("b", MOST_MESSAGES + 1), store.put("c", body=b"x" * (MOST_BYTES + 1))]
    with limited(SESSION.clock.monotonic() + 5, inf):
        some.append(store.put("d"))
    with limited(inf, 5):
        some.append(store.put("e"))
    await others_run()
    assert 5 == len(store.begun)
    assert [False, False, False, True, False] == [one.until < inf for one in store.limits]
    for _ in some:
        store.end()
    await asyncio.gather(*some)


async def test_t5_what_is_shared_runs_under_nobodys_limits_as_long_as_the_last_one_may_wait() -> (
    None
):
    store = Store()
    some = [store.put("a")]
    await others_run()
    mine.set("the second's")
    acting.set("account")
    for waited_s in (23.0, 1.0):
        with one_call(24.0, SystemClock(), waited_s=waited_s):
            some.append(store.put("b"))
    await others_run()
    store.end()
    await others_run()
    assert [("nobody's", None), ("nobody's", "account")] == store.seen
    call = store.limits[1].call
    assert call is not None
    assert 20 < call.left_s <= 23
    store.end()
    await asyncio.gather(*some)


async def test_who_may_wait_no_more_when_its_turn_comes_is_told_that_nothing_was_sent() -> None:
    store = Store()
    first = store.put("a")
    await others_run()
    with one_call(24.0, SystemClock(), waited_s=24.0):
        late = store.put("b")
    other = store.put("c")
    await others_run()
    store.end()
    with pytest.raises(StoreTimeout, match="Nothing was sent"):
        await late
    assert [["a0"], ["c0"]] == store.begun
    store.end()
    await asyncio.gather(first, other)


async def test_whoever_leaves_before_its_turn_takes_its_messages_along() -> None:
    store = Store()
    first = store.put("a")
    await others_run()
    inbox = caller.Inbox()
    token = caller.present.set(inbox)
    interrupted = store.put("b")
    caller.present.reset(token)
    cancelled, other = store.put("c"), store.put("d")
    await others_run()
    inbox.is_open = False  # as a Ctrl-C does
    cancelled.cancel()
    await others_run()
    store.end()
    await others_run()
    assert [["a0"], ["d0"]] == store.begun
    store.end()
    await asyncio.gather(first, other)
    assert isinstance(interrupted.exception(), StoreTimeout)


async def test_when_all_have_left_nothing_is_put_and_the_next_one_waits_for_nobody() -> None:
    store = Store()
    first = store.put("a")
    await others_run()
    gone = store.put("b")
    await others_run()
    gone.cancel()
    store.end()
    await others_run()
    last = store.put("c")
    await others_run()
    assert [["a0"], ["c0"]] == store.begun
    store.end()
    await asyncio.gather(first, last)


async def test_whoever_leaves_later_takes_nothing_from_the_others() -> None:
    """Neither the one whose put it is alone, nor one of several."""

    store = Store()
    first = store.put("a")
    await others_run()
    gone, other = store.put("b"), store.put("c")
    await others_run()
    first.cancel()
    await others_run()
    assert [["a0"]] == store.begun  # it goes on to its end
    store.end()
    await others_run()
    assert [["a0"], ["b0", "c0"]] == store.begun
    gone.cancel()
    await others_run()
    store.end()
    assert ["c0"] == (await other).results


async def test_puts_of_one_turn_of_the_loop_share_though_none_is_under_way() -> None:
    store = Store()
    some = [store.put(name) for name in "abc"]
    await others_run()
    assert [["a0", "b0", "c0"]] == store.begun
    store.end()
    assert [["a0"], ["b0"], ["c0"]] == [(await one).results for one in some]


async def test_p6_each_is_told_what_became_of_its_own_messages() -> None:
    why = StoreTimeout("no answer")

    store = Store()
    first = store.put("a")
    await others_run()
    some = {name: store.put(name, 2) for name in "bcdef"}
    await others_run()
    store.end()
    await others_run()
    ids = ["b0", "b1", "c0", "c1", "d0", "d1", "e0", "e1", "", "f1"]
    states = [State.STORED] * 10
    states[1] = State.DUPLICATE
    states[2] = states[4] = states[5] = State.UNKNOWN
    states[6:9] = [State.MISSING] * 3
    store.end(Puts(list(zip(ids, states, strict=True)), why))
    await first
    stored = await some["b"]
    assert [("b0", State.STORED), ("b1", State.DUPLICATE)] == stored.each
    told = {}
    for name in "cdef":
        with pytest.raises((PutAmbiguous, StoreTimeout)) as caught:
            await some[name]
        told[name] = caught.value
    assert isinstance(told["e"], StoreTimeout)
    assert told["e"] is not why
    named = {
        name: (one.message_ids, one.stored)
        for name, one in told.items()
        if isinstance(one, PutAmbiguous)
    }
    assert {
        "c": (("c0",), ("c1",)),
        "d": (("d0", "d1"), ()),
        "f": ((), ("f1",)),
    } == named


async def test_an_error_is_everybodys_and_each_has_one_of_its_own() -> None:
    store = Store()
    first = store.put("a")
    await others_run()
    some = [store.put("b"), store.put("c")]
    await others_run()
    store.end()
    await others_run()
    store.end(QueueDeleted("gone"))
    told = await asyncio.gather(first, *some, return_exceptions=True)
    assert isinstance(told[0], Puts)
    assert all(isinstance(one, QueueDeleted) for one in told[1:])
    assert told[1] is not told[2]
    last = store.put("d")  # and the next one is not held up
    await others_run()
    store.end()
    await last


def test_a_key_of_two_callers_stands_for_the_message_of_the_first() -> None:
    firsts_of, stands_for = firsts(["k", None, "k", "l"])
    put = [("a", State.STORED), ("b", State.UNKNOWN), ("c", State.DUPLICATE)]

    found = for_all(put, firsts_of, stands_for)

    assert [
        ("a", State.STORED),
        ("b", State.UNKNOWN),
        ("a", State.DUPLICATE),
        ("c", State.DUPLICATE),
    ] == found
    put[0] = "a", State.UNKNOWN  # so is what stands behind it
    assert [put[0], put[0]] == for_all(put, firsts_of, stands_for)[::2]


async def test_kinds_that_nothing_is_put_of_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(together_module, "KINDS", 2)

    store = Store()
    for at in range(5):
        put = store.put("a", due_in_us=at)
        await others_run()
        store.end()
        await put
    assert 2 == len(store.together._lines.values())
