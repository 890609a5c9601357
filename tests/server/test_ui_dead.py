"""The page: dead letters, redrives, purges and deletions, which ask first; and repair's turns."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from html import unescape

import pytest

import cassieq_spark as cassieq
from cassieq_spark.model.rights import Right
from cassieq_spark.testing import wait_until
from tests.fixtures.accounts import Account, all_but, pair
from tests.fixtures.ui import Visitor, problem_of, text_of
from tests.server.conftest import Gateway

HOSTILE = "<script>alert(1)</script>\u202e"


class Place:
    """A queue with a dead-letter queue of two lanes, in which letters are."""

    def __init__(self, client: cassieq.Client, name: str) -> None:
        self.client = client
        self.dead = client.create_queue(f"{name}-dead", priorities=2, linger=0)
        self.orders = client.create_queue(
            name, priorities=2, linger=0, dead_letter_queue=self.dead.name, max_deliveries=5
        )
        self.path = f"/ui/queues/{self.dead.name}"

    def bury(
        self,
        count: int,
        *,
        reason: str = "bad",
        tag: str | None = None,
        group: str | None = None,
    ) -> None:
        for number in range(count):
            self.orders.put(b"letter %d" % number, tag=tag, group=group, priority=number % 2)
        left = count
        while left:
            held = self.orders.get(left, wait=10)
            self.orders.reject(held, reason=reason)
            left -= len(held)
        before = self.dead.stats().visible
        self.client.repair(self.orders.name)
        assert before + count == self.dead.stats().visible

    def close(self) -> None:
        for queue in (self.orders, self.dead):
            if queue.name in [one.name for one in self.client.queues()]:
                queue.delete()


@pytest.fixture
def place(client: cassieq.Client, name: str) -> Iterator[Place]:
    made = Place(client, name)
    yield made
    made.close()


def spots(text: str) -> list[str]:
    return re.findall(r'name="spot" value="([^"]+)"', text)


def test_letters_are_shown_with_their_history_and_filtered(local: Visitor, place: Place) -> None:
    place.bury(3, reason="bad")
    place.bury(2, reason="worse", tag="blue", group="of&me")
    path = f"{place.path}/dead-letters"

    shown = local.get(path)
    assert 2 == shown.text.count("<dt>group</dt><dd>of&amp;me</dd>")
    assert 5 == len(spots(shown.text))
    assert f"from {place.orders.name} letter 0" in text_of(shown)
    assert f"source queue {place.orders.name}" in text_of(shown)
    assert "reason worse" in text_of(shown)

    for query, expected in {
        "reason=worse": 2,
        "reason=bad&tag=blue": 0,
        "tag=blue": 2,
        "group=of%26me": 2,
        "group=of": 0,
        f"source={place.orders.name}": 5,
        "source=elsewhere": 0,
        "died_before=2020-01-01": 0,
        "died_after=2020-01-01T00:00&reason=bad": 3,
    }.items():
        assert expected == len(spots(local.get(f"{path}?{query}").text)), query
    assert (400, "option_invalid") == problem_of(local.get(f"{path}?died_before=soon"))


def test_letters_come_page_by_page(local: Visitor, place: Place) -> None:
    place.bury(23)
    path = f"{place.path}/dead-letters"
    first = local.get(f"{path}?reason=bad")
    link = re.search(r'href="([^"]*after=[^"]*)">Next letters', first.text)
    assert link is not None
    second = local.get(unescape(link[1]))
    found = spots(first.text) + spots(second.text)
    assert (20, 23, 23) == (len(spots(first.text)), len(found), len(set(found)))
    assert "Next letters" not in second.text


def test_the_chosen_ones_are_sent_back_after_a_look_at_how_many(
    local: Visitor, place: Place
) -> None:
    place.bury(4)
    shown = local.get(f"{place.path}/dead-letters")
    chosen = spots(shown.text)[1:3]

    asked = local.post(f"{place.path}/redrive", {"spot": chosen})

    assert "Send 2 messages back?" in text_of(asked)
    assert f"to {place.orders.name} 2 messages" in text_of(asked)
    assert chosen == spots(asked.text)
    assert 4 == place.dead.stats().visible

    done = local.post(f"{place.path}/redrive", {"spot": chosen, "sure": "true"})

    assert "2 messages sent back" in text_of(done)
    assert 2 == place.dead.stats().visible
    back = place.orders.get(10, wait=5)
    assert 2 == len(back)
    left = spots(local.get(f"{place.path}/dead-letters").text)
    assert set(left).isdisjoint(chosen)
    again = local.post(f"{place.path}/redrive", {"spot": chosen, "sure": "true"})
    assert "2 messages gone by now" in text_of(again)


def test_all_that_match_are_sent_back(local: Visitor, place: Place) -> None:
    place.bury(2, reason="bad")
    place.bury(3, reason="worse")
    path = f"{place.path}/redrive"
    local.get(f"{place.path}/dead-letters?reason=worse")
    asked = local.post(path, {"all": "true", "reason": "worse"})
    assert "Send 3 messages back?" in text_of(asked)
    assert 5 == place.dead.stats().visible
    done = local.post(path, {"all": "true", "reason": "worse", "sure": "true"})
    assert "3 messages sent back" in text_of(done)
    assert 2 == place.dead.stats().visible


def test_a_live_queue_has_nothing_to_send_back(local: Visitor, place: Place) -> None:
    place.orders.put(b"alive")
    path = f"/ui/queues/{place.orders.name}"
    shown = local.get(f"{path}/dead-letters")
    assert "No queue names" in text_of(shown)
    assert [] == spots(shown.text)
    refused = local.post(f"{path}/redrive", {"all": "true", "sure": "true"})
    assert (400, "option_invalid") == problem_of(refused)
    assert 1 == place.orders.stats().visible


def test_wrong_choices_are_named_and_do_nothing(local: Visitor, place: Place) -> None:
    place.bury(1)
    path = f"{place.path}/redrive"
    foreign = "00000000-0000-4000-8000-000000000000:1"
    for fields in ({}, {"spot": ["x"]}, {"spot": [foreign]}, {"spot": [foreign] * 21}):
        local.get(f"{place.path}/dead-letters")
        refused = local.post(path, {**fields, "sure": "true"})
        assert (400, "option_invalid") == problem_of(refused), fields
    assert 1 == place.dead.stats().visible


def test_a_history_that_a_producer_made_up_is_shown_as_text(local: Visitor, place: Place) -> None:
    histories = (
        f'[{{"reason": "{HOSTILE}", "{HOSTILE}": 1, "source-queue": "acme/x"}}]',
        "[" * 50_000,
        '{"a": 1}',
        "[1, null, [2]]",
        "no json",
        '[{"n": ' + "1" * 5_000 + "}]",
    )
    for history in histories:
        place.dead.put(
            b"x", headers={"cassieq-history": history, "cassieq-source-queue": "acme/secret"}
        )
    shown = local.get(f"{place.path}/dead-letters")
    assert 200 == shown.status_code
    assert len(histories) == len(spots(shown.text))
    assert "<script" not in shown.text
    assert "\u202e" not in shown.text
    assert "from a queue of another account" in text_of(shown)
    assert "secret" not in text_of(shown)


@pytest.mark.parametrize("what", ["purge", "delete"])
def test_what_destroys_asks_with_the_count_and_wants_the_name(
    local: Visitor, place: Place, what: str
) -> None:
    place.orders.put_many([b"x"] * 7)
    assert place.orders.get(2)
    place.orders.put(b"later", delay=600)
    path = f"/ui/queues/{place.orders.name}/{what}"

    asked = local.get(path)
    assert "8 messages would be lost: 5 visible, 2 in flight, 1 delayed, 0 dead" in text_of(asked)
    for name in ("", "other", f"{place.orders.name} "):
        refused = local.post(path, {"name": name})
        assert 400 == refused.status_code, name
        assert "Nothing was done" in text_of(refused)
    stats = place.orders.stats()
    assert (5, 2, 1) == (stats.visible, stats.in_flight, stats.delayed)

    done = local.post(path, {"name": place.orders.name})

    assert 303 == done.status_code
    after = local.get(done.headers["location"])
    assert 200 == after.status_code
    if what == "purge":
        assert "8 messages dropped" in text_of(after)
        assert 0 == place.orders.stats().visible
    else:
        assert "/ui/" == done.headers["location"]
        assert place.orders.name not in [one.name for one in place.client.queues()]
        assert (404, "queue_not_found") == problem_of(local.get(path))


def test_a_dead_letter_queue_that_another_needs_is_deleted_when_somebody_insists(
    local: Visitor, place: Place
) -> None:
    path = f"/ui/queues/{place.dead.name}/delete"
    name = {"name": place.dead.name}
    assert "although other queues need it" not in local.get(path).text

    refused = local.post(path, name)

    assert 400 == refused.status_code
    assert "Other queues send their dead messages to this queue" in text_of(refused)
    assert "Delete it although other queues need it" in text_of(refused)
    assert 303 == local.post(path, {**name, "force": "yes"}).status_code
    assert place.dead.name not in [one.name for one in place.client.queues()]


def test_nothing_that_asks_is_shown_to_whom_may_not(
    guarded: Gateway, account: Account, client: cassieq.Client
) -> None:
    queue = client.create_queue(f"{account.name}/orders", linger=0)
    queue.put(b"x")
    path = "/ui/queues/orders"
    with Visitor(guarded.url) as one:
        one.log_in(pair(account.new_key(*all_but(Right.PURGE))))
        shown = one.get(path)
        assert "Purge" not in shown.text
        assert "Dead letters in here" in shown.text
        one.get("/ui/login")
        refused = one.post(f"{path}/delete", {"name": "orders"})
        assert (403, "access_denied") == problem_of(refused)
    with Visitor(guarded.url) as one:
        one.log_in(pair(account.new_key(*all_but(Right.REDRIVE))))
        assert "Send" not in one.get(f"{path}/dead-letters").text
    with Visitor(guarded.url) as one:
        one.log_in(pair(account.new_key(*all_but(Right.READ))))
        shown = one.get(path)
        assert "Look at messages" not in shown.text
        assert "Purge" in shown.text
    assert 1 == queue.stats().visible


def test_repairs_turns_are_shown_of_queues_that_one_may_see(
    start: Callable[..., Gateway],
    master_key_file: object,
    account: Account,
    new_account: Callable[[], Account],
    client: cassieq.Client,
) -> None:
    theirs = new_account()
    for name, queue in ((account.name, "mine"), (theirs.name, "hidden-one")):
        dead = client.create_queue(f"{name}/{queue}-dead", linger=0)
        live = client.create_queue(
            f"{name}/{queue}", dead_letter_queue=dead.name, max_deliveries=2, linger=0
        )
        live.put(b"x")
        live.reject(live.get(1, wait=5), reason="bad")
    started = start("--auth", "--master-key-file", str(master_key_file))
    started.wait_until_ready()
    with Visitor(started.url) as one:
        one.log_in(account.key)
        assert "every 30 s" in text_of(one.get("/ui/repair"))
        wait_until(lambda: "mine moved dead 1" in text_of(one.get("/ui/repair")), deadline_s=90)
        assert "hidden-one" not in one.get("/ui/repair").text


def test_a_gateway_that_does_not_repair_says_so(local: Visitor) -> None:
    assert "does not repair" in text_of(local.get("/ui/repair"))
