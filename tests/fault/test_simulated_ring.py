"""The simulated ring answers as a real ring of three does, and its replicas hold the same.

Nodes are away meanwhile. Only what Cassandra determines is compared, so each statement goes to all
nodes that are up: at quorum while there are two, at ALL or ONE while there are three or one.
"""

from __future__ import annotations

import asyncio
import os
from collections import defaultdict
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from cassandra import ConsistencyLevel

from cassieq_spark.clock import SystemClock
from cassieq_spark.entropy import generator
from cassieq_spark.store import portal, statements
from cassieq_spark.store.driver import DriverTransport
from cassieq_spark.store.statements import Kind, Statement
from cassieq_spark.store.translate import DRIVER_ERRORS
from cassieq_spark.testing import EmbeddedCassandra, wait_until
from tests.fixtures.cassandra import await_peers
from tests.fixtures.differential import (
    STATEMENTS,
    TABLES,
    Drawn,
    alone,
    answer,
    at_level,
    every_row,
    forget,
    simulated,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    import cassieq_spark as cassieq
    from cassieq_spark.store.transport import Transport

GROUPS = [int(one) for one in os.environ.get("RING_GROUPS", "0,1").split(",")]
"""Which groups of sequences; each has its own changes of the ring."""

HINTED_GROUP = int(os.environ.get("HINTED_GROUP", "2"))
FLUSH_S = 1
"""``hints_flush_period``."""

TOGETHER = 40
"""The sequences of a group: a change of the ring takes 15 s, whatever is sent between two."""

PHASES = 8
LENGTH = 8
"""The statements of a sequence in each phase."""

OF_TABLES = {
    name: [one for one in STATEMENTS if one.table == name]
    for name in sorted({one.table for one in STATEMENTS})
}
LWT_ONLY = {one.table for one in STATEMENTS if one.kind is Kind.CAS}

ALL_UP = frozenset(range(3))
AT_ALL_UP = {
    1: ConsistencyLevel.LOCAL_ONE,
    2: ConsistencyLevel.LOCAL_QUORUM,
    3: ConsistencyLevel.ALL,
}


class Both:
    """A real ring and a simulated one, to which the same happens.

    Attributes:
        up: The numbers of the nodes that are up, from 0.
        differences: What differed, by sequence: the first difference of each.
    """

    def __init__(self, ring: EmbeddedCassandra, client: cassieq.Client, *, has_hints: bool) -> None:
        self._ring = ring
        self._options = client._session.options
        self._host_ids = {node.address: node.host_id for node in client._session.transport.nodes()}
        self._here = simulated([node.address for node in ring.nodes], ring.datacenter)
        self._simulated = self._here.ring
        self._simulated.has_hints = self.has_hints = has_hints
        self.up = ALL_UP
        self.told: dict[int, list[str]] = defaultdict(list)
        self.differences: dict[int, str] = {}

    def change(self, up: frozenset[int], *, is_kill: bool) -> None:
        """Let these nodes be up, and no others: the rest is killed, or stands still."""
        portal.run(asyncio.sleep(1))  # what a third replica has not been waited for
        nodes = self._ring.nodes
        for number in up - self.up:
            if not nodes[number].is_running:
                nodes[number].start()
        # Before others come back: a node must not give its hints just before it goes.
        for number in self.up - up:
            nodes[number].kill() if is_kill else nodes[number].pause()
        for number in up - self.up:
            nodes[number].resume()
        portal.run(self._simulate(up))
        self.up = up
        wait_until(
            lambda: all(
                nodes[one].sees_up(nodes[other]) == (other in up)
                for one in up
                for other in ALL_UP - {one}
            ),
            deadline_s=150,
            describe="the nodes to see who is up",
        )
        if self.has_hints:
            portal.run(asyncio.sleep(2 * FLUSH_S))
            wait_until(lambda: not self._hints(), deadline_s=90, describe="the hints to be taken")

    async def _simulate(self, up: frozenset[int]) -> None:
        for number in self.up - up:
            self._simulated.stop(self._simulated.nodes[number])
            self._simulated.convict(self._simulated.nodes[number])
        for number in sorted(up - self.up):
            self._simulated.start(self._simulated.nodes[number])
        await asyncio.sleep(0.1)  # hints come at once

    def _hints(self) -> list[Path]:
        """The files of hints that nodes which are up have for one another."""
        assert self._ring.data_dir is not None
        return [
            file
            for one in self.up
            for other in self.up
            for file in self._ring.data_dir.glob(
                f"node{one + 1}/hints/{self._host_ids[self.address(other)]}-*.hints"
            )
        ]

    @contextmanager
    def connected(self) -> Iterator[Transport]:
        """The way to the nodes that are up, when each reaches all others."""
        points = tuple(
            (self._ring.nodes[one].address, self._ring.nodes[one].port) for one in self.up
        )
        there = DriverTransport(
            replace(self._options, contact_points=points, connect_timeout_s=2.0), SystemClock()
        )
        probe = at_level(statements.READ_META, AT_ALL_UP[len(self.up)])

        def all_answer() -> bool:
            try:
                for number in sorted(self.up) * 3:
                    portal.run(answer(there, probe, [("nothing",)], self.address(number)))
            except DRIVER_ERRORS:
                return False
            return True

        try:
            wait_until(all_answer, deadline_s=90, describe="each node to reach all others")
            yield there
        finally:
            there.close()

    def address(self, number: int) -> str:
        return self._ring.nodes[number].address

    async def compare(
        self, there: Transport, seed: int, statement: Statement, rows: Sequence[Any], via: int
    ) -> None:
        """Send a statement to both, in the same second and in a millisecond of its own."""
        ends_soon = SystemClock().now_us() % 1_000_000 > 900_000
        await asyncio.sleep(0.102 if ends_soon else 0.002)
        expected = await answer(there, statement, rows, self.address(via))
        found = await answer(self._here, statement, rows, self.address(via))
        self.told[seed].append(f"{sorted(self.up)} {via} {statement.name} {rows} -> {expected}")
        if expected != found and seed not in self.differences:
            told = "\n".join(self.told[seed])
            self.differences[seed] = f"{told}\nbut simulated: {found}"

    async def compare_tables(self, there: Transport, names: set[str]) -> None:
        """Compare all rows of all nodes that are up; node by node while there is only one."""
        for name in sorted(names):
            read = at_level(every_row(TABLES[name]), AT_ALL_UP[len(self.up)])
            via = min(self.up)
            expected, found = [
                {tuple(map(repr, row.values())) for row in rows if isinstance(row, dict)}
                for rows in (
                    await answer(there, read, [()], self.address(via)),
                    await answer(self._here, read, [()], self.address(via)),
                )
            ]
            if expected != found:
                self.differences[-len(self.differences) - 1] = (
                    f"{name} of {sorted(self.up)}: real {sorted(expected - found)}, "
                    f"simulated {sorted(found - expected)}"
                )

    async def forget(self, there: Transport) -> None:
        await forget(there, self._options.keyspace, self._here)


def fitting(statement: Statement, up: int, *, is_at_one: bool, with_cas: bool) -> Statement | None:
    """The statement at a level that determines its answer and what it writes; None: there is none.

    Args:
        is_at_one: Whether it asks only one node, if there is only one; else it is refused.
        with_cas: Whether three nodes take conditional statements: which two of them decide is not
            determined, nor is what the third one holds.
    """
    if statement.kind in {Kind.CAS, Kind.SERIAL_READ}:
        return statement if up < 3 or with_cas else None
    if up == 3 or statement.kind is Kind.GLANCE or (up == 1 and is_at_one):
        return at_level(statement, AT_ALL_UP[up])
    return statement


def run(both: Both, group: int) -> None:
    """Run a group of sequences, and compare all that they have left."""
    rng = generator(group)
    with_cas = group % 2 == 1
    base_us = SystemClock().now_us()
    first = group * TOGETHER
    drawn = {
        seed: Drawn(seed, base_us, OF_TABLES[rng.choice(list(OF_TABLES))])
        for seed in range(first, first + TOGETHER)
    }

    async def send(there: Transport, *, with_scans: bool) -> None:
        for seed in list(drawn) * LENGTH:
            statement, rows = drawn[seed].statement()
            fits = fitting(statement, len(both.up), is_at_one=rng.random() < 0.7, with_cas=with_cas)
            via = rng.choice(sorted(both.up))
            # A scan repairs all partitions: without it they go on to be apart.
            if fits is not None and (with_scans or not statement.is_scan):
                await both.compare(there, seed, fits, rows, via)

    for _ in range(PHASES):
        count = rng.choice([1, 1, 2, 2, 2, 3])
        # Hints of the last second are in memory.
        is_kill = rng.random() < 0.25 and not both.has_hints
        both.change(frozenset(rng.sample(sorted(ALL_UP), count)), is_kill=is_kill)
        with both.connected() as there:
            portal.run(send(there, with_scans=rng.random() < 0.4))
    for number in ALL_UP:
        both.change(frozenset({number}), is_kill=False)
        with both.connected() as there:
            names = set(TABLES) - (LWT_ONLY if with_cas else set())
            portal.run(both.compare_tables(there, names))
    both.change(ALL_UP, is_kill=False)
    with both.connected() as there:
        portal.run(both.compare_tables(there, set(TABLES)))
        portal.run(both.forget(there))


@pytest.fixture
def ring_with_hints() -> Iterator[EmbeddedCassandra]:
    settings = {"phi_convict_threshold": 5, "hints_flush_period": f"{FLUSH_S}s"}
    with EmbeddedCassandra(nodes=3, settings=settings) as ring:
        await_peers(ring)
        yield ring
        ring.kill()


def compare(ring: EmbeddedCassandra, group: int, *, has_hints: bool) -> None:
    with alone(ring) as client:
        both = Both(ring, client, has_hints=has_hints)
        try:
            run(both, group)
        finally:
            ring.resume()
            ring.start()
    assert not both.differences, "\n\n".join(both.differences.values())


@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("group", GROUPS)
def test_a_ring_of_three_with_nodes_away_has_the_same_answers_and_replicas(
    ring: EmbeddedCassandra, group: int
) -> None:
    compare(ring, group, has_hints=False)


@pytest.mark.timeout(1_800)
def test_what_hints_bring_is_the_same_too(ring_with_hints: EmbeddedCassandra) -> None:
    compare(ring_with_hints, HINTED_GROUP, has_hints=True)
