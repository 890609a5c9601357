"""How far a pass over queues is: the share never falls, and ends with all of it."""

from __future__ import annotations

import asyncio
import threading

from hypothesis import given
from hypothesis import strategies as st

from cassieq_spark.repair.report import SILENT, Progress, Tracker
from cassieq_spark.store import portal


def test_each_step_of_a_queue_is_told_with_its_total() -> None:
    seen: list[Progress] = []
    tracker = Tracker(seen.append, 2)

    portal.run(tracker.begin("orders", 1))
    reach = portal.run(tracker.lane(range(10, 14)))
    portal.run(reach(11))
    portal.run(reach(13))
    portal.run(tracker.begin("invoices", 1))
    portal.run(tracker.begin_rest())

    assert [
        ("orders", 0, 0, 0, 0.0),
        ("orders", 0, 0, 4, 0.0),
        ("orders", 0, 2, 4, 0.25),
        ("orders", 0, 4, 4, 0.5),
        ("invoices", 1, 0, 0, 0.5),
        ("", 2, 0, 0, 1.0),
    ] == [(one.queue, one.queues_done, one.buckets_done, one.buckets, one.share) for one in seen]


@given(
    st.lists(st.lists(st.integers(min_value=0, max_value=9), min_size=1, max_size=20), max_size=4)
)
def test_lanes_that_begin_one_after_the_other_never_let_the_share_fall(
    queues: list[list[int]],
) -> None:
    seen: list[Progress] = []
    tracker = Tracker(seen.append, len(queues))
    for lanes in queues:
        portal.run(tracker.begin("queue", len(lanes)))
        for buckets in lanes:
            reach = portal.run(tracker.lane(range(5, 5 + buckets)))
            for bucket in range(5, 5 + buckets):
                portal.run(reach(bucket))
    portal.run(tracker.begin_rest())

    shares = [one.share for one in seen]
    assert sorted(shares) == shares
    assert 1.0 == shares[-1]


def test_lanes_side_by_side_are_told_one_at_a_time_and_lose_no_bucket() -> None:
    inside = threading.Lock()
    seen: list[Progress] = []

    def tell(now: Progress) -> None:
        assert inside.acquire(blocking=False), "two callbacks at once"
        seen.append(now)
        inside.release()

    tracker = Tracker(tell, 1)

    async def lane() -> None:
        reach = await tracker.lane(range(100))
        for bucket in range(100):
            await reach(bucket)

    async def work() -> None:
        await tracker.begin("orders", 8)
        await asyncio.gather(*(lane() for _ in range(8)))

    portal.run(work())
    assert (800, 800) == (seen[-1].buckets_done, seen[-1].buckets)


async def test_a_caller_of_another_event_loop_is_told_one_at_a_time_too() -> None:
    """Its function runs in threads, so each call waits here for a second one to come in."""
    inside, is_second = threading.Lock(), threading.Event()
    shares: list[float] = []

    def tell(now: Progress) -> None:
        if not inside.acquire(blocking=False):
            is_second.set()
            return
        shares.append(now.share)
        is_second.wait(0.02)
        inside.release()

    tracker = Tracker(tell, 1)

    async def lane() -> None:
        reach = await tracker.lane(range(2))
        await reach(0)
        await reach(1)

    async def work() -> None:
        await tracker.begin("orders", 4)
        await asyncio.gather(*(lane() for _ in range(4)))

    await portal.asked(work())

    assert not is_second.is_set(), "two callbacks at once"
    assert sorted(shares) == shares
    assert 1.0 == shares[-1]


def test_buckets_that_are_born_meanwhile_do_not_count_beyond_all() -> None:
    seen: list[Progress] = []
    tracker = Tracker(seen.append, 1)
    portal.run(tracker.begin("orders", 1))
    reach = portal.run(tracker.lane(range(2)))
    portal.run(reach(0))
    portal.run(reach(7))
    portal.run(reach(8))

    assert (2, 2, 1.0) == (seen[-1].buckets_done, seen[-1].buckets, seen[-1].share)


def test_a_pass_over_no_queue_is_done_at_once_and_silence_says_nothing() -> None:
    seen: list[Progress] = []
    portal.run(Tracker(seen.append, 0).begin_rest())
    portal.run(portal.run(SILENT.lane(range(3)))(1))

    assert [1.0] == [one.share for one in seen]
    assert not SILENT.is_on
