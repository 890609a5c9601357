"""What befalls a simulated world: nodes, network, clocks and clients, until a time."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from tests.simulation.draws import Draws
from tests.simulation.outside import Weather, synced
from tests.simulation.world import APART_US, WorldTransport

if TYPE_CHECKING:
    from cassieq_spark.testing.simulated.ring import Node
    from tests.simulation.world import World

RESTART_S = 5.0
UNSYNCED_S = (0.3, 2.0, 9.0)
"""How long ago a node has synced its disk: every ten seconds, as cassandra.yaml has it."""

ENOUGH = 2_000
"""After so many statements no fault begins."""


class Mischief:
    """Lets faults come and go.

    Each world has some kinds of them, drawn by its seed (swarm testing): with all kinds at once,
    rare states that need quiet would not come about.

    Attributes:
        jumps: Whether the clock of a node may be wrong by much. Then no other one may be away, and
            no client may start (docs/operations/cluster.md, clocks).
    """

    def __init__(self, world: World, transports: list[WorldTransport]) -> None:
        self._world = world
        self._transports = transports
        self._weather = world.network.weather
        self._count = 0
        self._draws = Draws(world.seed, "faults")
        self.jumps = self._draws.random() < 0.2
        kinds = [self.slow, self.lose, self.double, self.unanswer, self.kill, self.suspend]
        kinds += [self.hush]
        kinds += [self.jump] if self.jumps else [self.stop, self.cut]
        self._kinds = self._draws.sample(kinds, k=self._draws.randint(1, 4))
        if world.weather is not None:
            self._go_outside(world.weather)
        self._wrong = self._draws.choice(world.clocks)
        self._is_over = False
        world.may_kill = self._may_kill

    def _go_outside(self, weather: Weather) -> None:
        """Choose the faults of a world outside: mostly those of its weather."""
        self.jumps = False
        kinds = [one for one in self._kinds if one.__name__ not in weather.without]
        self._kinds = [*kinds[:2], *4 * [getattr(self, name) for name in weather.faults]]

    async def work(self, over_s: float) -> None:
        """Go on until a time. What has begun by then ends soon after."""
        while self._world.loop.time() < over_s and self._world.statements < ENOUGH:
            await asyncio.sleep(self._draws.choice([0.3, 1.0, 4.0]) * self._world.pace)
            if self._world.loop.time() >= over_s:
                return
            fault = self._draws.choice(self._kinds)
            node = self._draws.choice(self._world.ring.nodes)
            lasts_s = self._draws.choice([0.3, 2.0, 8.0])
            self._count += 1
            if self._world.has(f"fault {self._count}: {fault.__name__}"):
                fault(node, lasts_s)

    def end(self) -> None:
        """Let there be peace. Nodes that have stopped start by themselves."""
        self._is_over = True
        self._weather.loss = self._weather.doubled = 0.0
        self._weather.cut.clear()
        self._weather.slow.clear()
        self._world.spots.clear()
        self._world.has_faults = False
        self._world.away_until_s = 0.0
        for one in self._transports:
            one.unanswered = 0.0
        for clock in self._world.clocks:
            if abs(clock.ahead_us) > APART_US:
                clock.ahead_us = 0

    def stop(self, node: Node, lasts_s: float) -> None:
        """A node stops as by a kill, and starts again; the others learn of it late or never."""
        if node.is_up:
            self._world.seen["stop"] += 1
            ring, loop = self._world.ring, self._world.loop
            ring.stop(node)
            loop.call_later(self._draws.choice([0.2, 5.0]), ring.convict, node)
            loop.call_later(lasts_s + RESTART_S, ring.start, node)

    def cut(self, node: Node, lasts_s: float) -> None:
        """Nothing passes between a node and others, in one direction or both."""
        self._world.seen["cut"] += 1
        nodes = [one.address for one in self._world.ring.nodes if one is not node]
        clients = [one.name for one in self._transports]
        # From both other nodes: it coordinates, and has no quorum.
        for place in self._draws.choice(
            [nodes, nodes[:1], nodes[1:], [self._draws.choice(clients)]]
        ):
            ways = [(node.address, place), (place, node.address)]
            for way in self._draws.sample(ways, k=self._draws.randint(1, 2)):
                self._weather.cut.add(way)
                self._world.loop.call_later(lasts_s, self._weather.cut.discard, way)

    def slow(self, node: Node, lasts_s: float) -> None:
        """All that a node sends and gets takes longer."""
        self._world.seen["slow"] += 1
        self._weather.slow[node.address] = self._draws.choice([0.02, 0.3, 2.0])
        self._world.loop.call_later(lasts_s, self._weather.slow.pop, node.address, None)

    def lose(self, _: Node, lasts_s: float) -> None:
        """Some messages are lost, everywhere."""
        self._weather.loss = self._draws.choice([0.01, 0.1, 0.3])
        self._world.loop.call_later(lasts_s, setattr, self._weather, "loss", 0.0)

    def double(self, _: Node, lasts_s: float) -> None:
        """Some messages between nodes come twice, the second time late."""
        self._weather.doubled = 0.2
        self._world.loop.call_later(lasts_s, setattr, self._weather, "doubled", 0.0)

    def unanswer(self, _: Node, lasts_s: float) -> None:
        """A client loses some answers."""
        one = self._draws.choice(self._transports)
        one.unanswered = self._draws.choice([0.05, 0.3, 0.8])
        self._world.loop.call_later(lasts_s, setattr, one, "unanswered", 0.0)

    def suspend(self, _: Node, lasts_s: float) -> None:
        """A client's process stands still, for as long as a lease, or for longer."""
        one = self._draws.choice(self._transports)
        self._world.seen["suspend"] += 1
        one.clock.resumes_s = self._world.loop.time() + lasts_s * self._draws.choice([0.1, 1, 3])

    def jump(self, _: Node, __: float) -> None:
        """The clock of one node jumps, always of the same one."""
        self._world.seen["clock jump"] += 1
        self._wrong.ahead_us = self._draw_ahead_us()

    def _draw_ahead_us(self) -> int:
        return 1_000 * round(
            self._draws.choice([1.0, -1.0]) * 1_000 * self._draws.choice([0.1, 2.0, 30.0, 3_600.0])
        )

    def jump_two(self, _: Node, __: float) -> None:
        """The clocks of two nodes jump, by the same or not: clients believe them."""
        self._world.seen["two clocks jump"] += 1
        ahead_us = self._draw_ahead_us()
        for clock in self._world.clocks:
            if clock is not self._wrong:
                clock.ahead_us = ahead_us
                ahead_us = self._draws.choice([ahead_us, self._draw_ahead_us()])

    def power(self, node: Node, lasts_s: float) -> None:
        """A node loses its power, and what it has written since its disk was last synced.

        The others have it: none is away, or waits for what it has missed.
        """
        if not self._is_any_behind():
            self._lose_power(node, lasts_s, self._draws.choice(UNSYNCED_S), is_alone=True)

    def _is_any_behind(self) -> bool:
        nodes = self._world.ring.nodes
        return any(not one.is_up or any(one.hints.values()) for one in nodes)

    def power_behind(self, node: Node, lasts_s: float) -> None:
        """So does a node that alone has written some of it beside its coordinator."""
        nodes = self._world.ring.nodes
        behind = self._draws.choice([one for one in nodes if one is not node])
        unsynced_s = self._draws.choice(UNSYNCED_S)
        for one in nodes:
            if one is not behind:
                way = (one.address, behind.address)
                self._weather.cut.add(way)
                self._world.loop.call_later(unsynced_s, self._weather.cut.discard, way)
        self._lose_power(node, lasts_s, unsynced_s)

    def _lose_power(
        self, node: Node, lasts_s: float, unsynced_s: float, *, is_alone: bool = False
    ) -> None:
        forget, life = synced(node), node.lives

        def fail() -> None:
            if is_alone and self._is_any_behind():
                return
            if node.lives == life and node.is_up and not self._is_over:
                self._world.seen["unsynced writes lost"] += 1
                self.stop(node, lasts_s)
                forget()

        self._world.loop.call_later(unsynced_s, fail)

    def hush(self, _: Node, lasts_s: float) -> None:
        """One bucket does not answer: too few of its replicas do."""
        self._world.away_until_s = self._world.loop.time() + 3 * lasts_s

    def kill(self, _: Node, __: float) -> None:
        """A client dies."""
        alive = [one for one in self._transports if self._may_kill(one)]
        if alive:
            self._world.seen["kill"] += 1
            self._draws.choice(alive).dies_after = self._draws.choice([0, 3, 10, 40])

    def _may_kill(self, one: WorldTransport) -> bool:
        """Whether another one comes in its place, or two live on whose programs have not ended."""
        alive = [
            one
            for one in self._transports
            if not one.is_dead and any(not actor.done() for actor in one.actors)
        ]
        return one in alive and (not self.jumps or len(alive) > 2)
