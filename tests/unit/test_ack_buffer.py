"""Acks that gather for a moment, when a Ctrl-C comes at any point."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import CodeType, FrameType, SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from cassieq_spark.clock import SystemClock
from cassieq_spark.errors import StoreError, StoreTimeout, StoreUnavailable
from cassieq_spark.model.ids import BucketNo, LaneId
from cassieq_spark.model.receipt import Receipt
from cassieq_spark.queue.settle.ack_buffer import AckBuffer
from cassieq_spark.queue.settle.settle import AckResult
from cassieq_spark.store import portal
from cassieq_spark.store.call import one_call
from cassieq_spark.testing import ManualClock


@contextmanager
def interrupted_at(number: int, code: CodeType) -> Iterator[None]:
    """Raise KeyboardInterrupt in one of the calls that the function makes.

    Python looks for signals where a function in Python begins, and where one in C has ended.
    """
    left = number

    def note(frame: FrameType, event: str, _: Any) -> None:
        nonlocal left
        by = {"c_return": frame, "call": frame.f_back}.get(event)
        if by is not None and by.f_code is code:
            left -= 1
            if left == 0:
                raise KeyboardInterrupt

    sys.setprofile(note)
    try:
        yield
    finally:
        sys.setprofile(None)


def ack(bucket: int) -> Receipt:
    return Receipt(
        lane=LaneId(UUID(int=1)),
        bucket=BucketNo(bucket),
        lease_id=UUID(int=2),
        first=bucket * 1_000,
        last=bucket * 1_000,
    )


def buffer() -> AckBuffer:
    rows, clock = SimpleNamespace(offer=lambda *_: None), ManualClock(SystemClock())
    session = SimpleNamespace(
        call=lambda: one_call(30, clock),
        begin=lambda work, item: asyncio.get_running_loop().create_task(work(item)),
    )
    store = SimpleNamespace(rows=rows, session=session)
    lane: Any = SimpleNamespace(clock=clock, store=store, queue="q")
    return AckBuffer(lane, within_s=600, on_failure=lambda _: None)


@pytest.mark.parametrize("error", [StoreTimeout("no answer"), StoreUnavailable("no node")])
def test_acks_that_the_store_does_not_answer_are_kept_and_sent_again(
    monkeypatch: pytest.MonkeyPatch, error: StoreError
) -> None:
    sent: list[list[Receipt]] = []

    async def settle_receipts(
        _: Any, receipts: list[Receipt], __: Any
    ) -> tuple[list[AckResult], None, StoreError | None]:
        sent.append(receipts)
        is_first = len(sent) == 1
        verdict = AckResult.UNKNOWN if is_first else AckResult.ACKED
        return [verdict] * len(receipts), None, error if is_first else None

    monkeypatch.setattr(
        "cassieq_spark.queue.settle.ack_buffer.settle.settle_receipts", settle_receipts
    )
    acks = buffer()
    acks.add([ack(1)])
    with pytest.raises(type(error)) as raised:
        portal.run(acks.flush())
    assert error is raised.value
    assert portal.run(is_planned(acks))
    portal.run(acks.flush())
    assert [[ack(1)], [ack(1)]] == sent


async def is_planned(acks: AckBuffer) -> bool:
    return acks._timer.at < float("inf")


@pytest.mark.invariant("I4")
def test_acks_that_were_taken_are_stored_soon_wherever_a_ctrl_c_has_ended_the_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise they would wait for an ack of another bucket, or for the end of the consumer."""
    monkeypatch.setattr("cassieq_spark.queue.settle.ack_buffer.ACK_WITHIN_S", 600)
    taken, number = 0, 0
    while True:
        number, acks = number + 1, buffer()
        try:
            with interrupted_at(number, AckBuffer.add.__code__):
                acks.add([ack(1), ack(2)])
        except KeyboardInterrupt:
            if acks._gathered:
                taken += 1
                assert portal.run(is_planned(acks)), f"interrupted at point {number}"
        else:
            break
    assert taken >= 3
