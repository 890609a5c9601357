"""A group id stays with its message, wherever it goes, and beside programs of the last release."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest

import cassieq_spark as cassieq
from cassieq_spark.errors import OptionInvalid
from cassieq_spark.model import group
from cassieq_spark.queue import message as messages
from tests.fixtures.cassandra import KEYSPACE
from tests.fixtures.commands import CommandLine
from tests.fixtures.released import released

if TYPE_CHECKING:
    from cassieq_spark import Delivery, Message
    from cassieq_spark.testing import EmbeddedCassandra
    from tests.fixtures.released import Released

__all__ = ["released"]

HEADERS = {"h": "1"}


@pytest.fixture
def dead(client: cassieq.Client, queue_name: str) -> cassieq.Queue:
    return client.create_queue(f"{queue_name}.dead", linger=0)


@pytest.fixture
def queue(client: cassieq.Client, queue_name: str, dead: cassieq.Queue) -> cassieq.Queue:
    return client.create_queue(
        queue_name, linger=0, visibility_timeout=600, dead_letter_queue=dead.name
    )


def by_body(found: list[Message]) -> dict[bytes, tuple[str | None, dict[str, str]]]:
    return {one.body: (one.group, dict(one.headers)) for one in found}


def test_it_comes_back_by_itself_and_is_no_header(queue: cassieq.Queue) -> None:
    queue.put(b"one", group="a", headers=HEADERS)
    queue.put_many([b"two", b"three"], group="b")
    queue.put_many([b"four", b"five"], group=["c", None], headers=[None, HEADERS])
    expected = {
        b"one": ("a", HEADERS),
        b"two": ("b", {}),
        b"three": ("b", {}),
        b"four": ("c", {}),
        b"five": (None, HEADERS),
    }

    assert expected == by_body(queue.peek())
    assert expected == by_body(queue.get(10))


def test_it_changes_neither_order_nor_who_gets_what(queue: cassieq.Queue) -> None:
    queue.put_many([b"%d" % at for at in range(6)], group=["a", "a", "b", "a", "b", "b"])

    (first,) = queue.get(1)
    others = queue.get(10)

    assert b"0" == first.body
    assert [b"%d" % at for at in range(1, 6)] == [one.body for one in others]
    queue.ack(others[1:])
    queue.release([first, others[0]])
    assert {(b"0", "a"), (b"1", "a")} == {(one.body, one.group) for one in queue.get(10)}


def test_messages_without_one_are_not_looked_through(
    queue: cassieq.Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One look at a chunk says that none of its messages has a group."""
    monkeypatch.setattr(messages.groups, "split", None)
    queue.put_many([b"x"] * 3, headers=HEADERS)
    assert [(None, HEADERS)] * 3 == [(one.group, one.headers) for one in queue.get(3)]


@pytest.mark.parametrize("bad", ["", "x" * 129, "two words", "é"])
def test_a_wrong_one_is_refused_before_anything_is_put(queue: cassieq.Queue, bad: str) -> None:
    with pytest.raises(OptionInvalid, match=r"group is .*, allowed: 1 to 128 letters"):
        queue.put(b"x", group=bad)
    with pytest.raises(OptionInvalid, match=r"group\[1\] is .*, allowed: 1 to 128 letters"):
        queue.put_many([b"x", b"y"], group=["a", bad])
    with pytest.raises(OptionInvalid, match="header 'cassieq-group' is how a queue stores"):
        queue.put(b"x", headers={group.HEADER: "a"})
    assert [] == queue.peek()


def test_it_stays_through_death_update_and_redrive(
    client: cassieq.Client, queue: cassieq.Queue, dead: cassieq.Queue
) -> None:
    queue.put_many([b"a", b"b", b"c"], group=["of-a", "of-b", None], headers=HEADERS)
    found = {one.body: one for one in queue.get(3)}
    updated = queue.update(found[b"a"], body=b"a2")
    assert ("of-a", HEADERS) == (updated.group, updated.headers)
    queue.reject([updated, found[b"b"], found[b"c"]], reason="bad")
    client.repair(queue.name)

    letters = {one.body: one for one in dead.peek()}
    assert {b"a2": "of-a", b"b": "of-b", b"c": None} == {
        body: one.group for body, one in letters.items()
    }
    assert not [one for one in letters.values() if group.HEADER in one.headers]
    assert {"1"} == {one.headers["h"] for one in letters.values()}

    assert 2 == client.redrive(dead.name, where=lambda one: one.group is not None).moved
    assert {b"a2": "of-a", b"b": "of-b"} == {one.body: one.group for one in queue.peek()}
    # And once more: what was redriven dies again.
    queue.reject(queue.get(2), reason="worse")
    client.repair(queue.name)
    assert {b"a2": "of-a", b"b": "of-b", b"c": None} == {one.body: one.group for one in dead.peek()}


