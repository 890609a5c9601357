"""Hostile requests to the SQS door: no error of the gateway's own, no secret, nobody else's queue.

A stranger has an account and a key, and knows everything about the victim but the secret: its name,
number, key id and queue, and a presigned URL for one harmless action.
"""

from __future__ import annotations

import http.client
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import cassieq_spark as cassieq
from cassieq_spark.server.sqs.call import number_of
from cassieq_spark.testing import EmbeddedCassandra
from tests.fixtures.accounts import Account, signed
from tests.server.conftest import Gateway, victimised

BODY = "what only the victim may read"
EXAMPLES = 150

# What HTTP takes in a header or a request line; the rest never reaches the door.
printable = st.characters(min_codepoint=0x21, max_codepoint=0x7E)
latin = st.characters(min_codepoint=0x20, max_codepoint=0xFF, exclude_characters="\x7f")
in_headers = st.text(latin, max_size=40)
actions = st.sampled_from(
    ["ReceiveMessage", "SendMessage", "GetQueueUrl", "GetQueueAttributes", "DeleteQueue"]
)


@dataclass
class Scene:
    """A gateway, a stranger and a victim."""

    gateway: Gateway
    stranger: Account
    victim: Account
    victims_url: str

    def ask(
        self, method: str, path: str, headers: list[tuple[str, str]], body: bytes = b""
    ) -> tuple[int, bytes]:
        """Send a request as it is; every answer is looked at."""
        address = urlsplit(self.gateway.url)
        connection = http.client.HTTPConnection(str(address.hostname), address.port, timeout=60)
        try:
            connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
            for name, value in headers:
                connection.putheader(name, value.encode("latin-1"))
            connection.putheader("Content-Length", str(len(body)))
            connection.endheaders(body)
            answer = connection.getresponse()
            status, found = answer.status, answer.read()
        finally:
            connection.close()
        assert status < 500, (status, found)
        for hidden in (BODY, self.stranger.key[1], self.victim.key[1]):
            assert hidden.encode() not in found
        return status, found

    def ask_signed(self, key: tuple[str, str], fields: list[tuple[str, str]]) -> tuple[int, bytes]:
        return self.ask("POST", "/", *self.parts(key, fields))

    def parts(
        self, key: tuple[str, str], fields: list[tuple[str, str]]
    ) -> tuple[list[tuple[str, str]], bytes]:
        request = signed(key, self.gateway.url, fields)
        host = ("Host", urlsplit(self.gateway.url).netloc)
        return [host, *((k, str(v)) for k, v in request.headers.items())], request.body

    @property
    def host(self) -> tuple[str, str]:
        return "Host", urlsplit(self.gateway.url).netloc


@pytest.fixture(scope="module")
def scene(
    cassandra: EmbeddedCassandra, client: cassieq.Client, master_key_file: Path
) -> Iterator[Scene]:
    with victimised(cassandra, client, master_key_file, BODY) as (gateway, stranger, victim):
        url = f"{gateway.url}/{number_of(victim.name)}/orders"
        yield Scene(gateway, stranger, victim, url)


@st.composite
def altered(draw: st.DrawFn, text: str) -> str:
    """A text with one part cut out and another one put in."""
    at = draw(st.integers(0, len(text)))
    until = draw(st.integers(at, min(len(text), at + 8)))
    return text[:at] + draw(st.text(printable, max_size=8)) + text[until:]


@settings(max_examples=EXAMPLES)
@given(st.data(), actions)
def test_a_signed_request_that_was_altered_does_nothing(
    scene: Scene, data: Any, action: str
) -> None:
    # With the victim's key id, and a secret that the stranger has made up.
    key = (scene.victim.key[0], "s" * 40)
    headers, body = scene.parts(key, [("Action", action), ("QueueUrl", scene.victims_url)])
    at = data.draw(st.integers(0, len(headers) - 1))
    name, value = headers[at]
    change = data.draw(st.sampled_from(["alter", "drop", "twice", "replace"]))
    if change == "alter":
        headers[at] = (name, data.draw(altered(value)))
    elif change == "replace":
        headers[at] = (name, data.draw(in_headers))
    elif change == "twice":
        headers.append((name, data.draw(altered(value))))
    elif name != "Host":  # HTTP itself needs that one
        del headers[at]
    status, found = scene.ask("POST", "/", headers, body)
    assert 400 <= status, found


