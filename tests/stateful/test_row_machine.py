"""Any sequence of large moves of one bucket of any size: its row stays below its limit (ADR 19).

Beside `test_bucket_machine`, which knows each message of a small bucket, this one makes moves of
thousands at a time, and begins with rows at the worst that programs can make of them.
"""

from __future__ import annotations

import itertools
import random
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from uuid import UUID

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from cassieq_spark.model import bucket as moves
from cassieq_spark.model import lease as rules
from cassieq_spark.model import redrive, settlement
from cassieq_spark.model.bucket import Bucket, Lease, Returned, SinkRef, Status
from cassieq_spark.model.dead import may_close, may_redrive, movable
from cassieq_spark.model.expiry import Delayed
from cassieq_spark.model.ids import EMPTY, BucketNo, QueueName, Runs, union
from cassieq_spark.model.integrity import broken
from cassieq_spark.model.lease import Terms
from cassieq_spark.model.row_limits import BYTES_PER_MESSAGE, limit_of
from cassieq_spark.model.settlement import Update
from cassieq_spark.store.tables import claims

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

SECOND_US = 1_000_000
DAY_US = 86_400 * SECOND_US
START_US = 1_700_000_000 * SECOND_US
LARGEST = 100_000
NOWHERE, FREE, HELD, DEAD = range(4)
SIZES = st.sampled_from([1, 2, 100, 1_000, 1_000, 3_000, 50_000, LARGEST])
FROM_NOW_S = st.sampled_from([1, 30, 3_600, 86_400, 30 * 86_400])
NAME = "n".ljust(200, "é")
"""As long as a name or a reason may be, in two bytes a character."""

Ids = "Callable[[], UUID]"


# --- rows at their worst: what the API makes of a bucket, one message at a time -------------------


def _one_by_one(size: int, new_id: Any, *, updated: bool) -> Bucket:
    """Each message is in a lease of its own, of a Spark run of its own."""
    noise = random.Random(size)  # noqa: S311 - repeatable
    return _sealed(
        size,
        leases=tuple(
            Lease(
                lease_id=UUID(int=noise.getrandbits(128)),
                owner="(others)",
                run=new_id(),
                delivery_count=(1 << 31) - 1,
                runs=Runs.span(at, at),
                until_us=START_US + noise.randrange(30 * DAY_US),
            )
            for at in range(size)
        ),
        revisions=_revisions(size) if updated else (),
    )


def _counts(size: int, _: Any) -> Bucket:
    """Each message came back after a number of deliveries that no other has."""
    return _sealed(
        size,
        returned=tuple(
            Returned(deliveries=(1 << 30) + at, runs=Runs.span(at, at)) for at in range(size)
        ),
        revisions=_revisions(size),
    )


def _waiting(size: int, _: Any) -> Bucket:
    """As before, each with a delay of its own."""
    noise = random.Random(size)  # noqa: S311 - repeatable
    groups = (
        Delayed(
            due_us=START_US + noise.randrange(30 * DAY_US),
            runs=Runs.span(at, at),
            deliveries=(1 << 30) + at,
        )
        for at in range(size)
    )
    return _sealed(
        size,
        delayed=tuple(sorted(groups, key=lambda group: group.due_us)),
        revisions=_revisions(size),
    )


def _every_second(size: int, _: Any) -> Bucket:
    """Half of it is acked, the rest with three holders by turns, and every part is in pieces."""
    thirds = [Runs(tuple((at, at) for at in range(start, size, 8))) for start in (0, 2, 4)]
    return _sealed(
        size,
        fresh=Runs(tuple((at, at) for at in range(6, size, 8))),
        leases=tuple(
            Lease(
                lease_id=UUID(int=number + 1),
                owner=NAME,
                run=None,
                delivery_count=1,
                runs=runs,
                until_us=START_US + SECOND_US,
            )
            for number, runs in enumerate(thirds)
            if runs
        ),
    )


