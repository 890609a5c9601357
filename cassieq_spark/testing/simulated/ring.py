"""The nodes of a simulated Cassandra and what goes between them: quorums, hints, read repair.

Any node coordinates. It sends to all replicas, and waits for those that its consistency asks for.
Each node has a clock of its own, for write times, ballots and expiry. Every node of a data centre
keeps a copy of every partition; a keyspace with fewer copies is refused.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, NamedTuple, Protocol, TypeVar
from uuid import UUID

from cassandra import ConsistencyLevel, ReadTimeout, Unavailable, WriteTimeout, WriteType
from cassandra.connection import ConnectionShutdown

from cassieq_spark.store.schema import GC_GRACE_S
from cassieq_spark.testing.simulated.cql import Table
from cassieq_spark.testing.simulated.storage import WHOLE, Extent, Partition, token_of

T = TypeVar("T")

READ_S: Final = 5.0
WRITE_S: Final = 2.0
"""The timeouts of a node, as cassandra.yaml has them."""

CAS_S: Final = 1.0
"""``cas_contention_timeout``."""

HINTS_S: Final = 10.0
"""The pause after which a node sends its hints, at least; what is not taken is sent again."""

LOCAL: Final = frozenset(
    {ConsistencyLevel.LOCAL_ONE, ConsistencyLevel.LOCAL_QUORUM, ConsistencyLevel.LOCAL_SERIAL}
)
ONE: Final = frozenset({ConsistencyLevel.LOCAL_ONE, ConsistencyLevel.ONE})

Key = tuple[str, tuple[Any, ...]]
"""A partition: its table and key."""


class Ballot(NamedTuple):
    """The name of a Paxos round: by the time of its coordinator, unique."""

    at_us: int
    node: int


NO_BALLOT: Final = Ballot(0, 0)


class Round(NamedTuple):
    """A ballot, and the change that was proposed with it; None: no change."""

    ballot: Ballot
    change: Partition | None


NO_ROUND: Final = Round(NO_BALLOT, None)


@dataclass(slots=True)
class Promises:
    """The memory that a replica has of the Paxos rounds of a partition (``system.paxos``)."""

    promised: Ballot = NO_BALLOT
    accepted: Round = NO_ROUND
    committed: Round = NO_ROUND

    def expire(self, before_us: int) -> None:
        """Forget what is older: each column of ``system.paxos`` has a time to live."""
        if self.promised.at_us < before_us:
            self.promised = NO_BALLOT
        if self.accepted.ballot.at_us < before_us:
            self.accepted = NO_ROUND
        if self.committed.ballot.at_us < before_us:
            self.committed = NO_ROUND

    @property
    def latest(self) -> Ballot:
        """The latest ballot that was seen (``Snapshot.latestWitnessedOrLowBound``)."""
        return max(self.promised, self.accepted.ballot, self.committed.ballot)


class Hint(NamedTuple):
    """A write that is kept for a replica that did not answer, and the second in which it was."""

    key: Key
    change: Partition
    made_s: int


class Network(Protocol):
    """The interface by which messages go between two places, each a node or a client."""

    def carry(self, source: str, target: str, deliver: Callable[[], object]) -> None:
        """Call ``deliver`` at the target, later or never."""


class Perfect:
    """A network that loses nothing and takes no time."""

    def carry(self, source: str, target: str, deliver: Callable[[], object]) -> None:
        """See `Network`."""
        del source, target
        asyncio.get_running_loop().call_soon(deliver)


@dataclass(eq=False)
class Node:
    """A node of the ring.

    Attributes:
        wall_us: Its clock, in µs since the epoch.
        number: Its place in the ring, from 1.
        lives: How often it has started: what an earlier life began ends with that.
        hints: The writes that it keeps for others, by their address.
    """

    address: str
    datacenter: str
    host_id: UUID
    number: int
    wall_us: Callable[[], int]
    is_up: bool = True
    lives: int = 1
    data: dict[str, dict[tuple[Any, ...], Partition]] = field(default_factory=dict)
    promises: dict[Key, Promises] = field(default_factory=dict)
    hints: dict[str, list[Hint]] = field(default_factory=dict)
    _last_us: int = 0

    @property
    def now_s(self) -> int:
        """The present second by its clock."""
        return self.wall_us() // 1_000_000

    def stamp(self, above_us: int = 0) -> int:
        """Return a write time by its clock of milliseconds: each is later than the one before.

        Args:
            above_us: Another node's time, for a later one; it does not put this node's clock
                forward (``ClientState.getTimestampForPaxos``).
        """
        at_us = max(self.wall_us() // 1_000 * 1_000, self._last_us + 1)
        if at_us <= above_us:
            return above_us + 1
        self._last_us = at_us
        return at_us

    def promises_of(self, key: Key) -> Promises:
        """Return what it remembers of the Paxos rounds of a partition."""
        known = self.promises.get(key)
        if known is None:
            known = self.promises[key] = Promises()
        known.expire(self.wall_us() - GC_GRACE_S * 1_000_000)
        return known

    def forget_time(self) -> None:
        """Forget the last write time, as a restart does."""
        self._last_us = 0

    def apply(self, key: Key, change: Partition) -> None:
        """Write."""
        table, partition = key
        of_table = self.data.setdefault(table, {})
        found = of_table.get(partition)
        if found is None:
            found = of_table[partition] = Partition()
        found.merge(change)

    def read(self, key: Key, now_s: int) -> Partition:
        """Return its version of a partition, as it is now by the clock of the read's coordinator.

        A read carries that time (``ReadCommand.nowInSec``).
        """
        found = self.data.get(key[0], {}).get(key[1])
        return Partition() if found is None else found.at(now_s)


class Ring:
    """The nodes, and the tables that they all know.

    Attributes:
        copies: The copies that the keyspace has in each data centre; None: it does not exist.
        has_hints: ``hinted_handoff_enabled``.
        seen: How often what has happened, by name.
        looked: The ballot of the latest refusal or serial read of each partition.
        on_stop: Called with each node that stops, for the clients whose connections break.
    """

    def __init__(
        self,
        nodes: Sequence[Node],
        *,
        keyspace: str = "cassieq",
        network: Network | None = None,
        rng: random.Random | None = None,
        seen: Counter[str] | None = None,
    ) -> None:
        self.seen = Counter() if seen is None else seen
        self.nodes = list(nodes)
        self.keyspace = keyspace
        self.network: Network = network or Perfect()
        self.rng = rng or random.Random(0)  # noqa: S311 - guards no secret
        self.tables: dict[str, Table] = {}
        self.copies: dict[str, int] | None = None
        self.has_hints = True
        self.looked: dict[Key, Ballot] = {}
        self.on_stop: list[Callable[[Node], object]] = []
        self._away: set[str] = set()
        self._tokens: dict[Key, int] = {}

    def token(self, key: Key) -> int:
        """Return the token of a partition."""
        found = self._tokens.get(key)
        if found is None:
            found = self._tokens[key] = token_of(self.tables[key[0]], key[1])
        return found

    def participants(self, via: Node, level: int) -> list[Node]:
        """Return the replicas that count for a consistency level."""
        if level not in LOCAL:
            return self.replicas
        return [node for node in self.replicas if node.datacenter == via.datacenter]

    @property
    def replicas(self) -> list[Node]:
        """All nodes of the data centres in which the keyspace has copies."""
        return [node for node in self.nodes if node.datacenter in (self.copies or {})]

    def sees(self, node: Node) -> bool:
        """Whether the others take this node for up: they learn later that it stopped."""
        return node.address not in self._away

    def convict(self, node: Node) -> None:
        """Let the others take a node for down."""
        self._away.add(node.address)

    def stop(self, node: Node) -> None:
        """Stop a node at once, as by a kill. What it has written stays on its disk."""
        node.is_up = False
        for tell in self.on_stop:
            tell(node)

    def start(self, node: Node) -> None:
        """Start a node; the others give it their hints, and it gives them its own."""
        node.is_up = True
        node.lives += 1
        node.forget_time()
        self._away.discard(node.address)
        for other in self.nodes:
            self.give_hints(other, node)
            self.give_hints(node, other)

    def forget_hints(self, target: Node) -> None:
        """Forget what is kept for a node: it is down for longer than ``max_hint_window``."""
        for node in self.nodes:
            node.hints.get(target.address, []).clear()

    def compact(self, node: Node) -> None:
        """Let a node forget deletions that are older than ``gc_grace_seconds``."""
        before_s = node.now_s - GC_GRACE_S
        for of_table in node.data.values():
            for key in list(of_table):
                of_table[key].purge(before_s)
                if of_table[key].is_empty:
                    del of_table[key]

    def give_hints(self, source: Node, target: Node) -> None:
        """Send what a node keeps for another, which keeps it until it is taken."""
        if not (source.is_up and target.is_up):
            return
        kept = source.hints.get(target.address, [])
        oldest_s = source.now_s - GC_GRACE_S
        kept[:] = [hint for hint in kept if hint.made_s >= oldest_s]

        def take(hint: Hint) -> None:
            self.seen["hint"] += 1
            target.apply(hint.key, hint.change)
            self.carry(target, source, partial(forget, hint))

        def forget(hint: Hint) -> None:
            if hint in kept:
                kept.remove(hint)

        for hint in kept:
            self.carry(source, target, partial(take, hint))

    def carry(self, source: Node, target: Node, deliver: Callable[[], object]) -> None:
        """Send to a node; nothing comes to one that is down."""

        def arrive() -> None:
            if target.is_up:
                deliver()

        self.network.carry(source.address, target.address, arrive)

    def keep_hint(self, source: Node, target: Node, key: Key, change: Partition) -> None:
        """Keep a write for a replica that did not answer; it is sent some time later."""
        if not self.has_hints:
            return
        kept = source.hints.setdefault(target.address, [])
        kept.append(Hint(key, change, source.now_s))
        if len(kept) == 1:
            self._give_hints_later(source, target)

    def _give_hints_later(self, source: Node, target: Node) -> None:
        loop = asyncio.get_running_loop()
        loop.call_later(
            HINTS_S * (1 + 2 * self.rng.random()), self._give_hints_in_turn, source, target
        )

    def _give_hints_in_turn(self, source: Node, target: Node) -> None:
        """Send them, and again after a while those that are not taken by then."""
        self.give_hints(source, target)
        if source.hints.get(target.address):
            self._give_hints_later(source, target)


class Stopped(Exception):
    """The coordinator has stopped: nobody answers the client."""


class Coordinator:
    """Coordinates a statement at a node; each answer of another comes over the network."""

    def __init__(self, ring: Ring, via: Node) -> None:
        self.ring = ring
        self.via = via
        self._life = via.lives

    @property
    def is_alive(self) -> bool:
        """Whether the node has not stopped since this began."""
        return self.via.is_up and self.via.lives == self._life

    def check(self) -> None:
        """Raise an error if the node has stopped meanwhile."""
        if not self.is_alive:
            raise Stopped

    def needed(self, level: int) -> int:
        """Return how many replicas have to answer."""
        if level in ONE:
            return 1
        count = len(self.ring.participants(self.via, level))
        return count if level == ConsistencyLevel.ALL else count // 2 + 1

    def alive(self, level: int) -> list[Node]:
        """Return the replicas to ask, this node first.

        Raises:
            Unavailable: Too few of them are up.
        """
        nodes = [node for node in self.ring.participants(self.via, level) if self.ring.sees(node)]
        needed = self.needed(level)
        if len(nodes) < needed:
            raise Unavailable("Cannot achieve consistency level", level, needed, len(nodes))
        self.ring.rng.shuffle(nodes)
        nodes.sort(key=lambda node: node is not self.via)
        return nodes

    async def ask(
        self,
        nodes: Collection[Node],
        work: Callable[[Node], T],
        is_enough: Callable[[dict[Node, T]], bool],
        within_s: float,
        *,
        over: Callable[[dict[Node, T]], object] = lambda _: None,
    ) -> dict[Node, T]:
        """Let nodes do something; return the answers when they are enough, or the time is over.

        Args:
            over: Called when the time is over, unless all have answered by then.

        Raises:
            Stopped: This node has stopped meanwhile.
        """
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[None] = loop.create_future()
        answers: dict[Node, T] = {}

        def check() -> None:
            if not ended.done() and is_enough(answers):
                ended.set_result(None)

        def told(node: Node, answer: T) -> None:
            answers.setdefault(node, answer)  # a message that came twice is answered once
            check()
            if len(answers) == len(nodes):
                timer.cancel()

        def at(node: Node) -> None:
            answer = work(node)
            self.ring.carry(node, self.via, lambda: told(node, answer))

        def end() -> None:
            if not ended.done():
                ended.set_result(None)
            over(answers)

        for node in nodes:
            self.ring.carry(self.via, node, partial(at, node))
        timer = loop.call_later(within_s, end)
        check()
        await ended
        self.check()
        return dict(answers)

    async def read(
        self,
        key: Key,
        columns: frozenset[str],
        level: int,
        extent_in: Callable[[Partition], Extent] = lambda _: WHOLE,
    ) -> Partition:
        """Read a partition from as many replicas as the level asks for, and repair these.

        Args:
            columns: Those that the statement selects: read repair writes no others [P4].
            extent_in: Returns the rows of the merged partition that it comes to: nor any others.

        Raises:
            Unavailable, ReadTimeout: Too few replicas are up, or answer.
        """
        needed = self.needed(level)
        nodes = self.alive(level)[:needed]
        now_s = self.via.now_s
        found = await self.ask(nodes, lambda node: node.read(key, now_s), at_least(needed), READ_S)
        if len(found) < needed:
            raise _read_timeout(level, needed, len(found))
        return await self.merged(key, found, columns, level, extent_in)

    async def merged(
        self,
        key: Key,
        found: dict[Node, Partition],
        columns: frozenset[str],
        level: int,
        extent_in: Callable[[Partition], Extent],
    ) -> Partition:
        """Merge the versions of several replicas, and write to each what it lacks.

        Raises:
            ReadTimeout: One of them does not take it.
        """
        if len(found) == 1:
            return next(iter(found.values()))
        whole = Partition()
        for version in found.values():
            whole.merge(version)
        extent = extent_in(whole)
        repairs = {
            node: repair
            for node, version in found.items()
            if (repair := whole.missing_in(version, columns, extent)) is not None
        }
        if repairs:
            self.ring.seen["read repair"] += 1
            done = await self.ask(
                repairs, lambda node: node.apply(key, repairs[node]), at_least(len(repairs)), READ_S
            )
            if len(done) < len(repairs):
                raise _read_timeout(level, len(found), len(found) - len(repairs) + len(done))
        return whole

    async def write(self, changes: Sequence[tuple[Key, Partition]], level: int) -> None:
        """Write to all replicas; return when as many have it as the level asks for.

        Raises:
            Unavailable, WriteTimeout: Too few replicas are up, or answer.
        """
        self.alive(level)
        key = changes[0][0]
        whole = changes[0][1]
        for _, change in changes[1:]:
            whole.merge(change)
        if await self.store(key, whole, level) < self.needed(level):
            raise WriteTimeout(
                "the simulated replicas are silent",
                write_type=WriteType.SIMPLE if len(changes) == 1 else WriteType.UNLOGGED_BATCH,
                consistency=level,
                required_responses=self.needed(level),
            )

    async def store(
        self,
        key: Key,
        change: Partition,
        level: int,
        work: Callable[[Node], object] | None = None,
    ) -> int:
        """Send a change to all replicas, with hints for the silent; return how many have it.

        Args:
            work: What each of them does; None: it writes.
        """
        counted = set(self.ring.participants(self.via, level))
        seen = [node for node in self.ring.replicas if self.ring.sees(node)]
        needed = self.needed(level)

        def hint(answers: Collection[Node]) -> None:
            if self.is_alive:
                for node in seen:
                    if node not in answers:
                        self.ring.keep_hint(self.via, node, key, change)

        for node in self.ring.replicas:
            if node not in seen:
                self.ring.keep_hint(self.via, node, key, change)
        stored = await self.ask(
            seen,
            work or (lambda node: node.apply(key, change)),
            lambda answers: len(answers.keys() & counted) >= needed,
            WRITE_S,
            over=hint,
        )
        return len(stored.keys() & counted)


def at_least(count: int) -> Callable[[dict[Node, Any]], bool]:
    """Return a function that says whether so many have answered."""
    return lambda answers: len(answers) >= count


def _read_timeout(level: int, needed: int, there: int) -> ReadTimeout:
    return ReadTimeout(
        "the simulated replicas are silent",
        data_retrieved=False,
        consistency=level,
        required_responses=needed,
        received_responses=there,
    )


def shut() -> ConnectionShutdown:
    """Return the driver's error for a request whose node has stopped."""
    return ConnectionShutdown("the simulated node has stopped")
