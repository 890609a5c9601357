"""Repair gets SIGKILL before each of its writes, over a queue with all there is to heal; another
repair ends what it began, and no message is lost, doubled, or back from the dead."""

from __future__ import annotations

import signal
from collections import Counter
from typing import TYPE_CHECKING

import pytest

import cassieq_spark as cassieq
from cassieq_spark.entropy import generator, new_uuid
from cassieq_spark.queue.sink import transaction
from cassieq_spark.store import portal
from cassieq_spark.testing import ManualClock, wait_until
from tests.children.dying_repairer import BEGUN
from tests.fixtures.faults import FaultyStore
from tests.fixtures.queues import Crash, Door, crash, drain
from tests.fixtures.transports import driver_of, intercept

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from cassieq_spark.testing import EmbeddedCassandra
    from tests.fixtures.processes import ForkingZygote

LATER_S = 7_200.0
"""All leases and timeouts of a world are over by then."""

DRAWN = 4
"""Moments beside the first and the last of each kind of write."""

ENDS = {
    False: {"drop_messages", "advance_pointer", "delete_bucket", "delete_queue", "delete_sink"},
    True: {"insert_sink", "write_message", "update_sink", "update_bucket", "delete_sink"},
}
"""Some writes that a whole repair, and a whole redrive, cannot do without."""

DECIDED = {"open", "sealed", "drained", "void"}

BACK, DEAD, MARKED = ([b"%s-%d" % (name, n) for n in range(3)] for name in (b"b", b"d", b"m"))
EXPIRED, HALF, COMMITTED, ONCE = [b"e-0", b"e-1"], [b"half"], [b"c-0", b"c-1"], [b"once"]


class World:
    """Queues in which everything is half-way that can be.

    ``first`` has dead messages, some not yet marked so, drained buckets, and is the target of a
    redrive that was cut off; ``second`` a lease whose hint is lost, half a seal, a decided
    transaction that nobody rolled forward, an undecided one, one without an id that is over, and
    gaps; ``graves`` is their dead-letter queue; ``gone`` was being deleted.
    """

    def __init__(self, client: cassieq.Client, clock: ManualClock, name: str) -> None:
        self.client, self.clock = client, clock
        self.faults = FaultyStore()
        intercept(client._session, self.faults)
        graves = f"{name}.graves"
        self.graves = client.create_queue(graves, bucket_size=10)
        self.first, self.second = (
            client.create_queue(
                f"{name}.{which}", bucket_size=10, dead_letter_queue=graves, max_deliveries=2
            )
            for which in ("first", "second")
        )
        self.gone = f"{name}.gone"
        self._redrive_cut_off()
        self._dead_and_done()
        self._second()
        client.create_queue(self.gone, bucket_size=10).put(b"deleted")
        self._cut_off("delete_monoton", lambda: client.delete_queue(self.gone))

    def _cut_off(self, before: str, call: Callable[[], object]) -> None:
        self.faults.before(before, crash)
        with pytest.raises(Crash):
            call()

    def _dies(self, bodies: Sequence[bytes]) -> None:
        """Delivered as often as it may be, and not acked."""
        self.first.put_many(list(bodies))
        for _ in range(2):
            assert len(bodies) == len(self.first.get(100, visibility_timeout=5))
            self.clock.advance(6)

    def _redrive_cut_off(self) -> None:
        self._dies(BACK)
        assert [] == self.first.get()
        self.client.repair(self.first.name)
        self._cut_off("insert_sink", lambda: self.client.redrive(self.graves.name))

    def _dead_and_done(self) -> None:
        self.first.put_many([b"done"] * 25)
        while messages := self.first.get(100):
            self.first.ack(messages)
        self._dies(DEAD)
        assert [] == self.first.get()
        self._dies(MARKED)

    def _second(self) -> None:
        queue, door = self.second, Door(self.client, self.second, self.faults, self.clock)
        queue.put_many(EXPIRED)
        for one in queue.get(100, visibility_timeout=600):
            hour = int(one.visible_until.timestamp()) // 3_600
            driver_of(door.session).session.execute(
                f"DELETE FROM {door.session.keyspace}.expiry WHERE lane = %s AND hour = %s",  # noqa: S608
                (door.lane.lane_id, hour),
            )
        queue.put_many(HALF)
        self._cut_off("scan_messages", queue.get)
        who = door.identity()
        result = door.task(who, 0, *COMMITTED)
        self._cut_off("update_bucket", lambda: door.commit(who, 0, result))
        door.task(door.identity(sink_id=f"{queue.name}.silent"), 0, b"never", b"committed")
        once = portal.run(transaction.begin_once(door.lane, f"once:{queue.name}"))
        portal.run(transaction.commit_once(door.lane, once, [door.task_once(once, *ONCE)]))
        door.reserve(2)

    def is_healed(self, *, is_redriven: bool) -> None:
        """By some passes; each message is where it belongs, once, and nothing else is.

        What a redrive was to send back is at the one end or at the other.
        """
        queues = (self.first, self.second, self.graves)
        # Two, or some more: a killed mover's last sign of life stays for `repair_timeout` [T18].
        wait_until(self._are_moved, deadline_s=240)
        for queue in queues:
            assert [] == self.client.verify(queue.name).findings
            assert set(queue.stats().buckets) <= DECIDED
        first, second, graves = (Counter(one.body for one in drain(queue)) for queue in queues)
        self._repair()
        for queue in queues:
            assert set(queue.stats().buckets) <= {"open"}
            self.client.delete_queue(queue.name)
        with pytest.raises(cassieq.QueueNotFound):
            self.client.queue(self.gone)
        assert Counter(EXPIRED + HALF + COMMITTED + ONCE) == second
        assert Counter(BACK + DEAD + MARKED) == first + graves
        if not is_redriven:
            assert Counter(BACK) == first

    def _are_moved(self) -> bool:
        self._repair()
        self._repair()
        return all(one.stats().dead == 0 for one in (self.first, self.second, self.graves))

    def _repair(self) -> None:
        self.clock.advance(LATER_S)
        assert [] == self.client.repair().problems