@settings(max_examples=EXAMPLES)
@given(st.data())
def test_a_body_that_was_altered_after_it_was_signed_does_nothing(scene: Scene, data: Any) -> None:
    headers, body = scene.parts(scene.stranger.key, [("Action", "ListQueues")])
    other = data.draw(st.binary(max_size=60).filter(lambda one: one != body))
    status, found = scene.ask("POST", "/", headers, other)
    assert status in (400, 403), found


@settings(max_examples=EXAMPLES)
@given(st.data())
def test_a_presigned_url_that_was_altered_does_nothing_else(scene: Scene, data: Any) -> None:
    fields = [("Action", "ListQueueTags"), ("QueueUrl", scene.victims_url)]
    request = signed(scene.victim.key, scene.gateway.url, fields, presigned_for_s=600)
    query = urlsplit(request.url).query
    changed = data.draw(
        st.one_of(
            altered(query),
            st.just(query.replace("ListQueueTags", "ReceiveMessage")),
            st.just(query.replace("X-Amz-Expires=600", "X-Amz-Expires=604800")),
            st.just(f"{query}&Action=ReceiveMessage"),
            st.just(f"Action=ReceiveMessage&{query}"),
        )
    ).replace("#", "%23")
    status, found = scene.ask("GET", f"/?{changed}", [scene.host])
    assert 400 <= status or b"<ListQueueTagsResponse" in found


@settings(max_examples=EXAMPLES)
@given(st.data())
def test_a_token_that_was_altered_is_none(scene: Scene, client: cassieq.Client, data: Any) -> None:
    token = scene.victim.token("info", "orders", now_us=client.now_us())
    shown = data.draw(st.one_of(altered(token), in_headers, st.just("a.b.c")))
    status, found = scene.ask(
        "POST",
        "/",
        [scene.host, ("Authorization", f"Bearer {shown}")],
        f"Action=GetQueueUrl&QueueName=orders&QueueUrl={scene.victims_url}".encode(),
    )
    # A few bits of the last character of base64 say nothing.
    assert 400 <= status or shown.strip()[:-1] == token[:-1], found


NAMES = st.lists(
    st.sampled_from(
        ["/", "..", ".", "%2F", "%2e%2e", "%00", "\\", "orders", "VICTIM", "NUMBER", "é", ":", "?"]
    ),
    max_size=7,
).map("".join)


@settings(max_examples=EXAMPLES)
@given(actions, NAMES, st.booleans())
@example("ReceiveMessage", "/NUMBER/orders", True)
@example("ReceiveMessage", "/VICTIM/orders", True)
@example("GetQueueUrl", "VICTIM/orders", False)
@example("DeleteQueue", "/OWN/..%2FVICTIM%2Forders", True)
def test_no_name_reaches_a_queue_of_another_account(
    scene: Scene, action: str, name: str, is_long: bool
) -> None:
    name = name.replace("VICTIM", scene.victim.name).replace("NUMBER", number_of(scene.victim.name))
    own = number_of(scene.stranger.name)
    name = name.replace("OWN", own)
    url = scene.gateway.url + name if is_long else f"{scene.gateway.url}/{own}/{name}"
    status, found = scene.ask_signed(
        scene.stranger.key,
        [
            ("Action", action),
            ("QueueUrl", url),
            ("QueueName", name),
            ("MessageBody", "from a stranger"),
            ("AttributeName.1", "All"),
        ],
    )
    assert 400 <= status, found  # the stranger has no queues


@settings(max_examples=EXAMPLES)
@given(st.sampled_from(["StartMessageMoveTask", "ListMessageMoveTasks", "CreateQueue"]), NAMES)
def test_no_arn_reaches_a_queue_of_another_account(scene: Scene, action: str, name: str) -> None:
    name = name.replace("VICTIM", scene.victim.name).replace("NUMBER", number_of(scene.victim.name))
    policy = f'{{"deadLetterTargetArn": "arn:aws:sqs:x:{name}", "maxReceiveCount": 1}}'
    status, found = scene.ask_signed(
        scene.stranger.key,
        [
            ("Action", action),
            ("SourceArn", f"arn:aws:sqs:x:{name}"),
            ("QueueName", "mine"),
            ("Attribute.1.Name", "RedrivePolicy"),
            ("Attribute.1.Value", policy),
        ],
    )
    assert 400 <= status, found