WORST = {
    "held one by one": lambda size, new_id: _one_by_one(size, new_id, updated=False),
    "updated one by one": lambda size, new_id: _one_by_one(size, new_id, updated=True),
    "all delivery counts": _counts,
    "all delays and counts": _waiting,
    "every second acked": _every_second,
}


def _sealed(size: int, **parts: Any) -> Bucket:
    row = Bucket(
        status=Status.SEALED, changed_us=START_US, manifest=Runs.span(0, size - 1), **parts
    )
    return replace(row, manifest=Runs.span(0, size - 1))


def _revisions(size: int) -> tuple[tuple[int, int], ...]:
    return tuple((at, (1 << 62) + at) for at in range(size))


@pytest.mark.parametrize("size", [1, 1_000, LARGEST])
@pytest.mark.parametrize("shape", WORST)
def test_t2_the_worst_of_rows_is_below_its_limit(shape: str, size: int) -> None:
    """By the codec that writes it. The limit is no guess: the worst of them needs most of it."""
    numbers = itertools.count(1 << 64)
    row = WORST[shape](size, lambda: UUID(int=next(numbers)))
    assert _size_of(row) <= limit_of(size) <= 10 * 1024 * 1024
    assert (row,) == tuple(_read_again([row]))
    if (shape, size) == ("updated one by one", LARGEST):
        assert 0.75 * LARGEST * BYTES_PER_MESSAGE < _size_of(row)


# --- the machine ----------------------------------------------------------------------------------


