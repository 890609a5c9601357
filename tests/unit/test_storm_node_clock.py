"""A storm's node whose clock is wrong: one, for all who opened the dial, until it is put right."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from pathlib import Path

from cassieq_spark.clock import Answers, Clock, Reading
from cassieq_spark.testing import ManualClock
from tests.storm.node_clock import NodeClock


async def ask(base: Clock, but: Collection[str]) -> Answers:
    nodes = [node for node in ("127.0.0.1", "127.0.0.11") if node not in but]
    sent_s = base.monotonic()
    return Answers(
        readings=tuple(
            Reading(node=node, sent_s=sent_s, back_s=sent_s, there_us=10_000_000) for node in nodes
        ),
        silent=frozenset({"127.0.0.3"}),
    )


def test_the_node_that_is_named_tells_another_time_to_all(tmp_path: Path) -> None:
    dial, same = NodeClock(tmp_path / "one"), NodeClock(tmp_path / "one")
    told = same.falsified(ask)

    dial.set("127.0.0.1", -2.5)
    wrong = asyncio.run(told(ManualClock(), ()))
    dial.put_right()
    right = asyncio.run(told(ManualClock(), ()))

    assert [7_500_000, 10_000_000] == [one.there_us for one in wrong.readings]
    assert frozenset({"127.0.0.3"}) == wrong.silent
    assert asyncio.run(ask(ManualClock(), ())) == right