def test_coroutines_have_it_too(cassandra: EmbeddedCassandra, queue: cassieq.Queue) -> None:
    async def work() -> list[Delivery]:
        async with cassieq.connect_async(cassandra.contact_points, keyspace=KEYSPACE) as own:
            opened = await own.queue(queue.name)
            await opened.put(b"one", group="a")
            await opened.put_many([b"two", b"three"], group=["b", None])
            with pytest.raises(OptionInvalid, match="group is"):
                await opened.put(b"four", group="not this one")
            return await opened.get(10)

    assert {b"one": ("a", {}), b"two": ("b", {}), b"three": (None, {})} == by_body(
        asyncio.run(work())
    )


def test_commands_put_show_and_choose_by_it(
    cassandra: EmbeddedCassandra, client: cassieq.Client, queue: cassieq.Queue, dead: cassieq.Queue
) -> None:
    cassieq_ = CommandLine(cassandra.contact_points)
    assert 0 == cassieq_("put", queue.name, "one", "--group", "customer-7").code
    assert 0 == cassieq_("put", queue.name, "two").code
    wrong = cassieq_("put", queue.name, "three", "--group", "two words")
    assert (2, True) == (wrong.code, "--group is 'two words', allowed: 1 to 128" in wrong.err)

    shown = cassieq_("peek", queue.name, "--json").objects
    assert {"one": "customer-7", "two": None} == {one["body"]: one["group"] for one in shown}
    got = cassieq_("get", queue.name, "--max-messages", "5", "--json").objects
    assert {"one": "customer-7", "two": None} == {one["body"]: one["group"] for one in got}
    queue.reject([one["receipt"] for one in got])
    client.repair(queue.name)
    where = ("--where", "group=customer-7", "--json")
    (letter,) = cassieq_("dead", "show", dead.name, *where).objects
    assert ("one", "customer-7") == (letter["body"], letter["group"])
    assert 0 == cassieq_("dead", "redrive", dead.name, *where, "--yes").code
    assert [("customer-7", b"one")] == [(one.group, one.body) for one in queue.peek()]
    assert [b"two"] == [one.body for one in dead.peek()]


# --- beside the last release ----------------------------------------------------------------------

HAS = """
import json, sys
import cassieq_spark as cassieq
name = "cassieq-group"
with cassieq.connect(sys.argv[1], keyspace=sys.argv[2]) as client:
    queue, dead = client.queue(sys.argv[3]), client.queue(sys.argv[3] + ".dead")
"""
SEES = (
    HAS
    + """
    found = queue.get(10)
    print(json.dumps({one.body.decode(): dict(one.headers) for one in found}))
    queue.put_many([b"copy-" + one.body for one in found], headers=[one.headers for one in found])
    queue.put(b"old", headers={"h": "2"})
    queue.reject(found, reason="bad")
    client.repair(queue.name)
"""
)
REDRIVES = (
    HAS
    + """
    print(json.dumps([client.redrive(dead.name).moved, len(queue.peek())]))
"""
)


def test_programs_of_the_last_release_see_it_as_a_header_and_keep_it(
    released: Released,
    cassandra: EmbeddedCassandra,
    client: cassieq.Client,
    queue: cassieq.Queue,
    dead: cassieq.Queue,
) -> None:
    def says(code: str) -> Any:
        return json.loads(
            released.says(code, cassandra.contact_points, KEYSPACE, queue.name).splitlines()[-1]
        )

    queue.put_many([b"new", b"plain"], group=["g", None], headers=HEADERS)

    assert {"new": {"h": "1", group.HEADER: "g"}, "plain": {"h": "1"}} == says(SEES)
    assert {
        b"copy-new": ("g", HEADERS),
        b"copy-plain": (None, HEADERS),
        b"old": (None, {"h": "2"}),
    } == by_body(queue.peek())
    assert {b"new": "g", b"plain": None} == {one.body: one.group for one in dead.peek()}
    queue.ack(queue.get(10))
    assert [2, 2] == says(REDRIVES)
    assert {b"new": "g", b"plain": None} == {one.body: one.group for one in queue.peek()}
    # This release moves what the last one has rejected, and the other way round.
    queue.reject(queue.get(10), reason="again")
    client.repair(queue.name)
    assert {b"new": "g", b"plain": None} == {one.body: one.group for one in dead.peek()}


def test_a_group_that_no_producer_may_give_now_is_given_back_all_the_same(
    released: Released, cassandra: EmbeddedCassandra, queue: cassieq.Queue
) -> None:
    odd = "two words, and é"
    code = HAS + f"\n    queue.put(b'x', headers={{name: {odd!r}}})\n"
    released.says(code, cassandra.contact_points, KEYSPACE, queue.name)
    (found,) = queue.get()
    assert (odd, {}) == (found.group, found.headers)
