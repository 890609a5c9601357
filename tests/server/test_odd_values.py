"""What one door stores, every other shows, delivers and moves; and a door that fails keeps none."""

from __future__ import annotations

import asyncio
import base64
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from html import unescape
from typing import Any
from urllib.parse import quote, unquote, urlsplit

import httpx
import pytest

import cassieq_spark as cassieq
from cassieq_spark import Message
from cassieq_spark.server.app import Gateway as App
from cassieq_spark.server.rest import messages as rest_messages
from cassieq_spark.server.settings import GatewaySettings
from cassieq_spark.server.sqs import bodies
from cassieq_spark.store import chunk
from cassieq_spark.testing import EmbeddedCassandra, wait_until
from tests.fixtures.cassandra import KEYSPACE
from tests.fixtures.commands import CommandLine
from tests.fixtures.rows import as_an_older_sink
from tests.fixtures.ui import Visitor, text_of
from tests.server.conftest import Gateway
from tests.server.test_rest_messages import RAW, lease
from tests.server.test_sqs_own import form, texts

TEXTS = (
    "",
    " ",
    "a\0b",
    "\x1b[2J\x07",
    "a\r\nb\rc\n",
    "\N{RIGHT-TO-LEFT OVERRIDE}gnp.exe",
    "<b>&amp;'\"",
    "%00%zz+",
    "\N{SNAKE}",
    "\uffff\ufffe",
    "base64:AA==",
    "x" * 4_000,
)

DEEP = "[" * 50_000
HEADERS: tuple[dict[str, str], ...] = (
    {"": "a name that is empty"},
    {"N": "1", "n": "2", "\N{LATIN SMALL LETTER E WITH ACUTE}": "3", "a b:c": "4"},
    {"cassieq-history": DEEP},
    {"cassieq-history": '[1, null, {"source-queue": [], "\\ud800": "\\ud800"}]'},
    {"cassieq-source-queue": "\0", "cassieq-reason": "\0", "cassieq-last-time": "soon"},
    {"cassieq-deliveries": "\N{SUPERSCRIPT TWO}", "cassieq-priority": "9" * 19},
    {"sqs.type.x": "Binary", "x": "no base64", "sqs.type.y": "\0", "y": "a\0"},
    {"sqs.AWSTraceHeader": "\0", "traceparent": "\0", "cassieq-body-encoding": "base64"},
)
"""Beside those that have each text as tag, and in a header's name and value."""

OWN = ("cassieq-reason", "cassieq-source-", "cassieq-history", "cassieq-deliveries", "cassieq-f")
MOVED = (*OWN, "cassieq-last-time", "cassieq-priority")


@dataclass(frozen=True, kw_only=True)
class Odd:
    """A message as every door has it."""

    body: bytes
    tag: str | None = None
    headers: dict[str, str] = field(default_factory=dict)


