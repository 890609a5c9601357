"""Any sequence of moves of one bucket, against a plain dict: every message in exactly one place."""

from __future__ import annotations

import itertools
from uuid import UUID

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from cassieq_spark.model import bucket as moves
from cassieq_spark.model import lease as rules
from cassieq_spark.model import settlement
from cassieq_spark.model.bucket import Bucket, Lease, Status
from cassieq_spark.model.dead import may_close, movable
from cassieq_spark.model.ids import Runs, union
from cassieq_spark.model.lease import EXPIRY_MARGIN_US, Terms
from cassieq_spark.model.settlement import Update

SIZE = 24
SECOND_US = 1_000_000
START_US = 1_700_000_000 * SECOND_US
MAX_DELIVERIES = 3
FREE, HELD, ACKED, DEAD = "free", "held", "acked", "dead"


class OneBucket(RuleBasedStateMachine):
    """The reference: where each message is, how often it went out, and under which lease."""

    def __init__(self) -> None:
        super().__init__()
        numbers = itertools.count(1)
        self.new_id = lambda: UUID(int=next(numbers))
        self.now_us = START_US
        self.row = moves.sealing(now_us=START_US)
        self.place: dict[int, str] = {}
        self.deliveries: dict[int, int] = {}
        self.due_us: dict[int, int] = {}
        self.lease_of: dict[int, UUID] = {}
        self.until_us: dict[int, int] = {}
        self.revision: dict[int, int] = {}
        self.issued: list[Lease] = []

    @initialize(
        manifest=st.sets(st.integers(0, SIZE - 1), min_size=1),
        delays=st.dictionaries(st.integers(0, SIZE - 1), st.integers(1, 90), max_size=5),
    )
    def seal(self, manifest: set[int], delays: dict[int, int]) -> None:
        due = {at: START_US + s * SECOND_US for at, s in delays.items() if at in manifest}
        self.row = moves.sealed(
            self.row,
            manifest=Runs.from_offsets(manifest),
            due_us=due,
            size_bytes=1,
            now_us=START_US,
        )
        self.manifest = self.row.manifest
        self.place = dict.fromkeys(manifest, FREE)
        self.deliveries = dict.fromkeys(manifest, 0)
        self.due_us = due

    @rule(at_most=st.integers(1, SIZE), visibility_s=st.integers(1, 60), dies=st.booleans())
    def claim(self, at_most: int, visibility_s: int, dies: bool) -> None:
        terms = Terms(
            at_most=at_most,
            owner="o",
            run=None,
            now_us=self.now_us,
            until_us=self.now_us + visibility_s * SECOND_US,
            max_deliveries=MAX_DELIVERIES if dies else None,
        )
        limit = terms.max_deliveries
        promised = rules.claimable(self.row, now_us=self.now_us, max_deliveries=limit)
        visible = {at for at in self.place if self._is_visible(at)}
        dying = {at for at in visible if limit is not None and self.deliveries[at] >= limit}
        assert bool(dying) == rules.is_dying(self.row, now_us=self.now_us, max_deliveries=limit)
        before = self.row
        self.row, leases = rules.claim(self.row, terms, self.new_id)
        if before.status is not Status.SEALED:
            assert (before, ()) == (self.row, leases)
            return
        came_back = {at: self.until_us[at] for at in visible if self.place[at] == HELD}
        for at in dying:
            self.place[at] = DEAD
        visible -= dying
        assert promised == len(visible)
        taken = [at for lease in leases for at in lease.runs.offsets()]
        assert min(at_most, len(visible)) == len(taken)
        assert visible.issuperset(taken)
        # Of what ran out, and did not die of it, nothing waits behind what ran out later.
        assert all(
            came_back[first] <= came_back[later]
            for first in came_back.keys() & set(taken)
            for later in (came_back.keys() & visible) - set(taken)
        )
        for lease in leases:
            for at in lease.runs.offsets():
                self.deliveries[at] += 1
                assert self.deliveries[at] == lease.delivery_count
                self.place[at] = HELD
                self.lease_of[at] = lease.lease_id
                self.until_us[at] = lease.until_us
        self.issued += leases

    @precondition(lambda self: self.issued)
    @rule(data=st.data(), whole=st.booleans())
    def ack(self, data: st.DataObject, whole: bool) -> None:
        """Of any lease that ever was: one that ended touches nothing."""
        lease = data.draw(st.sampled_from(self.issued))
        some = data.draw(st.sets(st.sampled_from(sorted(lease.runs.offsets()))))
        acked = set(lease.runs.offsets()) if whole else some
        self.row = rules.ack(
            self.row,
            {lease.lease_id: None if whole else Runs.from_offsets(some)},
            now_us=self.now_us,
        )
        for at in acked:
            if self._is_under(at, lease):
                self.place[at] = ACKED
                self.revision.pop(at, None)

    @precondition(lambda self: self.issued)
    @rule(data=st.data(), visibility_s=st.integers(0, 60))
    def extend(self, data: st.DataObject, visibility_s: int) -> None:
        lease, runs = self._some_of_a_lease(data)
        until_us = self.now_us + visibility_s * SECOND_US
        self.row = rules.extend(
            self.row, {lease.lease_id: runs}, until_us=until_us, now_us=self.now_us
        )
        for at in (lease.runs if runs is None else runs).offsets():
            if self._is_under(at, lease):
                self.until_us[at] = until_us

    @precondition(lambda self: self.issued and self.row.status is Status.SEALED)
    @rule(data=st.data(), count_delivery=st.booleans(), delay_s=st.integers(0, 60))
    def release(self, data: st.DataObject, count_delivery: bool, delay_s: int) -> None:
        lease, runs = self._some_of_a_lease(data)
        due_us = self.now_us + delay_s * SECOND_US
        self.row = rules.release(
            self.row,
            {lease.lease_id: runs},
            now_us=self.now_us,
            due_us=due_us,
            count_delivery=count_delivery,
        )
        for at in (lease.runs if runs is None else runs).offsets():
            if self._is_under(at, lease):
                self._free(at)
                self.due_us[at] = due_us
                self.deliveries[at] -= 0 if count_delivery else 1

    @precondition(lambda self: self.issued)
    @rule(data=st.data())
    def reject(self, data: st.DataObject) -> None:
        """Rejected by who holds it; a closed set takes none in [R14]."""
        lease, runs = self._some_of_a_lease(data)
        asked = lease.runs if runs is None else runs
        before = movable(self.row.dead)
        self.row = settlement.reject(
            self.row, {lease.lease_id: asked}, self.new_id, reason="r", now_us=self.now_us
        )
        assert before == movable(self.row.dead)
        for at in asked.offsets():
            if self._is_under(at, lease):
                self.place[at] = DEAD

    @precondition(lambda self: self.issued)
    @rule(data=st.data(), has_body=st.booleans(), has_time=st.booleans())
    def revise(self, data: st.DataObject, has_body: bool, has_time: bool) -> None:
        lease = data.draw(st.sampled_from(self.issued))
        at = data.draw(st.sampled_from(sorted(lease.runs.offsets())))
        new_id = self.new_id()
        self.row = settlement.revise(
            self.row,
            lease.lease_id,
            at,
            Update(
                revision=new_id.int if has_body and self._is_under(at, lease) else None,
                new_lease_id=new_id,
                visibility_us=SECOND_US if has_time else None,
            ),
            now_us=self.now_us,
        )
        if self._is_under(at, lease):
            self.lease_of[at] = new_id
            one = next(one for one in self.row.leases if one.lease_id == new_id)
            assert (self.deliveries[at], Runs.span(at, at)) == (one.delivery_count, one.runs)
            self.issued.append(one)
            if has_body:
                self.revision[at] = new_id.int
            if has_time:
                self.until_us[at] = self.now_us + SECOND_US

    @precondition(lambda self: may_close(self.row.dead))
    @rule()
    def close_the_dead(self) -> None:
        self.row = moves.with_closed_sets(self.row, now_us=self.now_us)

    @precondition(lambda self: movable(self.row.dead))
    @rule(data=st.data())
    def move_the_dead(self, data: st.DataObject) -> None:
        dead = data.draw(st.sampled_from(movable(self.row.dead)))
        self.row = moves.without_dead(self.row, dead[0].set_id, now_us=self.now_us)
        for at in union(part.runs for part in dead).offsets():
            self.place[at] = ACKED
            self.revision.pop(at, None)

    @rule(seconds=st.integers(1, 120))
    def time_passes(self, seconds: int) -> None:
        self.now_us += seconds * SECOND_US

    @invariant()
    def every_message_is_in_exactly_one_place(self) -> None:
        parts = _parts(self.row)
        everywhere = [at for runs in parts.values() for run in runs for at in run.offsets()]
        assert sorted(everywhere) == sorted(set(everywhere))
        for place in (FREE, HELD, DEAD):
            expected = {at for at, where in self.place.items() if where == place}
            assert expected == {at for run in parts[place] for at in run.offsets()}

    @invariant()
    def revisions_are_those_of_what_is_not_over(self) -> None:
        assert self.revision == dict(self.row.revisions)

    @invariant()
    def no_message_has_two_leases_and_acked_ones_have_none(self) -> None:
        held = [at for lease in self.row.leases for at in lease.runs.offsets()]
        assert len(held) == len(set(held))
        assert not [at for at in held if self.place[at] == ACKED]

    @invariant()
    def the_manifest_stays_and_drained_means_nothing_is_left(self) -> None:
        if self.place:
            assert self.manifest == self.row.manifest
            is_over = all(where == ACKED for where in self.place.values())
            assert (Status.DRAINED if is_over else Status.SEALED) is self.row.status

    def _is_visible(self, at: int) -> bool:
        if self.place[at] == HELD:
            return self.now_us > self.until_us[at] + EXPIRY_MARGIN_US
        due_us = -(-self.due_us.get(at, 0) // SECOND_US) * SECOND_US
        return self.place[at] == FREE and due_us <= self.now_us

    def _some_of_a_lease(self, data: st.DataObject) -> tuple[Lease, Runs | None]:
        lease = data.draw(st.sampled_from(self.issued))
        some = data.draw(
            st.none() | st.sets(st.sampled_from(sorted(lease.runs.offsets())), min_size=1)
        )
        return lease, None if some is None else Runs.from_offsets(some)

    def _is_under(self, at: int, lease: Lease) -> bool:
        return self.place[at] == HELD and self.lease_of[at] == lease.lease_id

    def _free(self, at: int) -> None:
        self.place[at] = FREE
        self.lease_of.pop(at, None)


def _parts(row: Bucket) -> dict[str, list[Runs]]:
    return {
        FREE: [
            row.fresh,
            *(part.runs for part in row.returned),
            *(group.runs for group in row.delayed),
        ],
        HELD: [lease.runs for lease in row.leases],
        DEAD: [part.runs for part in row.dead],
    }


TestOneBucket = OneBucket.TestCase
TestOneBucket.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestOneBucket.pytestmark = [pytest.mark.invariant("I2"), pytest.mark.invariant("I4")]
