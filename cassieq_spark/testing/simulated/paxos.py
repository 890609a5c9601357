"""Light-weight transactions of a simulated node, by Paxos as Cassandra has it.

After ``StorageProxy.legacyCas`` and ``service/paxos`` of Cassandra 4.0 to 5.0: prepare, finish the
round of another that was accepted and not committed, read, propose, commit. A refused condition
and a serial read propose an empty change, so that no earlier proposal can happen after them
(CASSANDRA-12126). `Variant` says which of these a cluster leaves out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Final

from cassandra import ConsistencyLevel, WriteTimeout, WriteType

from cassieq_spark.testing.simulated.ring import (
    CAS_S,
    NO_BALLOT,
    NO_ROUND,
    WRITE_S,
    Ballot,
    Coordinator,
    Key,
    Node,
    Round,
    at_least,
)
from cassieq_spark.testing.simulated.storage import Partition

TOO_LATE: Final = "a change after a refusal that had not seen it"
"""What the variants do that do not propose an empty change; see `Ring.seen`."""

MOST_PAUSE_S: Final = 0.1
"""The longest pause of a coordinator that has met another one."""


class Variant(Enum):
    """``paxos_variant`` of a node."""

    V1 = "v1"
    V2 = "v2"
    V1_UNSAFE = "v1_without_linearizable_reads_or_rejected_writes"
    V2_UNSAFE = "v2_without_linearizable_reads_or_rejected_writes"

    @property
    def is_v1(self) -> bool:
        """Whether it reads after the promises, and not with them."""
        return self in {Variant.V1, Variant.V1_UNSAFE}

    @property
    def proposes_nothing(self) -> bool:
        """Whether a read and a refusal propose an empty change."""
        return self in {Variant.V1, Variant.V2}


@dataclass(frozen=True, slots=True)
class Promise:
    """A replica's answer to a ballot, with the partition as it has it."""

    is_given: bool
    promised: Ballot
    accepted: Round
    committed: Round
    found: Partition


def prepare(node: Node, key: Key, ballot: Ballot, now_s: int) -> Promise:
    """Promise to accept no earlier ballot, unless it has seen one of that microsecond, or later.

    Two ballots of one microsecond would write cells with the same time: the larger value would win.
    """
    known = node.promises_of(key)
    latest = known.latest
    is_given = ballot.at_us > latest.at_us
    if is_given:
        known.promised = ballot
    found = node.read(key, now_s) if is_given else Partition()
    return Promise(is_given, max(latest, known.promised), known.accepted, known.committed, found)


def accept(node: Node, key: Key, proposed: Round) -> bool:
    """Accept a proposal, unless a later ballot was seen."""
    known = node.promises_of(key)
    latest = known.latest
    if proposed.ballot != latest and proposed.ballot.at_us <= latest.at_us:
        return False
    if proposed.ballot != known.committed.ballot:
        known.accepted = proposed
    return True


def commit(node: Node, key: Key, decided: Round) -> None:
    """Write what was decided."""
    known = node.promises_of(key)
    if decided.change is not None:
        node.apply(key, decided.change)
    if decided.ballot > known.committed.ballot:
        known.committed = decided
    if known.accepted.ballot <= decided.ballot:
        known.accepted = NO_ROUND