ODD = (
    Odd(body=b"\xff\0\xfe"),
    *(Odd(body=b"t" + one.encode(), tag=one, headers={f"n{one}": one}) for one in TEXTS),
    *(Odd(body=b"h%d" % at, headers=one) for at, one in enumerate(HEADERS)),
)
COUNT = len(ODD) + 1
OLDER = Odd(body=b"older", tag="\ufffd", headers={"none": "", "\ufffd": "\ufffd"})
"""What `as_an_older_sink` stores, as it can be shown."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """A queue with all odd messages, its dead-letter queue, and the doors."""

    queue: cassieq.Queue
    dead: cassieq.Queue
    client: cassieq.Client
    gateway: Gateway
    rest: httpx.Client
    cli: CommandLine

    def looks(self, name: str, *, gone: Sequence[str] = ()) -> None:
        """All doors show them, and they stay."""
        rest, cli = self.rest, self.cli
        check(of_python(self.client.queue(name).peek(COUNT + 1)), gone=gone)
        for path in ("messages", "dead-letters"):
            answer = rest.get(f"/queues/{name}/{path}", params={"max_messages": 100})
            check(of_json(answer.json()["messages"]), gone=gone)
        check(of_json(cli("peek", name, "--max-messages", "100", "--json").objects), gone=gone)
        check(
            of_json(cli("dead", "show", name, "--max-messages", "99", "--json").objects), gone=gone
        )
        assert COUNT == len(cli("peek", name, "--max-messages", "100").lines)
        assert COUNT + 1 == len(cli("dead", "show", name, "--max-messages", "99").lines)
        assert COUNT == sum(one["messages"] for one in cli("dead", "list", name, "--json").objects)
        with Visitor(self.gateway.url) as page:
            for path in ("messages", "dead-letters"):
                assert COUNT == len(pages(page, f"/ui/queues/{name}/{path}"))


def pages(visitor: Visitor, path: str) -> list[str]:
    """What is folded on a page and those that follow it, one for each message."""
    found, at = [], path
    while at:
        shown = visitor.get(at)
        assert 200 == shown.status_code, text_of(shown)
        found += re.findall(r"<details>", shown.text)
        link = re.search(r'href="([^"]*after=[^"]*)">Next', shown.text)
        at = "" if link is None else unescape(link[1])
    return found


@pytest.fixture
def place(
    client: cassieq.Client,
    name: str,
    gateway: Gateway,
    rest: httpx.Client,
    cassandra: EmbeddedCassandra,
) -> Iterator[Place]:
    dead = client.create_queue(f"{name[:-5]}-dead", linger=0)
    queue = client.create_queue(
        name, linger=0, visibility_timeout=600, dead_letter_queue=dead.name, max_deliveries=1_000
    )
    for one in ODD:
        queue.put(one.body, tag=one.tag, headers=one.headers)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunk, "from_rows", as_an_older_sink)
        queue.put(OLDER.body)
    cli = CommandLine(cassandra.contact_points)
    yield Place(queue=queue, dead=dead, client=client, gateway=gateway, rest=rest, cli=cli)
    for one in (queue, dead):
        one.delete()


def without(headers: dict[str, Any], gone: Sequence[str]) -> dict[str, Any]:
    return {name: text for name, text in headers.items() if not name.startswith(tuple(gone))}


def check(found: Sequence[Odd], *, gone: Sequence[str] = ()) -> None:
    """Every message is there once, as it was put; ``gone``: but for these headers."""
    by_body = {one.body: one for one in found}
    assert len(found) == len(by_body)
    for one in (*ODD, OLDER):
        other = by_body[one.body]
        assert (one.tag, without(one.headers, gone)) == (other.tag, without(other.headers, gone))
    assert COUNT == len(found)


def of_python(messages: Sequence[Message]) -> list[Odd]:
    return [Odd(body=one.body, tag=one.tag, headers=dict(one.headers)) for one in messages]


def of_json(messages: Sequence[dict[str, Any]]) -> list[Odd]:
    def body(one: dict[str, Any]) -> bytes:
        text: str = one["body"]
        return base64.b64decode(text) if one.get("encoding") == "base64" else text.encode()

    return [Odd(body=body(one), tag=one["tag"], headers=one["headers"]) for one in messages]


def of_raw(answer: httpx.Response) -> Odd:
    own = "cassieq-header-"
    tag = answer.headers.get("cassieq-tag")
    return Odd(
        body=answer.content,
        tag=None if tag is None else unquote(tag),
        headers={
            unquote(name.removeprefix(own)): unquote(text)
            for name, text in answer.headers.items()
            if name.startswith(own)
        },
    )


def test_every_door_shows_what_any_door_took(place: Place) -> None:
    place.looks(place.queue.name)


def test_the_rest_door_delivers_it_as_bytes_and_as_json(place: Place) -> None:
    path = f"/queues/{place.queue.name}"
    raw = [place.rest.post(f"{path}/messages/next", headers=RAW) for _ in range(COUNT)]
    assert {200} == {one.status_code for one in raw}
    left_out = [one for one in raw if "cassieq-left-out" in one.headers]
    assert [b"h2"] == [one.content for one in left_out]  # of `DEEP`
    check([*(of_raw(one) for one in raw if one not in left_out), ODD[-6]])
    receipts = [one.headers["cassieq-receipt"] for one in raw]
    place.queue.release(receipts, count_delivery=False)

    check(of_json(lease(place.rest, path, max_messages=100)))


def test_the_sqs_door_delivers_it_by_both_protocols(place: Place, sqs: Any) -> None:
    url = sqs.get_queue_url(QueueName=place.queue.name)["QueueUrl"]
    wanted = ["All", "cassieq-*", "y"]

    def by_json() -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = sqs.receive_message(
            QueueUrl=url,
            MaxNumberOfMessages=10,
            MessageAttributeNames=wanted,
            AttributeNames=["All"],
        ).get("Messages", [])
        return found

    def by_query() -> list[tuple[str | None, str | None]]:
        names = {f"MessageAttributeName.{at}": one for at, one in enumerate(wanted, 1)}
        fields = {"Action": "ReceiveMessage", "QueueUrl": url, "AttributeName.1": "All", **names}
        path = urlsplit(url).path
        status, answer = form(place.gateway, path, MaxNumberOfMessages="10", **fields)
        assert 200 == status
        bodies, handles = (
            texts(answer, "ReceiveMessageResult", "Message", part)
            for part in ("Body", "ReceiptHandle")
        )
        return list(zip(bodies, handles, strict=True))

    found = receive_all(by_json)
    expected = {bodies.text_of(one.body)[0] for one in (*ODD, OLDER)}
    assert expected == {one["Body"] for one in found}
    place.queue.release([one["ReceiptHandle"] for one in found], count_delivery=False)
    older = receive_all(by_query)
    assert expected == {body for body, _ in older}


def test_it_dies_and_is_redriven_with_a_reason_that_is_odd_too(place: Place) -> None:
    with place.queue.consumer() as consumer:
        held = [one for _ in range(COUNT) if (one := consumer.get(wait=10)) is not None]
        check(of_python(held))
        place.queue.reject(held, reason="<b>=\N{SNAKE}")
    report = place.client.repair(place.queue.name)
    assert (COUNT, []) == (report.queues[0].moved_dead, report.problems)
    place.looks(place.dead.name, gone=MOVED)

    done = place.cli("dead", "redrive", place.dead.name, "--yes", "--json")

    assert (COUNT, 0) == (done.object["moved"], done.code)
    check(of_python(place.queue.get(COUNT, wait=10)), gone=MOVED)


def receive_all(receive: Callable[[], list[Any]]) -> list[Any]:
    """All of them, in as many answers as it takes."""
    found: list[Any] = []

    def has_all() -> bool:
        found.extend(receive())
        return len(found) >= COUNT

    wait_until(has_all, deadline_s=30, describe=lambda: f"{len(found)} of {COUNT}")
    return found


@pytest.mark.parametrize("text", TEXTS)
def test_what_the_rest_door_takes_it_takes_as_it_is(
    rest: httpx.Client, client: cassieq.Client, queue: str, text: str
) -> None:
    headers = {"Cassieq-Header-N" + quote(text, safe=""): quote(text, safe="")}
    raw = rest.post(f"{queue}/messages", params={"tag": text}, content=b"raw", headers=headers)
    fields = {"body": text, "tag": text, "headers": {text: text}}
    both = rest.post(f"{queue}/messages/batch", json={"messages": [fields]})

    assert (201, 200) == (raw.status_code, both.status_code)
    found = {one.message_id: one for one in client.queue(queue.rpartition("/")[2]).peek(10)}
    one = found[raw.json()["message_id"]]
    assert (text, {f"n{text}".lower(): text}) == (
        one.tag,
        {k.lower(): v for k, v in one.headers.items()},
    )
    (put,) = both.json()["results"]
    other = found[put["message_id"]]
    assert (text.encode(), text, {text: text}) == (other.body, other.tag, dict(other.headers))


async def asked_here(cassandra: EmbeddedCassandra, path: str, **request: Any) -> httpx.Response:
    """The answer of a gateway in this process, whose code a test can break; it has ended."""
    app = App(
        GatewaySettings(),
        lambda: cassieq.connect(cassandra.contact_points, keyspace=KEYSPACE),
    )
    await app.backend.connect()
    try:
        transport = httpx.ASGITransport(app.app(), raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
            return await http.post(path, **request)
    finally:
        app.gate.close()
        await app.backend.close()


def broken(*_: object) -> Any:
    raise RuntimeError("a fault of ours")


@pytest.mark.parametrize("at", ["raw", "json", "sqs"])
def test_what_fails_after_a_lease_gives_the_message_back(
    cassandra: EmbeddedCassandra,
    client: cassieq.Client,
    queue: str,
    at: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    handle = client.queue(queue.rpartition("/")[2])
    handle.put(b"m")
    monkeypatch.setattr(rest_messages, "_raw", broken)
    monkeypatch.setattr(rest_messages, "shown", broken)
    monkeypatch.setattr(bodies, "shown", broken)
    path, request = f"/v1{queue}/messages/next", {"headers": RAW if at == "raw" else {}}
    if at == "sqs":
        wanted = {"QueueUrl": f"http://here/000000000000/{handle.name}"}
        path = "/"
        request = {"headers": {"X-Amz-Target": "AmazonSQS.ReceiveMessage"}, "json": wanted}

    answer = asyncio.run(asked_here(cassandra, path, **request))

    assert 500 == answer.status_code
    (message,) = handle.get()
    assert 1 == message.delivery_count