def moments(writes: Sequence[str], seed: int) -> list[int]:
    """1: before the first write. The first and the last of each kind, and some that are drawn."""
    first = {name: at for at, name in reversed(list(enumerate(writes, 1)))}
    last = {name: at for at, name in enumerate(writes, 1)}
    drawn = generator(seed).sample(range(1, len(writes) + 1), DRAWN)
    return sorted({*first.values(), *last.values(), *drawn})


@pytest.fixture
def builder(cassandra: EmbeddedCassandra) -> Iterator[tuple[cassieq.Client, ManualClock]]:
    """In a keyspace of its own: a repair of all queues heals all there are."""
    keyspace = f"killed_{new_uuid().hex[:12]}"
    with cassieq.connect(cassandra.contact_points, keyspace=keyspace) as client:
        client.bootstrap()
        clock = ManualClock(client._store.clock)
        client._store.clock = clock
        yield client, clock


@pytest.mark.invariant("I1")
@pytest.mark.invariant("I7")
@pytest.mark.timeout(900)
@pytest.mark.parametrize("redrives", [False, True], ids=["repair", "redrive"])
def test_a_repair_or_a_redrive_killed_before_any_of_its_writes_is_ended_by_the_next_repair(
    builder: tuple[cassieq.Client, ManualClock],
    cassandra: EmbeddedCassandra,
    zygote: ForkingZygote,
    seed: int,
    *,
    redrives: bool,
) -> None:
    client, clock = builder

    def killed(name: str, at: int) -> tuple[int, list[str]]:
        world = World(client, clock, name)
        if redrives:
            clock.advance(LATER_S)
            client.repair()
        child = zygote.fork(
            "dying_repairer",
            contact_points=cassandra.contact_points,
            keyspace=client._session.keyspace,
            ahead_s=clock._ahead_us / 1e6 + LATER_S,
            redrives=world.graves.name if redrives else None,
            at=at,
        )
        code = child.wait()
        world.is_healed(is_redriven=redrives)
        begun = [line for line in child.lines if line.startswith(BEGUN)]
        return code, [line.removeprefix(BEGUN) for line in begun]

    code, writes = killed("whole", 0)
    assert 0 == code, writes
    assert ENDS[redrives] <= set(writes), writes
    for at in moments(writes, seed):
        code, begun = killed(f"at.{at}", at)
        assert (-signal.SIGKILL, at) == (code, len(begun)), begun
