"""The REST door: messages are put, leased and looked at, as bytes and as JSON."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import NAMESPACE_URL, uuid5

import httpx
import pytest

import cassieq_spark as cassieq
from cassieq_spark.clock import SystemClock
from cassieq_spark.model.moments import time_of
from cassieq_spark.server.rest.messages import MOST_HEADER_BYTES
from tests.server.conftest import Gateway
from tests.server.test_rest_queues import problem

RAW = {"Accept": "application/octet-stream"}
MIB = 1_048_576


def lease(rest: httpx.Client, queue: str, **query: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = rest.post(f"{queue}/messages/next", params=query).json()[
        "messages"
    ]
    return found


def handle(client: cassieq.Client, queue: str) -> cassieq.Queue:
    return client.queue(queue.rpartition("/")[2])


@pytest.mark.parametrize("body", [b"hello", b"", b"\xff\x00\xfe", bytes(range(256)) * 4_096])
def test_bytes_come_back_as_they_were_put(rest: httpx.Client, queue: str, body: bytes) -> None:
    put = rest.post(f"{queue}/messages", content=body)
    assert 201 == put.status_code

    got = rest.post(f"{queue}/messages/next", headers=RAW)

    assert (200, body) == (got.status_code, got.content)
    assert "application/octet-stream" == got.headers["content-type"]
    assert put.json()["message_id"] == got.headers["cassieq-message-id"]
    assert "1" == got.headers["cassieq-delivery-count"]
    receipt = got.headers["cassieq-receipt"]
    assert 204 == rest.delete(f"{queue}/messages/{receipt}").status_code
    none = rest.post(f"{queue}/messages/next", headers=RAW)
    assert (204, b"") == (none.status_code, none.content)


def test_the_largest_body_comes_back(start: Callable[..., Gateway], queue: str) -> None:
    gateway = start("--no-repair", "--max-body", str(17 * MIB))
    path, largest = f"/v1{queue}/messages", b"\xff" * 16 * MIB
    gateway.wait_until_ready()
    assert 201 == gateway.ask("POST", path, largest)[0]

    status, headers, body = gateway.ask("POST", f"{path}/next", headers=RAW)
    assert (200, True) == (status, body == largest)
    assert 204 == gateway.ask("DELETE", f"{path}/{headers['cassieq-receipt']}")[0]

    status, _, refused = gateway.ask("POST", path, largest + b"x")
    assert (400, "body_invalid") == (status, json.loads(refused)["code"])


def test_all_that_goes_with_a_message_comes_back(rest: httpx.Client, queue: str) -> None:
    message_id = "0b9c3b0e-54f4-4d7d-8c43-6f1f0d3c8f11"
    rest.post(
        f"{queue}/messages",
        params={"priority": 1, "tag": "ü", "key": "k", "message_id": message_id},
        headers={"Cassieq-Header-to": "ada", "Cassieq-Header-%54o": "100%25 %C3%BC"},
        content=b"\xff",
    )

    (peeked,) = rest.get(f"{queue}/messages").json()["messages"]
    (got,) = lease(rest, queue)

    expected = {
        "message_id": message_id,
        "body": base64.b64encode(b"\xff").decode(),
        "encoding": "base64",
        "tag": "ü",
        "headers": {"to": "ada", "To": "100% ü"},
        "priority": 1,
    }
    assert expected == {key: got[key] for key in expected}
    assert expected == {key: peeked[key] for key in expected}
    assert (None, 1) == (peeked["receipt"], got["delivery_count"])


def test_headers_and_tags_survive_as_headers_of_http(
    rest: httpx.Client, queue: str, client: cassieq.Client
) -> None:
    headers = {"": "empty", "Name: x\r\nSet-Cookie": " a\nb ", "ü": "ü%", "plain": "as it is"}
    handle(client, queue).put(b"x", tag="t\r\n\u2028", headers=headers)

    got = rest.post(f"{queue}/messages/next", headers=RAW)

    prefix = "cassieq-header-"
    found = {key: text for key, text in got.headers.items() if key.startswith(prefix)}
    assert 4 == len(found)
    assert "set-cookie" not in got.headers
    rest.post(f"{queue}/messages", headers=found, content=b"y")
    (again,) = lease(rest, queue)
    assert headers == again["headers"]
    assert "t%0D%0A%E2%80%A8" == got.headers["cassieq-tag"]


def test_headers_too_long_for_http_are_left_out_and_their_size_is_said(
    rest: httpx.Client, queue: str, client: cassieq.Client
) -> None:
    handle(client, queue).put(b"x", headers={"h": "x" * (MOST_HEADER_BYTES + 1)})

    got = rest.post(f"{queue}/messages/next", headers=RAW)

    assert b"x" == got.content
    assert int(got.headers["cassieq-left-out"]) > MOST_HEADER_BYTES
    assert "cassieq-header-h" not in got.headers


@pytest.mark.parametrize(
    "headers",
    [
        {b"Cassieq-Header-a": b"\xff"},
        {b"Cassieq-Header-a": b"%ff"},
        {b"Cassieq-Header-%ff": b"a"},
    ],
)
def test_headers_that_are_not_utf8_are_refused_by_name(
    rest: httpx.Client, queue: str, headers: Any
) -> None:
    status, code, field = problem(rest.post(f"{queue}/messages", headers=headers, content=b"x"))
    assert (400, "option_invalid") == (status, code)
    assert str(field).startswith("cassieq-header-")


def test_many_are_put_and_leased_together(rest: httpx.Client, queue: str) -> None:
    messages = [
        {"body": "text ü", "headers": {"n": "1"}},
        {"body": "AP8=", "encoding": "base64", "tag": "t"},
        {"body": "", "priority": 1},
        {"body": "later", "delay": 600},
    ]
    results = rest.post(f"{queue}/messages/batch", json={"messages": messages}).json()["results"]
    ids = [one["message_id"] for one in results]
    assert 4 == len(set(ids))

    got = {one["message_id"]: one for one in lease(rest, queue, max_messages=10)}
    assert ids[:3] == [one for one in ids if one in got]
    assert ("text ü", "text", {"n": "1"}) == tuple(
        got[ids[0]][key] for key in ("body", "encoding", "headers")
    )
    assert ("AP8=", "base64", "t") == tuple(got[ids[1]][key] for key in ("body", "encoding", "tag"))


def test_a_time_to_live_is_taken_and_a_wrong_one_refused_by_name(
    rest: httpx.Client, queue: str
) -> None:
    assert 201 == rest.post(f"{queue}/messages?ttl=60", content=b"x").status_code
    assert (400, "option_invalid", "ttl") == problem(
        rest.post(f"{queue}/messages?ttl=0.5", content=b"x")
    )
    messages = [{"body": "a", "ttl": 3_600}, {"body": "b"}, {"body": "c", "ttl": 86_400}]
    answer = rest.post(f"{queue}/messages/batch", json={"messages": messages})
    assert [1, 1, 1] == ["message_id" in one for one in answer.json()["results"]]
    assert 4 == len(lease(rest, queue, max_messages=10))


def test_a_key_is_put_once_by_any_request(rest: httpx.Client, queue: str) -> None:
    refused = rest.post(f"{queue}/messages?dedup_key=k", content=b"x")
    assert (400, "option_invalid") == problem(refused)[:2]
    assert "does not look for duplicates" in refused.json()["detail"]
    assert (400, "option_invalid", "dedup_key") == problem(
        rest.post(f"{queue}/messages?dedup_key=", content=b"x")
    )
    assert 200 == rest.patch(queue, json={"settings": {"dedup_window": 3600}}).status_code

    first = rest.post(f"{queue}/messages?dedup_key=k", content=b"first")
    again = rest.post(f"{queue}/messages?dedup_key=k", content=b"again")
    messages = [{"body": "a", "dedup_key": "k"}, {"body": "b", "dedup_key": "l"}, {"body": "c"}]
    many = rest.post(f"{queue}/messages/batch", json={"messages": messages})

    message_id = first.json()["message_id"]
    assert (201, {"message_id": message_id}) == (first.status_code, first.json())
    assert (200, {"message_id": message_id, "duplicate": True}) == (
        again.status_code,
        again.json(),
    )
    results = many.json()["results"]
    assert {"message_id": message_id, "duplicate": True} == results[0]
    assert ["message_id"] * 2 == [key for one in results[1:] for key in one]
    assert {"first", "b", "c"} == {
        one["body"] for _ in range(3) for one in lease(rest, queue, max_messages=10)
    }


def test_a_message_is_put_with_the_time_when_it_is_due(rest: httpx.Client, queue: str) -> None:
    far = time_of(SystemClock().now_us() + 30 * 86_400_000_000).isoformat()
    alone = rest.post(f"{queue}/messages", params={"due_at": far}, content=b"x")
    assert 201 == alone.status_code
    messages = [{"body": "a", "due_at": far}, {"body": "b"}]
    answer = rest.post(f"{queue}/messages/batch", json={"messages": messages})
    assert [1, 1] == ["message_id" in one for one in answer.json()["results"]]
    assert 2 == rest.get(f"{queue}/statistics").json()["scheduled"]
    assert 1 == len(lease(rest, queue, max_messages=10))
    for wrong in ("2030-01-01T09:00", "tomorrow", "5", "9999-12-31T00:00:00Z"):
        refused = rest.post(f"{queue}/messages", params={"due_at": wrong}, content=b"x")
        assert (400, "option_invalid") == problem(refused)[:2]
    both = rest.post(f"{queue}/messages", params={"due_at": far, "delay": 5}, content=b"x")
    assert (400, "option_invalid") == problem(both)[:2]


def test_a_mistake_in_one_request_refuses_no_other_that_is_put_with_it(
    rest: httpx.Client, queue: str
) -> None:
    def put(number: int) -> int:
        wrong = {"headers": {"h": "x" * (MIB + 1)}} if number % 4 == 0 else {}
        message = {"body": str(number), **wrong}
        return rest.post(f"{queue}/messages/batch", json={"messages": [message]}).status_code

    with ThreadPoolExecutor(8) as pool:
        statuses = list(pool.map(put, range(40)))
    assert [400 if one % 4 == 0 else 200 for one in range(40)] == statuses
    assert 30 == rest.get(f"{queue}/statistics").json()["visible"]


def test_a_priority_that_the_queue_does_not_have_is_refused(rest: httpx.Client, queue: str) -> None:
    one = rest.post(f"{queue}/messages", params={"priority": 5}, content=b"x")
    assert (400, "option_invalid") == problem(one)[:2]
    many = {"messages": [{"body": "good"}, {"body": "bad", "priority": 5}]}
    good, bad = rest.post(f"{queue}/messages/batch", json=many).json()["results"]
    assert good["message_id"]
    assert (400, "option_invalid") == (bad["problem"]["status"], bad["problem"]["code"])
    all_bad = {"messages": [{"body": "bad", "priority": 5}]}
    refused = rest.post(f"{queue}/messages/batch", json=all_bad)
    assert (400, "option_invalid") == problem(refused)[:2]


def test_higher_priorities_come_first_and_lower_ones_can_be_left(
    rest: httpx.Client, queue: str
) -> None:
    for priority in (0, 1):
        rest.post(f"{queue}/messages", params={"priority": priority}, content=b"x")

    (first,) = lease(rest, queue, max_messages=10, min_priority=1)
    assert 1 == first["priority"]
    assert [] == lease(rest, queue, max_messages=10, min_priority=1)
    (second,) = lease(rest, queue, max_messages=10)
    assert 0 == second["priority"]


def test_a_message_id_that_is_put_twice_is_told_by_the_consumer(
    rest: httpx.Client, queue: str
) -> None:
    """A queue compares no ids: whoever puts again after a lost answer says so by the id."""
    message_id = str(uuid5(NAMESPACE_URL, queue))
    for _ in range(2):
        put = rest.post(f"{queue}/messages", params={"message_id": message_id}, content=b"x")
        assert message_id == put.json()["message_id"]

    assert [message_id] * 2 == [one["message_id"] for one in lease(rest, queue, max_messages=10)]


@pytest.mark.parametrize("way", [{"params": {"wait": 20}}, {"headers": {"Prefer": "wait=20"}}])
def test_a_long_poll_is_answered_when_a_message_comes(
    rest: httpx.Client, queue: str, way: dict[str, Any]
) -> None:
    with ThreadPoolExecutor(1) as pool:
        poll = pool.submit(rest.post, f"{queue}/messages/next", **way)
        rest.post(f"{queue}/messages", content=b"x")
        got = poll.result(30)

    assert ["x"] == [one["body"] for one in got.json()["messages"]]
    assert ("wait=20" if "headers" in way else None) == got.headers.get("preference-applied")


def test_a_preference_that_is_too_long_or_malformed_is_no_mistake(
    rest: httpx.Client, queue: str
) -> None:
    rest.post(f"{queue}/messages", content=b"x")
    got = rest.post(f"{queue}/messages/next", headers={"Prefer": "respond-async, wait=9999"})
    assert (1, "wait=60") == (len(got.json()["messages"]), got.headers["preference-applied"])
    none = rest.post(f"{queue}/messages/next", headers={"Prefer": "wait=soon"})
    assert {"messages": []} == none.json()
    assert "preference-applied" not in none.headers


def test_bytes_are_one_message(rest: httpx.Client, queue: str) -> None:
    refused = rest.post(f"{queue}/messages/next", params={"max_messages": 2}, headers=RAW)
    assert (406, "not_acceptable", None) == problem(refused)


def test_spark_and_sqs_work_on_the_same_queue(
    rest: httpx.Client, queue: str, client: cassieq.Client, sqs: Any
) -> None:
    url = sqs.get_queue_url(QueueName=queue.rpartition("/")[2])["QueueUrl"]
    sqs.send_message(
        QueueUrl=url, MessageBody="from sqs",
        MessageAttributes={"to": {"DataType": "String", "StringValue": "ada"}},
    )  # fmt: skip
    (got,) = lease(rest, queue)
    assert ("from sqs", {"to": "ada"}) == (got["body"], got["headers"])
    handle(client, queue).ack(got["receipt"])
    assert 0 == rest.get(f"{queue}/statistics").json()["in_flight"]


def test_a_group_is_put_and_given_back_with_its_message(rest: httpx.Client, queue: str) -> None:
    assert 201 == rest.post(f"{queue}/messages?group=a%26b", content=b"one").status_code
    raw = rest.post(f"{queue}/messages/next", headers=RAW)
    assert ("one", "a&b") == (raw.text, raw.headers["cassieq-group"])
    some = [{"body": "two", "group": "c"}, {"body": "three", "group": None}, {"body": "four"}]
    put = rest.post(f"{queue}/messages/batch", json={"messages": some})
    assert 3 == len([one for one in put.json()["results"] if "message_id" in one])

    peeked = rest.get(f"{queue}/messages").json()["messages"]

    groups = {"two": "c", "three": None, "four": None}
    assert groups == {one["body"]: one["group"] for one in peeked}
    assert [{}] * 3 == [one["headers"] for one in peeked]
    assert groups == {one["body"]: one["group"] for one in lease(rest, queue, max_messages=10)}
    assert 201 == rest.post(f"{queue}/messages", content=b"five").status_code
    assert "cassieq-group" not in rest.post(f"{queue}/messages/next", headers=RAW).headers


@pytest.mark.parametrize("bad", ["", "x" * 129, "two words", "\u00e9", 7])
def test_a_wrong_group_is_refused_by_name_and_nothing_is_put(
    rest: httpx.Client, queue: str, bad: Any
) -> None:
    some = {"messages": [{"body": "fine"}, {"body": "x", "group": bad}]}
    answers = [rest.post(f"{queue}/messages/batch", json=some)]
    if isinstance(bad, str):
        answers.append(rest.post(f"{queue}/messages", params={"group": bad}, content=b"x"))
    for answer in answers:
        status, code, field = problem(answer)
        assert (400, "option_invalid", "group") == (status, code, field.rpartition(".")[2])
    assert {"messages": []} == rest.get(f"{queue}/messages").json()