class Paxos:
    """Runs one light-weight transaction, or one serial read, of a partition."""

    def __init__(
        self,
        coordinator: Coordinator,
        key: Key,
        *,
        serial: int,
        commit_level: int,
        variant: Variant,
    ) -> None:
        self._coordinator = coordinator
        self._key = key
        self._serial = serial
        self._commit_level = commit_level
        self._variant = variant
        self._ends_s = asyncio.get_running_loop().time() + CAS_S
        self._floor_us = 0

    async def cas(
        self,
        columns: frozenset[str],
        decide: Callable[[Partition, int], Partition | None],
    ) -> tuple[bool, Partition]:
        """Read, decide, and write what was decided; return whether, and the row as it was read.

        Args:
            decide: Returns the change, given the partition and the write time; None: it is refused.

        Raises:
            Unavailable, ReadTimeout, WriteTimeout: Too few replicas are up, or answer: it may
                have happened, or may yet.
        """
        while True:
            ballot, found = await self._begin()
            if self._variant.is_v1:
                found = await self._coordinator.read(self._key, columns, self._quorum)
            change = decide(found, ballot.at_us)
            if change is None and not self._variant.proposes_nothing:
                self._note_seen(ballot)
                return False, found
            if await self._propose(Round(ballot, change), must_know=True):
                if change is not None:
                    await self._commit(Round(ballot, change))
                else:
                    self._note_seen(ballot)
                return change is not None, found
            await self._pause()

    async def finish_others(self) -> None:
        """Finish what was under way, as a serial read does before it reads."""
        while True:
            ballot, _ = await self._begin()
            if not self._variant.proposes_nothing or await self._propose(
                Round(ballot, None), must_know=True
            ):
                self._note_seen(ballot)
                return
            await self._pause()

    def _note_seen(self, ballot: Ballot) -> None:
        """Note that somebody was told how the row is: nothing earlier may happen to it any more."""
        looked = self._coordinator.ring.looked
        looked[self._key] = max(ballot, looked.get(self._key, NO_BALLOT))

    @property
    def _quorum(self) -> int:
        is_local = self._serial == ConsistencyLevel.LOCAL_SERIAL
        return int(ConsistencyLevel.LOCAL_QUORUM if is_local else ConsistencyLevel.QUORUM)

    async def _begin(self) -> tuple[Ballot, Partition]:
        """Get the promises of a quorum, and finish the round that they have accepted, if any.

        Returns:
            The ballot, and the partition as that quorum has it.
        """
        coordinator, key = self._coordinator, self._key
        needed = coordinator.needed(self._quorum)
        while True:
            self._check_time()
            via = coordinator.via
            ballot = Ballot(via.stamp(self._floor_us), via.number)
            nodes = coordinator.alive(self._quorum)
            ask = partial(prepare, key=key, ballot=ballot, now_s=via.now_s)
            promises = await coordinator.ask(nodes, ask, at_least(needed), WRITE_S)
            if len(promises) < needed:
                raise self._timeout(len(promises))
            if not all(one.is_given for one in promises.values()):
                coordinator.ring.seen["ballot refused"] += 1
                self._floor_us = max(one.promised.at_us for one in promises.values())
                await self._pause()
                continue
            latest = max((one.committed for one in promises.values()), key=_by_ballot)
            accepted = max((one.accepted for one in promises.values()), key=_by_ballot)
            if accepted.change is not None and accepted.ballot > latest.ballot:
                coordinator.ring.seen["another's round finished"] += 1
                # With a ballot below that look's, this proposal will be refused.
                if accepted.ballot < coordinator.ring.looked.get(key, NO_BALLOT) < ballot:
                    coordinator.ring.seen[TOO_LATE] += 1
                again = Round(ballot, accepted.change.written_at(ballot.at_us))
                if await self._propose(again, must_know=False):
                    await self._commit(again)
                else:
                    await self._pause()
                continue
            lacking = [
                node for node, one in promises.items() if one.committed.ballot < latest.ballot
            ]
            if lacking and latest.ballot != NO_BALLOT:
                for node in lacking:
                    coordinator.ring.carry(via, node, partial(commit, node, key, latest))
                continue
            found = Partition()
            for one in promises.values():
                found.merge(one.found)
            return ballot, found

    async def _propose(self, proposed: Round, *, must_know: bool) -> bool:
        """Let a quorum accept a proposal; return whether it did.

        Args:
            must_know: Whether it is an error if only some have accepted it.
        """
        coordinator, key = self._coordinator, self._key
        needed = coordinator.needed(self._quorum)
        nodes = coordinator.alive(self._quorum)

        def is_decided(there: dict[Node, bool]) -> bool:
            yes = sum(there.values())
            no = len(there) - yes
            if yes >= needed or no == len(nodes):
                return True
            # Others' rounds are proposed again; it does not matter what becomes of the attempt.
            return no > len(nodes) - needed if not must_know else bool(yes and no and is_v2)

        is_v2 = not self._variant.is_v1
        answers = await coordinator.ask(
            nodes, lambda node: accept(node, key, proposed), is_decided, WRITE_S
        )
        accepted = sum(answers.values())
        if accepted >= needed:
            return True
        # Whoever has not refused may have accepted it, and another's round may finish it
        # (``PaxosPropose.status``, ``StorageProxy.proposePaxos``).
        if must_know and len(answers) - accepted < len(nodes):
            raise self._timeout(accepted)
        return False

    async def _commit(self, decided: Round) -> None:
        coordinator, key = self._coordinator, self._key
        assert decided.change is not None  # noqa: S101 - an empty one is not committed
        level = self._commit_level
        if self._variant.is_v1:
            coordinator.alive(level)  # it may be "unavailable", although it was accepted
        stored = await coordinator.store(
            key, decided.change, level, lambda node: commit(node, key, decided)
        )
        if stored < coordinator.needed(level):
            raise self._timeout(stored)

    async def _pause(self) -> None:
        await asyncio.sleep(self._coordinator.ring.rng.random() * MOST_PAUSE_S)
        self._coordinator.check()

    def _check_time(self) -> None:
        if asyncio.get_running_loop().time() > self._ends_s:
            raise self._timeout(0)

    def _timeout(self, there: int) -> WriteTimeout:
        return WriteTimeout(
            "the simulated Paxos round did not end",
            write_type=WriteType.CAS,
            consistency=self._serial,
            required_responses=self._coordinator.needed(self._quorum),
            received_responses=there,
        )


def _by_ballot(one: Round) -> Ballot:
    return one.ballot
