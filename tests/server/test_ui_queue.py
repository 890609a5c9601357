"""The page of a queue: its buckets, its consumers, and its messages."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import unescape

import httpx
import pytest

import cassieq_spark as cassieq
from cassieq_spark.queue.find import open_lane
from cassieq_spark.queue.inspect.facts import Spot, page
from cassieq_spark.store import portal
from cassieq_spark.testing import wait_until
from tests.fixtures.ui import Visitor, problem_of, text_of

HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>{{ 7*7 }}\u202e\x00"


@pytest.fixture
def orders(client: cassieq.Client, name: str) -> Iterator[cassieq.Queue]:
    """Buckets of ten messages."""
    queue = client.create_queue(name, linger=0, visibility_timeout=60, bucket_size=10)
    yield queue
    queue.delete()


def cells(text: str) -> list[str]:
    """The titles of the squares."""
    return re.findall(r"<title>(bucket \d+: \w+)</title>", text)


def test_buckets_are_drawn_as_what_they_are_with_r_and_l(
    local: Visitor, orders: cassieq.Queue
) -> None:
    empty = text_of(local.get(f"/ui/queues/{orders.name}"))
    assert "0 live buckets" in empty
    assert "L is at bucket 0, which is not live yet" in empty

    for _ in range(4):
        orders.put_many([b"x"] * 10)
    orders.ack(orders.get(10))
    assert orders.get(10, consumer="ada")
    held = orders.get(10, consumer="bob")
    assert 10 == len(held)
    orders.ack(held[:4])
    orders.release(held[4:])

    shown = local.get(f"/ui/queues/{orders.name}")

    found = cells(shown.text)
    assert ["bucket 0: drained", "bucket 1: leased", "bucket 2: sealed"] == found[:3]
    assert "bucket 3: open" in found
    assert re.search(r'class="mark"[^>]*>L<', shown.text)
    stats = orders.stats()
    assert f"Visible {stats.visible} In flight 10 Delayed 0" in text_of(shown)
    assert "ada consumer 10 1" in text_of(shown)
    assert "bob" not in shown.text
    row = re.search(r"2 sealed \(sealed\) 10 0 6 0 0 0 4", text_of(shown))
    assert row is not None


def test_a_queue_is_paused_and_resumed(local: Visitor, orders: cassieq.Queue) -> None:
    path = f"/ui/queues/{orders.name}"
    assert "Paused" not in text_of(local.get(path))
    assert 303 == local.post(f"{path}/pause").status_code
    assert (0,) == orders.paused()
    shown = text_of(local.get(path))
    assert "Paused. No get returns these messages until the queue is resumed." in shown
    assert 303 == local.post(f"{path}/resume").status_code
    assert () == orders.paused()


def test_a_lease_that_ran_out_is_shown_as_such(local: Visitor, orders: cassieq.Queue) -> None:
    orders.put_many([b"x"] * 3)
    assert orders.get(3, consumer="slow", visibility_timeout=0.1)
    path = f"/ui/queues/{orders.name}"
    wait_until(lambda: ", expired" in local.get(path).text, deadline_s=20)
    assert re.search(r"slow consumer 0 0 \S 3", text_of(local.get(path)))


def test_each_lane_has_a_picture(local: Visitor, client: cassieq.Client, name: str) -> None:
    queue = client.create_queue(name, priorities=2, shards=2, linger=0)
    try:
        queue.put(b"low", key="a")
        queue.put(b"high", priority=1, key="a")
        shown = text_of(local.get(f"/ui/queues/{name}"))
        for lane in ("Priority 1, shard 0", "Priority 1, shard 1", "Priority 0, shard 0"):
            assert lane in shown
    finally:
        queue.delete()


def test_settings_and_labels_are_shown(local: Visitor, client: cassieq.Client, name: str) -> None:
    dead = client.create_queue(f"{name}-dead")
    queue = client.create_queue(
        name, dead_letter_queue=dead.name, max_deliveries=3, labels={"owner": HOSTILE[:-1]}
    )
    try:
        dead.put_many([b"letter"] * 3)
        shown = local.get(f"/ui/queues/{name}")
        assert "Dead, to move 0" in text_of(shown)
        assert f"Dead letters go to {dead.name} when repair runs, which holds 3 messages now." in (
            text_of(shown)
        )
        assert "max_deliveries 3" in text_of(shown)
        assert f'<a href="/ui/queues/{dead.name}">{dead.name}</a>' in shown.text
        assert "<script" not in shown.text
        assert "<img" not in shown.text
        assert "49" not in text_of(shown).partition("Labels")[2]
    finally:
        queue.delete()
        dead.delete()


def test_messages_are_shown_as_they_are_and_run_nothing(
    local: Visitor, orders: cassieq.Queue
) -> None:
    orders.put(HOSTILE.encode(), tag=HOSTILE, headers={HOSTILE: HOSTILE}, group="<b>'&")
    orders.put(b'{"a": "<b>"}')
    orders.put(b"\xff\xfe")
    held = orders.get(3, consumer=HOSTILE[:-2])
    on_queue = local.get(f"/ui/queues/{orders.name}")
    orders.release(held)

    path = f"/ui/queues/{orders.name}/messages"
    shown = local.get(path)

    for one in (shown, on_queue):
        assert 200 == one.status_code
        assert "<script" not in one.text
        assert "<img" not in one.text
        assert "\u202e" not in one.text
        assert "\x00" not in one.text
    assert "<script>alert(1)</script>" in unescape(on_queue.text)
    assert "<dt>group</dt><dd>&lt;b&gt;&#39;&amp;</dd>" in shown.text
    assert 1 == shown.text.count("<dt>group</dt>")
    bodies = [unescape(one) for one in re.findall(r"<pre[^>]*>(.*?)</pre>", shown.text, re.DOTALL)]
    expected = HOSTILE.replace("\u202e", "\\u{202e}").replace("\x00", "\\u{0}")
    assert [expected, '{\n  "a": "<b>"\n}', "00000000  ff fe" + 20 * " " + ".."] == [
        one.strip("\n") for one in bodies
    ]
    as_hex = local.get(path, params={"show": "hex"})
    assert "3c 73 63 72 69 70 74 3e" in as_hex.text
    assert 3 == orders.stats().visible


def test_all_messages_are_seen_once_page_by_page(local: Visitor, orders: cassieq.Queue) -> None:
    orders.put_many([b"%d" % number for number in range(45)])
    path = f"/ui/queues/{orders.name}/messages"
    seen: list[str] = []
    sizes = []
    while True:
        shown = local.get(path)
        found = re.findall(r"<summary><b>\d+</b> (\d+)</summary>", shown.text)
        seen += found
        sizes.append(len(found))
        link = re.search(r'href="([^"]*after=[^"]*)">Next messages', shown.text)
        if link is None:
            break
        path = unescape(link[1])
    assert [20, 20, 5] == sizes
    assert sorted(map(str, range(45))) == sorted(seen)


def test_pages_go_on_where_they_were_whatever_was_taken_meanwhile(
    client: cassieq.Client, name: str
) -> None:
    queue = client.create_queue(name, priorities=2, shards=2, linger=0, bucket_size=10)
    try:
        for priority in (0, 1):
            for key in ("a", "b", "c", "d"):
                queue.put_many([b"x"] * 7, priority=priority, key=key)
        queue.release(queue.get(9))
        lane = portal.run(open_lane(client.store, queue._lane.queue))
        first = portal.run(page(lane, 11))
        assert 11 == len(first)
        assert {1} == {one.priority for one in first}
        queue.ack(queue.get(11))
        seen = {(one.lane, one.id) for one in first}
        after = Spot(first[-1].lane, first[-1].id)
        count = 0
        while found := portal.run(page(lane, 4, after=after)):
            spots = [(one.lane, one.id) for one in found]
            assert seen.isdisjoint(spots)
            seen |= set(spots)
            count += len(found)
            after = Spot(*spots[-1])
        left = {(one.lane, one.id) for one in queue.peek(100)}
        assert left <= seen
        assert len(left) == 56 - 11
        assert len(seen) <= 56
        assert count >= 56 - 11 - 11
    finally:
        queue.delete()


def test_wrong_places_and_queues_are_named(local: Visitor, orders: cassieq.Queue) -> None:
    path = f"/ui/queues/{orders.name}/messages"
    foreign = "00000000-0000-4000-8000-000000000000:1"
    cases = {
        "/ui/queues/nothing-here": (404, "queue_not_found"),
        "/ui/queues/nothing-here/messages": (404, "queue_not_found"),
        "/ui/queues/a%20b": (400, "option_invalid"),
        f"{path}?after=x": (400, "option_invalid"),
        f"{path}?after={foreign}": (400, "option_invalid"),
        f"{path}?after={foreign}{'1' * 30}": (400, "option_invalid"),
        f"{path}?show=html": (400, "option_invalid"),
    }
    for wrong, expected in cases.items():
        assert expected == problem_of(local.get(wrong)), wrong


def test_the_last_hour_is_what_passed_through_this_gateway(
    local: Visitor, rest: httpx.Client, orders: cassieq.Queue
) -> None:
    path = f"/ui/queues/{orders.name}"
    orders.put_many([b"x"] * 7)  # not through it
    for _ in range(3):
        assert 201 == rest.post(f"/queues/{orders.name}/messages", content=b"x").status_code
    assert 200 == rest.post(f"/queues/{orders.name}/messages/next?max_messages=2").status_code
    wait_until(lambda: "got: 2 messages" in text_of(local.get(path)), deadline_s=90)
    shown = local.get(path)
    assert "put: 3 messages" in text_of(shown)
    assert "acked: 0 messages" in text_of(shown)
    assert "at most" in text_of(shown)
    assert 'class="chart"' in shown.text
