"""A block in which a program works on one message: what its end says of the message."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import pytest

import cassieq_spark as cassieq
from cassieq_spark.errors import ReceiptExpired, ReceiptInvalid, StoreError
from tests.fixtures.faults import Fault

if TYPE_CHECKING:
    from tests.fixtures.places import Places
    from tests.fixtures.queues import Door, OpenDoor


@pytest.fixture
def door(open_door: OpenDoor, client: cassieq.Client, queue_name: str) -> Door:
    client.create_queue(f"{queue_name}.dead")
    settings: dict[str, Any] = {"max_deliveries": 3, "dead_letter_queue": f"{queue_name}.dead"}
    return open_door(linger=0, visibility_timeout=2, **settings)


def given(door: Door) -> cassieq.Delivery:
    door.queue.put(b"m")
    (message,) = door.queue.get(wait=1)
    return message


def lie(door: Door) -> tuple[int, int, int, int]:
    """Visible, invisible, delayed, dead."""
    stats = door.queue.stats()
    return stats.visible, stats.in_flight, stats.delayed, stats.dead


ENDS: list[tuple[BaseException | None, tuple[int, int, int, int]]] = [
    (None, (0, 0, 0, 0)),
    (ValueError("no"), (0, 0, 1, 0)),
    (cassieq.Retry(after=60), (0, 0, 1, 0)),
    (cassieq.Retry(after=0), (1, 0, 0, 0)),
    (cassieq.Reject("old"), (0, 0, 0, 1)),
    (KeyboardInterrupt(), (1, 0, 0, 0)),
    (asyncio.CancelledError(), (1, 0, 0, 0)),
]


def may_leave(error: BaseException | None) -> Any:
    is_wish = error is None or isinstance(error, cassieq.Retry | cassieq.Reject)
    return nullcontext() if is_wish else pytest.raises(type(error))


@pytest.mark.parametrize(("error", "lies"), ENDS)
def test_the_end_of_the_block_says_what_becomes_of_the_message(
    door: Door, error: BaseException | None, lies: tuple[int, int, int, int]
) -> None:
    message = given(door)
    with may_leave(error), door.queue.process(message, backoff=cassieq.Backoff(base_s=60)):
        assert (0, 1, 0, 0) == lie(door)
        if error is not None:
            raise error

    assert lies == lie(door)
    if lies[0]:
        assert [2] == [one.delivery_count for one in door.queue.get()]


@pytest.mark.parametrize(("error", "lies"), ENDS)
def test_the_same_for_asyncio(
    door: Door, places: Places, error: BaseException | None, lies: tuple[int, int, int, int]
) -> None:
    async def work() -> None:
        async with places.connect_async() as client:
            queue = await client.queue(door.queue.name)
            with may_leave(error):
                async with queue.process(message, backoff=cassieq.Backoff(base_s=60)):
                    if error is not None:
                        raise error

    message = given(door)
    asyncio.run(work())

    assert lies == lie(door)


@pytest.mark.usefixtures("passing_time")
def test_the_lease_is_kept_while_the_block_runs_and_a_long_run_is_told(
    door: Door, open_door: OpenDoor, caplog: pytest.LogCaptureFixture
) -> None:
    other, message = open_door(), given(door)
    with door.queue.process(message):
        assert [] == other.queue.get(wait=30)  # fifteen visibility timeouts
        assert "worker_function_runs" in caplog.text

    assert (0, 0, 0, 0) == lie(door)
    assert [] == other.queue.get(wait=5)


@pytest.mark.usefixtures("passing_time")
def test_a_renewal_that_fails_is_tried_again_before_the_lease_runs_out(
    door: Door, open_door: OpenDoor
) -> None:
    other, message = open_door(), given(door)
    with door.queue.process(message):
        door.faults.plan("update_bucket", Fault.REFUSE, times=2)
        assert [] == other.queue.get(wait=60)

    assert (0, 0, 0, 0) == lie(door)


def lost(door: Door, open_door: OpenDoor) -> cassieq.Delivery:
    """A message whose lease another one holds by now."""
    other, message = open_door(), given(door)
    for one in (door, other):
        one.clock.advance(60)
    assert [2] == [one.delivery_count for one in other.queue.get()]
    return message


def test_a_block_whose_lease_was_lost_says_so_and_takes_nothing_from_the_new_holder(
    door: Door, open_door: OpenDoor
) -> None:
    message = lost(door, open_door)
    with pytest.raises(ReceiptExpired), door.queue.process(message):
        pass
    assert (0, 1, 0, 0) == lie(door)


@pytest.mark.parametrize("error", [ValueError("mine"), cassieq.Reject("old")])
def test_an_error_of_the_block_is_not_hidden_by_that_of_its_end(
    door: Door, open_door: OpenDoor, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    message = lost(door, open_door)
    with may_leave(error), door.queue.process(message):
        raise error
    assert "worker_not_settled" in caplog.text
    assert (0, 1, 0, 0) == lie(door)


def test_an_ack_whose_outcome_is_unknown_is_raised(door: Door) -> None:
    message = given(door)
    with pytest.raises(StoreError), door.queue.process(message):
        door.faults.plan("update_bucket", Fault.TIMEOUT_BEFORE, times=1_000)


def test_a_message_of_another_queue_is_refused_before_the_block(
    door: Door, open_door: OpenDoor
) -> None:
    with pytest.raises(ReceiptInvalid):
        open_door(".other").queue.process(given(door))