class OneRow(RuleBasedStateMachine):
    """The reference: where each message is, under which lease, delivered how often."""

    def __init__(self) -> None:
        super().__init__()
        numbers = itertools.count(1 << 64)
        self.new_id = lambda: UUID(int=next(numbers))
        self.now_us = START_US
        self.row = moves.sealing(now_us=START_US)

    @initialize(
        size=SIZES, is_bulk=st.booleans(), holes=st.integers(1, 3), seed=st.integers(0, 99),
        delayed=st.sampled_from([0, 0, 1, 50]), shape=st.sampled_from([None, None, *WORST]),
    )  # fmt: skip
    def fill(  # noqa: PLR0917 - drawn by name
        self, size: int, is_bulk: bool, holes: int, seed: int, delayed: int, shape: str | None
    ) -> None:
        """Sealed by a reader, or written in bulk; or a row that has been through a lot."""
        self.size = size
        self.random = random.Random(seed)  # noqa: S311 - repeatable
        if shape is not None:
            self.row = WORST[shape](min(size, 1_000), self.new_id)
        else:
            manifest = Runs.from_offsets(range(0, size, holes))
            self.row = self._filled(manifest, delayed, is_bulk=is_bulk)
        self.manifest = self.row.manifest
        self.at, self.count, self.lease = _places(self.row, size)
        self.over: set[UUID] = set()

    @rule(
        many=st.sampled_from([1, 1, 10, 2_500, LARGEST]), times=st.sampled_from([1, 1, 40]),
        for_s=FROM_NOW_S, limit=st.sampled_from([None, None, 3]), is_spark=st.booleans(),
    )  # fmt: skip
    def claim(self, many: int, times: int, for_s: int, limit: int | None, is_spark: bool) -> None:
        for _ in range(times):
            terms = Terms(
                at_most=many,
                owner=f"{self.random.randrange(500)}{NAME}"[:200],
                run=self.new_id() if is_spark else None,
                now_us=self.now_us,
                until_us=self.now_us + for_s * SECOND_US,
                max_deliveries=limit,
            )
            before = self._visible()
            self.row, leases = rules.claim(self.row, terms, self.new_id)
            if limit is not None:
                dying = before & (self.count >= limit)
                self.at[dying] = DEAD
                before &= ~dying
            taken = union(lease.runs for lease in leases)
            assert taken.count == sum(lease.runs.count for lease in leases)
            assert before[_offsets(taken)].all()
            assert bool(taken) == bool(before.any())
            for lease in leases:
                where = _offsets(lease.runs)
                self.at[where], self.lease[where] = HELD, _number(lease.lease_id)
                self.count[where] += 1
                assert (self.count[where] == lease.delivery_count).all()
            # What ran out and was not taken is its holder's, unless the claim has merged it [R20].
            left = np.flatnonzero(before & (self.at == HELD) & ~_mask(taken, self.size))
            now = _places(self.row, self.size)[0][left] if len(left) else left
            assert ((now == FREE) | (now == HELD)).all()
            self.at[left] = now

    @precondition(lambda self: self.row.leases)
    @rule(part=st.sampled_from([1, 2, 3, 50]), many=st.sampled_from([1, 20, LARGEST]))
    def ack(self, part: int, many: int) -> None:
        held = self._some_held(part, many)
        self.row = rules.ack(self.row, held, now_us=self.now_us)
        self.at[_all(held)] = NOWHERE

    @precondition(lambda self: self.row.leases and self.row.status is Status.SEALED)
    @rule(part=st.sampled_from([1, 2, 50]), many=st.sampled_from([1, 30]), for_s=FROM_NOW_S)
    def extend(self, part: int, many: int, for_s: int) -> None:
        for lease_id, runs in self._some_held(part, many).items():
            ends = self.now_us + self.random.randrange(for_s * SECOND_US)
            self.row = rules.extend(self.row, {lease_id: runs}, until_us=ends, now_us=self.now_us)

    @precondition(lambda self: self.row.leases and self.row.status is Status.SEALED)
    @rule(
        part=st.sampled_from([1, 2, 50]), many=st.sampled_from([1, 30]),
        for_s=FROM_NOW_S, is_late=st.booleans(), count_delivery=st.booleans(),
    )  # fmt: skip
    def release(
        self, part: int, many: int, for_s: int, is_late: bool, count_delivery: bool
    ) -> None:
        """Each lease with a delay of its own."""
        for lease_id, runs in self._some_held(part, many).items():
            due = self.now_us + self.random.randrange(for_s * SECOND_US) if is_late else None
            self.row = rules.release(
                self.row,
                {lease_id: runs},
                now_us=self.now_us,
                due_us=due,
                count_delivery=count_delivery,
            )
            where = _offsets(runs)
            self.at[where] = FREE
            self.count[where] -= 0 if count_delivery else 1

    @precondition(lambda self: self.row.leases and self.row.status is Status.SEALED)
    @rule(part=st.sampled_from([2, 50]), times=st.sampled_from([1, 40]), has_time=st.booleans())
    def update(self, part: int, times: int, has_time: bool) -> None:
        """One by one, each with a new lease id."""
        held = self._some_held(part, 1)
        for lease_id, runs in held.items():
            for offset in itertools.islice(runs.offsets(), times):
                new_id = self.new_id()
                self.row = settlement.revise(
                    self.row,
                    lease_id,
                    offset,
                    Update(
                        revision=self.random.getrandbits(63),
                        new_lease_id=new_id,
                        visibility_us=self.random.randrange(DAY_US) if has_time else None,
                    ),
                    now_us=self.now_us,
                )
                self.lease[offset] = _number(new_id)

    @precondition(lambda self: self.row.leases and self.row.status is Status.SEALED)
    @rule(part=st.sampled_from([1, 2]), many=st.sampled_from([1, 30]), is_own=st.booleans())
    def reject(self, part: int, many: int, is_own: bool) -> None:
        """Each with a reason of its own, as long as it may be."""
        for lease_id, runs in self._some_held(part, many).items():
            reason = f"{self.random.random()}{NAME}"[:200] if is_own else "no such order"
            closed = movable(self.row.dead)
            held = {settlement.Reject(reason=reason): {lease_id: runs}}
            self.row = settlement.carry_out(self.row, held, self.new_id, now_us=self.now_us)
            assert closed == movable(self.row.dead)
            self.at[_offsets(runs)] = DEAD

    @precondition(lambda self: self.row.status is Status.SEALED)
    @rule(part=st.sampled_from([1, 3, 50]), queues=st.integers(1, 20))
    def send_on(self, part: int, queues: int) -> None:
        """As `repair.redrive` does: not while too many wait."""
        visible = np.flatnonzero(self._visible())[::part]
        names = [QueueName(f"{number}{NAME}"[:200]) for number in range(queues)]
        chosen = {
            name: Runs.from_offsets(visible[number::queues].tolist())
            for number, name in enumerate(names)
        }
        after, sets = redrive.send_on(self.row, chosen, self.new_id, now_us=self.now_us)
        if sets and may_redrive(self.row.dead, len(sets)):
            self.row = after
            self.at[_offsets(union(part.runs for part in sets))] = DEAD

    @precondition(lambda self: may_close(self.row.dead))
    @rule()
    def close_the_dead(self) -> None:
        self.row = moves.with_closed_sets(self.row, now_us=self.now_us)

    @precondition(lambda self: movable(self.row.dead))
    @rule(data=st.data())
    def move_the_dead(self, data: st.DataObject) -> None:
        dead = data.draw(st.sampled_from(movable(self.row.dead)))
        set_id = dead[0].set_id
        assert set_id not in self.over
        self.over.add(set_id)
        self.row = moves.without_dead(self.row, set_id, now_us=self.now_us)
        self.at[_offsets(union(part.runs for part in dead))] = NOWHERE

    @rule(seconds=FROM_NOW_S)
    def time_passes(self, seconds: int) -> None:
        self.now_us += seconds * SECOND_US

    @invariant()
    def the_row_is_below_its_limit_and_can_be_read(self) -> None:
        if self.row.manifest:
            assert _size_of(self.row) <= limit_of(self.size)
            assert [self.row] == _read_again([self.row])

    @invariant()
    def every_message_is_in_its_place_and_no_other(self) -> None:
        if self.row.manifest:
            assert self.manifest == self.row.manifest
            assert [] == list(broken(self.row))
            at, count, lease = _places(self.row, self.size)
            assert np.array_equal(self.at, at)
            there = at != NOWHERE
            assert np.array_equal(self.count[there], count[there])
            assert np.array_equal(self.lease[at == HELD], lease[at == HELD])

    @invariant()
    def what_is_visible_can_be_claimed(self) -> None:
        terms = Terms(at_most=1, owner="x", run=None, now_us=self.now_us, until_us=self.now_us)
        visible = self.row.status is Status.SEALED and bool(self._visible().any())
        assert visible == bool(rules.claimable(self.row, now_us=self.now_us))
        assert visible == bool(rules.claim(self.row, terms, self.new_id)[1])

    @invariant()
    def each_delivery_can_be_acked_and_it_alone(self) -> None:
        if self.row.leases:
            one = self.random.choice(self.row.leases)
            offset = self.random.choice(one.runs.pairs)[0]
            acked = {one.lease_id: Runs.span(offset, offset)}
            after = rules.ack(self.row, acked, now_us=self.now_us)
            assert Runs.span(offset, offset) == self.row.unacked - after.unacked

    def _filled(self, manifest: Runs, delayed: int, *, is_bulk: bool) -> Bucket:
        due = {
            at: START_US + self.random.randrange(30 * DAY_US)
            for at in manifest.offsets()
            if delayed and not at % delayed
        }
        parts = {"manifest": manifest, "due_us": due, "size_bytes": 1, "now_us": START_US}
        if not is_bulk:
            return moves.sealed(moves.sealing(now_us=START_US), **parts)  # type: ignore[arg-type]
        sink = SinkRef(sink_id="s", epoch=1, block_end=BucketNo(1))
        row = moves.prepared(moves.writing(sink, now_us=START_US), **parts)  # type: ignore[arg-type]
        return moves.published(row, now_us=START_US)

    def _visible(self) -> NDArray[np.bool_]:
        """What nobody holds and no delay keeps, by the row's own times."""
        if self.row.status is not Status.SEALED:
            return np.zeros(self.size, np.bool_)
        visible = self.at == FREE
        for group in self.row.delayed:
            if group.due_us > self.now_us:
                visible[_offsets(group.runs)] = False
        for lease in self.row.leases:
            if rules.is_expired(lease, self.now_us):
                visible[_offsets(lease.runs)] = True
        return visible

    def _some_held(self, part: int, many: int) -> dict[UUID, Runs]:
        """Every so manieth message of up to so many leases."""
        ids = list({lease.lease_id for lease in self.row.leases})
        ids.sort(key=lambda one: one.int)
        some = set(self.random.sample(ids, min(many, len(ids))))
        held: dict[UUID, list[Runs]] = {}
        for lease in self.row.leases:
            if lease.lease_id in some:
                held.setdefault(lease.lease_id, []).append(lease.runs)
        return {
            lease_id: Runs.from_offsets(itertools.islice(union(runs).offsets(), 0, None, part))
            for lease_id, runs in held.items()
        }


