"""Variants of Paxos without empty proposals are caught, and those that `bootstrap` takes are not.

Clients compete for one row while messages are lost. A proposal that one replica has accepted is
finished by somebody, after another was refused by a row that did not show it.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from cassieq_spark.client import Client
from cassieq_spark.errors import CassieqError
from cassieq_spark.store.tables.lanes import Monoton
from cassieq_spark.testing.simulated.paxos import TOO_LATE, Variant
from tests.simulation.draws import Draws
from tests.simulation.world import COPIES, DATACENTER, World, alone

CLIENTS = 4
TURNS = 15


async def _compete(world: World, client: Client, number: int) -> None:
    draws = Draws(world.seed, f"competitor {number}")
    row = (await client._lane("one")).monotons
    await asyncio.sleep(1)
    world.network.weather.loss = 0.3
    old = None
    for turn in range(TURNS):
        with suppress(CassieqError):
            if old is None or draws.random() < 0.5:  # else it is refused: the row has changed
                old = await row.read()
            assert old is not None
            await row.update(old, Monoton(next_id=turn * CLIENTS + number, reserved_us=0))
        await asyncio.sleep(draws.random())


@alone
def happened_late(seed: int, variant: Variant) -> int:
    """Return how often something happened after a refusal that had not seen it."""
    world = World(seed, variant=Variant.V2)
    with world.running():
        client = world.connect()
        client.bootstrap({"class": "NetworkTopologyStrategy", DATACENTER: COPIES})
        client.create_queue("one")
        world.variant = variant
        clients = [world.connect() for _ in range(CLIENTS)]
        world.loop.finish(
            *(
                world.loop.create_task(_compete(world, one, number))
                for number, one in enumerate(clients)
            )
        )
        world.network.weather.loss = 0.0
        world.close()
    return world.seen[TOO_LATE]


@pytest.mark.parametrize(("seed", "caught"), [(17, [Variant.V2_UNSAFE]), (22, [Variant.V1_UNSAFE])])
def test_a_change_after_a_refusal_that_had_not_seen_it_is_caught(
    seed: int, caught: list[Variant]
) -> None:
    assert caught == [one for one in Variant if happened_late(seed, one)]
