"""Any sequence of calls of two clients, some LWTs lost, against a plain dict.

Time is turned in steps of a thousand seconds, and everything ends 300 s before or after one: how
long an example really takes does not matter.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

import cassieq_spark as cassieq
from cassieq_spark.entropy import new_uuid
from cassieq_spark.errors import QueueDeleted, ReceiptExpired, ReceiptInvalid
from cassieq_spark.store.statements import Kind, every_statement
from tests.engine.queue_reference import Expected, Place, Reference
from tests.fixtures.faults import Fault
from tests.fixtures.queues import Door, door_of
from tests.fixtures.transports import intercept

if TYPE_CHECKING:
    from cassieq_spark.queue.message import Delivery
    from tests.fixtures.places import Places

STEP_S = 1_000
SOON_S, LATER_S = 300, 2_300
ENDS = st.sampled_from([SOON_S, LATER_S])
LOSABLE = sorted(
    statement.name
    for statement in every_statement()
    if statement.kind is Kind.CAS or statement.name == "write_message"
)
EXAMPLES, STEPS = 25, 30


@pytest.fixture
def clients(places: Places) -> list[cassieq.Client]:
    return [places.connect(), places.connect()]


@pytest.mark.invariant("I1")
@pytest.mark.invariant("I2")
@pytest.mark.invariant("I3")
@pytest.mark.invariant("I4")
@pytest.mark.invariant("I6")
def test_two_clients_do_what_a_dict_does(clients: list[cassieq.Client]) -> None:
    run_state_machine_as_test(
        lambda: TwoClients(clients),
        settings=settings(max_examples=EXAMPLES, stateful_step_count=STEPS, deadline=None),
    )


class TwoClients(RuleBasedStateMachine):
    """One queue and its dead-letter queue, two doors."""

    def __init__(self, clients: list[cassieq.Client]) -> None:
        super().__init__()
        self._clients = clients
        self._name = f"machine.{new_uuid().hex}"
        self._doors: list[Door] = []
        self._bodies = 0
        self._got: list[Delivery] = []
        self._lives = 0

    @initialize(
        max_deliveries=st.sampled_from([None, 1, 2]), size=st.sampled_from([3, 40, 100_000])
    )
    def create(self, max_deliveries: int | None, size: int) -> None:
        for one in self._clients:
            one._store.clock = one._session.clock
            intercept(one._session, None)
        dead = f"{self._name}.dead"
        self._clients[0].create_queue(dead)
        self._settings = {"bucket_size": size, "visibility_timeout": SOON_S}
        if max_deliveries is not None:
            self._settings |= {"max_deliveries": max_deliveries, "dead_letter_queue": dead}
        self._doors = [door_of(one, self._name, **self._settings) for one in self._clients]
        self._dead_letters = self._clients[0].queue(dead)
        self._reference = Reference(max_deliveries)

    @rule(who=st.integers(0, 1), many=st.integers(1, 7), delay_s=st.sampled_from([0, 0, SOON_S]))
    def put(self, who: int, many: int, delay_s: int) -> None:
        bodies = [b"%d" % (self._bodies + number) for number in range(many)]
        self._bodies += many
        words = {"tag": "t", "headers": {"k": "v"}} if many % 2 else {}
        ids = self._doors[who].queue.put_many(bodies, delay=delay_s, **words)  # type: ignore[arg-type]
        due_s = self._reference.now_s + delay_s if delay_s else 0
        for message_id, body in zip(ids, bodies, strict=True):
            tag, headers = ("t", {"k": "v"}) if words else (None, {})
            self._reference.put(message_id, Expected(body, tag, headers, due_s=due_s))

    @rule(who=st.integers(0, 1), at_most=st.integers(1, 9), visibility_s=ENDS)
    def get(self, who: int, at_most: int, visibility_s: int) -> None:
        found = self._doors[who].queue.get(at_most, visibility_timeout=visibility_s)
        self._reference.got(found, at_most=at_most, visibility_s=visibility_s)
        self._got += found

    @precondition(lambda self: self._got)
    @rule(data=st.data(), who=st.integers(0, 1))
    def ack(self, data: st.DataObject, who: int) -> None:
        some = self._some(data)
        verdicts = self._doors[who].queue.ack_each(some)
        for held, verdict in zip(some, verdicts, strict=True):
            self._reference.acked(held, verdict)

    @precondition(lambda self: self._got)
    @rule(data=st.data(), who=st.integers(0, 1), visibility_s=ENDS)
    def extend(self, data: st.DataObject, who: int, visibility_s: int) -> None:
        some = self._some(data)
        refused: tuple[str, ...] = ()
        try:
            self._doors[who].queue.extend(some, visibility_s)
        except ReceiptExpired as error:
            refused = error.refused
        for held in some:
            self._reference.extended(
                held,
                was_done=held.receipt not in refused,
                until_s=self._reference.now_s + visibility_s,
            )

    @precondition(lambda self: self._got)
    @rule(data=st.data(), who=st.integers(0, 1), delay_s=st.sampled_from([0, SOON_S]))
    def release(self, data: st.DataObject, who: int, delay_s: int) -> None:
        some = self._some(data)
        refused: tuple[str, ...] = ()
        try:
            self._doors[who].queue.release(some, delay=delay_s)
        except ReceiptExpired as error:
            refused = error.refused
        for held in some:
            self._reference.given_back(held, was_done=held.receipt not in refused, delay_s=delay_s)

    @precondition(lambda self: self._got and self._reference.max_deliveries is not None)
    @rule(data=st.data(), who=st.integers(0, 1), is_alone=st.booleans())
    def reject(self, data: st.DataObject, who: int, is_alone: bool) -> None:
        """With a reason of their own, as long as it may be, or with the usual one."""
        some = self._some(data)
        self._bodies += 1
        reason = str(self._bodies).ljust(200, "x") if is_alone else "rejected"
        refused: tuple[str, ...] = ()
        try:
            self._doors[who].queue.reject(some, reason=reason)
        except ReceiptExpired as error:
            refused = error.refused
        for held in some:
            again = self._reference.messages[held.message_id].place is Place.REJECTED
            if not again:
                was_done = held.receipt not in refused and self._reference.holds(held)
                self._reference.rejected(held, was_done=was_done)

    @precondition(lambda self: self._got)
    @rule(data=st.data(), who=st.integers(0, 1), has_body=st.booleans())
    def update(self, data: st.DataObject, who: int, has_body: bool) -> None:
        held = data.draw(st.sampled_from(self._got))
        self._bodies += 1
        body = b"new %d" % self._bodies if has_body else None
        new = None
        with suppress(ReceiptExpired):
            new = self._doors[who].queue.update(held, body=body)
        self._reference.updated(held, new, body=body)
        if new is not None:
            self._got.append(new)

    @rule(who=st.integers(0, 1), name=st.sampled_from(LOSABLE), fault=st.sampled_from(Fault))
    def an_answer_will_be_lost(self, who: int, name: str, fault: Fault) -> None:
        if fault is not Fault.REFUSE:
            self._doors[who].faults.plan(name, fault)

    @rule()
    def late_statements_land(self) -> None:
        for door in self._doors:
            door.faults.land()

    @rule()
    def time_passes(self) -> None:
        self._reference.now_s += STEP_S
        for door in self._doors:
            door.clock.advance(STEP_S)

    @rule(who=st.integers(0, 1))
    def repair(self, who: int) -> None:
        report = self._clients[who].repair(self._name)
        assert [] == report.problems
        self._reference.repaired()

    @rule(who=st.integers(0, 1), at_most=st.integers(1, 9))
    def peek(self, who: int, at_most: int) -> None:
        seen = {one.message_id for one in self._doors[who].queue.peek(at_most)}
        there = {
            message_id
            for message_id, one in self._reference.messages.items()
            if self._reference.is_dying(one)
        } | self._reference.visible()
        assert set() == seen - there
        assert len(seen) >= min(at_most, len(self._reference.visible()))

    @precondition(lambda self: len(self._reference.messages) > 10)
    @rule(who=st.integers(0, 1))
    def purge(self, who: int) -> None:
        self._reference.purged(self._doors[who].queue.purge())

    @precondition(lambda self: self._got and self._lives < 2)
    @rule(who=st.integers(0, 1))
    def delete_and_create_again(self, who: int) -> None:
        """Nothing of the former life is in the new one; what was moved from it stays moved."""
        self._lives += 1
        self._check_dead_letters()
        self._doors[who].queue.delete()
        with pytest.raises(QueueDeleted):
            self._doors[1 - who].queue.put(b"too late")
        for door in self._doors:
            door.queue = door.client.create_queue(self._name, **self._settings)
        with pytest.raises(ReceiptInvalid):
            self._doors[who].queue.ack(self._got[0])
        self._got.clear()
        self._reference.messages.clear()
        assert [] == self._doors[who].queue.get()

    @rule(who=st.integers(0, 1))
    def drain(self, who: int) -> None:
        """Everything is delivered that is not over, and nothing else."""
        for _ in range(4):
            self.time_passes()
        while found := self._doors[who].queue.get(100, visibility_timeout=LATER_S):
            self._reference.got(found, at_most=100, visibility_s=LATER_S)
            self._doors[who].queue.ack(found)
            for held in found:
                self._reference.acked(held, cassieq.AckResult.ACKED)
        assert set() == self._reference.visible()
        self.repair(who)
        self._check_dead_letters()
        assert (0, 0, 0) == self._reference.numbers()
        assert [] == self._clients[who].verify(self._name).findings

    @invariant()
    def it_counts_as_the_dict_does(self) -> None:
        if self._doors:
            stats = self._doors[0].queue.stats()
            assert self._reference.numbers() == (
                *(stats.visible + stats.dead, stats.in_flight, stats.delayed),
            )

    def teardown(self) -> None:
        for one in self._clients:
            intercept(one._session, None)

    def _some(self, data: st.DataObject) -> list[Delivery]:
        numbers = st.sets(st.integers(0, len(self._got) - 1), min_size=1, max_size=5)
        return [self._got[number] for number in sorted(data.draw(numbers))]

    def _check_dead_letters(self) -> None:
        """Each is there once, with its history."""
        found = []
        while some := self._dead_letters.get(100):
            self._dead_letters.ack(some)
            found += some
        assert self._reference.moved() == sorted(
            (one.message_id, one.body, int(one.headers["cassieq-deliveries"])) for one in found
        )
        for message_id, _, _ in self._reference.moved():
            self._reference.messages[message_id].place = Place.DONE