def _size_of(row: Bucket) -> int:
    return len(row.manifest.encode()) + len(claims.encode(row))


def _read_again(rows: Iterable[Bucket]) -> list[Bucket]:
    """As they are when they were written and read."""
    empty = {"fresh": EMPTY, "purged": EMPTY}
    empty |= dict.fromkeys(("returned", "delayed", "leases", "dead", "revisions"), ())  # type: ignore[arg-type]
    return [replace(row, **{**empty, **claims.decode(claims.encode(row))}) for row in rows]


def _places(
    row: Bucket, size: int
) -> tuple[NDArray[np.int8], NDArray[np.int64], NDArray[np.uint64]]:
    """(place, deliveries, lease) of each message; the counts of places must add up."""
    at = np.zeros(size, np.int8)
    count = np.zeros(size, np.int64)
    lease = np.zeros(size, np.uint64)
    parts = [(FREE, 0, 0, row.fresh)]
    parts += [(FREE, part.deliveries, 0, part.runs) for part in row.returned]
    parts += [(FREE, part.deliveries, 0, part.runs) for part in row.delayed]
    parts += [(HELD, one.delivery_count, _number(one.lease_id), one.runs) for one in row.leases]
    parts += [(DEAD, part.deliveries, 0, part.runs) for part in row.dead]
    for place, deliveries, number, runs in parts:
        where = _offsets(runs)
        assert not at[where].any()
        at[where], count[where], lease[where] = place, deliveries, number
    return at, count, lease


def _number(lease_id: UUID) -> int:
    return lease_id.int % (1 << 63)


def _offsets(runs: Runs) -> NDArray[np.int64]:
    if len(runs.pairs) == 1:
        return np.arange(runs.pairs[0][0], runs.pairs[0][1] + 1)
    return np.fromiter(runs.offsets(), np.int64, runs.count)


def _mask(runs: Runs, size: int) -> NDArray[np.bool_]:
    mask = np.zeros(size, np.bool_)
    mask[_offsets(runs)] = True
    return mask


def _all(held: dict[UUID, Runs]) -> NDArray[np.int64]:
    return _offsets(union(held.values()))


TestOneRow = OneRow.TestCase
TestOneRow.settings = settings(
    max_examples=30,
    stateful_step_count=20,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
TestOneRow.pytestmark = [
    pytest.mark.timeout(1_200),  # 100,000 leases take a second to build, and a second to change
    *(pytest.mark.invariant(name) for name in ("I2", "I3", "I4", "I10")),
]
