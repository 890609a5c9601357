"""``python -m tests.simulation.drain``: what programs cost each other that drain one lane.

The same work as ``bench/choice.py`` in virtual time: so many processes get and ack by a hundred
from a backlog in so many buckets. It shows in seconds what a change of the rule does to the number
of conditional writes; how long they take, only a real node shows.
"""

# ruff: noqa: T201 - a program that prints what it found

from __future__ import annotations

import argparse
import asyncio
import logging
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from cassieq_spark.store.statements import Kind, every_statement
from cassieq_spark.testing.simulated.paxos import Variant
from tests.simulation.world import COPIES, DATACENTER, World, alone

if TYPE_CHECKING:
    from cassieq_spark.aio.client import AsyncClient

AT_ONCE: Final = 100
PUT_AT_ONCE: Final = 1_600
BETWEEN_S: Final = 0.004
"""The time that a program works on a hundred messages."""

SIZES: Final = ((1, 16), (4, 4), (4, 16), (16, 1), (16, 4), (16, 16), (16, 64))
CASES: Final = frozenset(
    one.name for one in every_statement() if one.kind is Kind.CAS and one.name.endswith("_bucket")
)
"""The statements that change a bucket's row."""


@dataclass(frozen=True, kw_only=True)
class Drained:
    """What it took.

    Attributes:
        cas: The conditional writes of bucket rows, by statement.
    """

    messages: int
    cas: Counter[str]

    @property
    def cas_per_100(self) -> float:
        """The conditional writes for a hundred messages; 2 is the least."""
        return AT_ONCE * self.cas.total() / self.messages


@alone
def drain(seed: int, processes: int, in_buckets: int, messages: int) -> Drained:
    """Fill so many buckets, and let so many processes drain them."""
    world = World(seed, variant=Variant.V2)
    world.limits = {}
    world.knobs = {"rows_per_page": 5_000}
    with world.running():
        world.connect().bootstrap({"class": "NetworkTopologyStrategy", DATACENTER: COPIES})
        work = world.loop.create_task(_drain(world, processes, in_buckets, messages))
        world.loop.finish(work)
        found = work.result()
        world.close()
    return found


async def _drain(world: World, processes: int, in_buckets: int, messages: int) -> Drained:
    client, _ = await world.connected()
    queue = await client.create_queue(
        "orders", bucket_size=messages // in_buckets, visibility_timeout=600
    )
    for at in range(0, messages, PUT_AT_ONCE):
        await queue.put_many([b"order"] * min(PUT_AT_ONCE, messages - at))
    clients = [(await world.connected())[0] for _ in range(processes)]
    before = sum((one.counts for one in world.transports), Counter())
    found = await asyncio.gather(*map(_take_all, clients))
    spent = sum((one.counts for one in world.transports), Counter()) - before
    cas = Counter({name: count for name, count in spent.items() if name in CASES})
    return Drained(messages=sum(found), cas=cas)


async def _take_all(client: AsyncClient) -> int:
    queue = await client.queue("orders")
    taken = 0
    while messages := await queue.get(AT_ONCE, wait=0):
        await asyncio.sleep(BETWEEN_S)
        await queue.ack(messages)
        taken += len(messages)
    return taken


def main() -> None:
    """Print a line for each size."""
    parser = argparse.ArgumentParser(prog="tests.simulation.drain", description=__doc__)
    parser.add_argument("--messages", type=int, default=25_600)
    parser.add_argument("--seeds", type=int, default=3)
    given = parser.parse_args()
    logging.disable(logging.CRITICAL)
    print("processes  buckets  CASes/100")
    for processes, in_buckets in SIZES:
        runs = [
            drain(seed, processes, in_buckets, given.messages).cas_per_100
            for seed in range(given.seeds)
        ]
        print(f"{processes:>9}  {in_buckets:>7}  {sum(runs) / len(runs):>9.2f}")


if __name__ == "__main__":
    main()
