"""The REST door: queues, their settings, and what is said about wrong requests."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from openapi_spec_validator import validate

import cassieq_spark as cassieq
from cassieq_spark.options import OPTIONS, Scope
from cassieq_spark.server.operations import OPERATIONS
from cassieq_spark.server.rest.door import document
from tests.server.conftest import Gateway


def problem(response: httpx.Response) -> tuple[int, str, str | None]:
    """Status, code and field of a problem, whose form is checked."""
    assert "application/problem+json" == response.headers["content-type"]
    found = response.json()
    assert {"type", "title", "status", "detail", "code"} <= found.keys()
    assert response.status_code == found["status"]
    assert f"/docs#{found['code']}" == found["type"]
    assert found["title"]
    assert found["detail"]
    return response.status_code, found["code"], found.get("field")


def test_a_queue_is_created_shown_altered_and_deleted(rest: httpx.Client, name: str) -> None:
    path = f"/queues/{name}"
    given = {"settings": {"visibility_timeout": 45, "shards": 2}, "labels": {"owner": "ada"}}

    created = rest.put(path, json=given)
    assert 201 == created.status_code
    shown = created.json()
    assert (name, {"owner": "ada"}) == (shown["name"], shown["labels"])
    assert {one.name for one in OPTIONS if Scope.QUEUE in one.scopes} == shown["settings"].keys()
    assert (45, 2, 1) == tuple(
        shown["settings"][one] for one in ("visibility_timeout", "shards", "priorities")
    )

    again = rest.put(path, json=given)
    assert (200, shown) == (again.status_code, again.json())
    unnamed = rest.put(path)
    assert (200, shown) == (unnamed.status_code, unnamed.json())
    other = {"settings": {"visibility_timeout": 46}}
    assert (409, "queue_exists", None) == problem(rest.put(path, json=other))

    fixed = {"settings": {"bucket_size": 7}}
    assert (400, "setting_fixed", None) == problem(rest.patch(path, json=fixed))
    itself = {"settings": {"dead_letter_queue": name}}
    assert (400, "dead_letter_cycle", None) == problem(rest.patch(path, json=itself))

    change = {"settings": {"visibility_timeout": None, "linger": 0.5}, "labels": {"owner": None}}
    altered = rest.patch(path, json=change).json()
    assert (30, 0.5, {}) == (
        altered["settings"]["visibility_timeout"], altered["settings"]["linger"], altered["labels"],
    )  # fmt: skip
    assert altered == rest.get(path).json()

    assert 204 == rest.delete(path).status_code
    for gone in (rest.get(path), rest.delete(path), rest.post(f"{path}/purge")):
        assert (404, "queue_not_found", None) == problem(gone)


def test_queues_are_listed_by_prefix_in_pages(rest: httpx.Client, name: str) -> None:
    names = [f"{name[-70:]}-{one}" for one in "abcde"]
    for one in names:
        rest.put(f"/queues/{one}")
    prefix = {"prefix": name[-70:] + "-"}

    first = rest.get("/queues", params={**prefix, "max_queues": 3}).json()
    assert {"queues": names[:3], "next": names[2]} == first
    rest_of_it = rest.get("/queues", params={**prefix, "after": first["next"]}).json()
    assert {"queues": names[3:], "next": None} == rest_of_it
    for one in names:
        rest.delete(f"/queues/{one}")


def test_a_queue_that_another_needs_or_that_is_not_empty_is_deleted_as_asked(
    rest: httpx.Client, name: str
) -> None:
    dead = f"/queues/{name}.dead"
    rest.put(dead)
    rest.put(f"/queues/{name}", json={"settings": {"dead_letter_queue": f"{name}.dead"}})
    rest.post(f"{dead}/messages", content=b"x")

    assert (409, "queue_in_use", None) == problem(rest.delete(dead))
    asked = {"force": "true", "if_empty": "true"}
    assert (409, "queue_in_use", None) == problem(rest.delete(dead, params=asked))
    assert 204 == rest.delete(dead, params={"force": "true", "if_unused": "true"}).status_code


def test_a_dead_letter_queue_must_exist(rest: httpx.Client, name: str) -> None:
    given = {"settings": {"dead_letter_queue": f"{name[-70:]}.dead"}}

    assert (404, "queue_not_found", None) == problem(rest.put(f"/queues/{name}", json=given))


def test_statistics_count_what_is_there_and_a_purge_drops_it(
    rest: httpx.Client, queue: str
) -> None:
    for priority, delay in ((0, 0), (1, 0), (1, 600)):
        rest.post(f"{queue}/messages", params={"priority": priority, "delay": delay}, content=b"x")
    rest.post(f"{queue}/messages/next")

    found = rest.get(f"{queue}/statistics").json()
    counts = tuple(found[one] for one in ("visible", "in_flight", "delayed", "dead"))
    assert ((1, 1, 1, 0), {"0": 1, "1": 0}) == (counts, found["by_priority"])

    assert {"purged": 3} == rest.post(f"{queue}/purge").json()
    assert 0 == rest.get(f"{queue}/statistics").json()["visible"]


def test_a_paused_queue_hands_nothing_out_until_it_is_resumed(
    rest: httpx.Client, queue: str
) -> None:
    for priority in (0, 1):
        rest.post(f"{queue}/messages", params={"priority": priority}, content=b"%d" % priority)

    assert 204 == rest.post(f"{queue}/pause").status_code
    assert [0, 1] == rest.get(f"{queue}/statistics").json()["paused"]
    assert [] == rest.post(f"{queue}/messages/next").json()["messages"]

    assert 204 == rest.post(f"{queue}/resume", json={"priority": 0}).status_code
    assert [1] == rest.get(f"{queue}/statistics").json()["paused"]
    given = rest.post(f"{queue}/messages/next", params={"max_messages": 10}).json()
    assert [0] == [one["priority"] for one in given["messages"]]

    none_such = rest.post(f"{queue}/pause", json={"priority": 2})
    assert (400, "option_invalid") == problem(none_such)[:2]
    assert 204 == rest.post(f"{queue}/resume").status_code
    assert [] == rest.get(f"{queue}/statistics").json()["paused"]


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/nothing", 404, "not_found"),
        ("GET", "/queues/a%0Ab", 400, "option_invalid"),
        ("GET", "/queues%0A", 404, "not_found"),
        ("POST", "/queues/orders/purge%0A", 404, "not_found"),
        ("GET", "/queues/", 404, "not_found"),
        ("POST", "/queues", 405, "method_not_allowed"),
        ("TRACE", "/queues", 405, "method_not_allowed"),
        ("GET", "/queues/no%20name", 400, "option_invalid"),
        ("GET", "/queues?nothing=1", 400, "option_unknown"),
        ("GET", "/queues?max_queues=many", 400, "option_invalid"),
        ("GET", "/queues?max_queues=1&max_queues=2", 400, "option_invalid"),
        ("GET", "/queues?prefix=%ff", 400, "option_invalid"),
    ],
)
def test_what_is_not_there_is_a_problem(
    rest: httpx.Client, method: str, path: str, status: int, code: str
) -> None:
    assert (status, code) == problem(rest.request(method, path))[:2]


def test_methods_and_media_types_are_named(rest: httpx.Client, queue: str) -> None:
    refused = rest.post("/queues")
    assert "GET" == refused.headers["allow"]
    assert "DELETE, GET, PATCH, PUT" == rest.post(queue).headers["allow"]

    form = rest.post(f"{queue}/messages", data={"a": "b"})
    assert (415, "unsupported_media_type", None) == problem(form)
    assert "application/octet-stream" in form.json()["detail"]
    xml = rest.get(queue, headers={"Accept": "text/xml"})
    assert (406, "not_acceptable", None) == problem(xml)
    assert "application/json" in xml.json()["detail"]


@pytest.mark.parametrize(
    ("body", "field", "says"),
    [
        (b"", "body", "not JSON"),
        (b"[" * 9_000, "body", "recursion limit"),
        (b'{"a":' * 9_000, "body", "recursion limit"),
        (b'{"messages": [%s 1]}' % (b"1," * 12_000), "body", "more than 10,375 values"),
        (b'{"messages": [], "messages": []}', "body", 'duplicate key "messages"'),
        (b'{"messages": [{"body": "x", "delay": NaN}]}', "body", "expected value"),
        (b'{"messages": [{"body": "x", "delay": 1e999}]}', "messages.0.delay", "inf"),
        (b'{"messages": [{"body": "x", "delay": -1}]}', "messages.0.delay", "from 0 s to 400 d"),
        (b'{"messages": [{"body": "x", "delay": "5"}]}', "messages.0.delay", "'5'"),
        (b'{"messages": [{"body": "x", "priority": true}]}', "messages.0.priority", "True"),
        (
            b'{"messages": [{"body": "x", "priority": %s}]}' % (b"9" * 5_000),
            "body",
            "number out of range",
        ),
        (b'{"messages": [{"body": "\\ud800"}]}', "body", "hex escape"),
        (b'{"messages": [{"body": "x", "tag": "\\udfff"}]}', "body", "surrogate"),
        (b'{"messages": [{"body": 5}]}', "messages.0.body", "int"),
        (b'{"messages": [{"body": "?", "encoding": "base64"}]}', "messages.0.body", "not base64"),
        (b'{"messages": [{"body": "x", "encoding": "gzip"}]}', "messages.0.encoding", "gzip"),
        (b'{"messages": [{"body": "x", "message_id": "7"}]}', "messages.0.message_id", "UUID"),
        (b'{"messages": [{"body": "x", "headers": {"a": 1}}]}', "messages.0.headers.a", "string"),
        (b'{"messages": [{"body": "x", "key": ""}]}', "messages.0.key", "1"),
        (b'{"messages": [{"body": "x", "colour": 1}]}', "messages.0.colour", "not a field"),
        (b'{"messages": [{}]}', "messages.0.body", "missing"),
        (b'{"messages": []}', "messages", "at least 1"),
        (b'{"messages": [%s {"body": "x"}]}' % (b'{"body": "x"},' * 1_000), "messages", "1000"),
        (b"[]", "body", "dictionary"),
        (b"\xff", "body", "UTF-8"),
    ],
)
def test_a_wrong_field_is_named_with_what_is_allowed(
    rest: httpx.Client, queue: str, body: bytes, field: str, says: str
) -> None:
    refused = rest.post(
        f"{queue}/messages/batch", content=body, headers={"Content-Type": "application/json"}
    )

    assert (400, field) == problem(refused)[::2]
    assert says in refused.json()["detail"]


def test_wrong_settings_are_named_and_nothing_is_created(rest: httpx.Client, name: str) -> None:
    path = f"/queues/{name}"
    for settings, code in (
        ({"liner": 1}, "option_unknown"),
        ({"linger": "1"}, "option_invalid"),
        ({"priorities": 10, "shards": 64}, "option_invalid"),
        ({"dead_letter_queue": "a/b"}, "option_invalid"),
    ):
        refused = rest.put(path, json={"settings": settings})
        assert (400, code) == problem(refused)[:2]
        assert next(iter(settings)).removesuffix("r") in refused.json()["detail"] or "/" in str(
            settings
        )
    assert 404 == rest.get(path).status_code


def test_a_body_above_the_limit_is_a_problem(start: Callable[..., Gateway]) -> None:
    gateway = start("--no-repair", "--max-body", "2048")

    status, headers, body = gateway.ask("POST", "/v1/queues/q/messages", b"x" * 2_049)

    assert (413, "application/problem+json") == (status, headers["content-type"])
    assert "2,048 bytes" in json.loads(body)["detail"]


def test_queues_of_accounts_are_not_there(
    rest: httpx.Client, client: cassieq.Client, name: str
) -> None:
    full = f"acme/{name}"
    client.create_queue(full)
    assert name not in rest.get("/queues", params={"prefix": name}).json()["queues"]
    assert 404 == rest.get(f"/queues/{name}").status_code
    assert rest.get(f"/queues/acme%2F{name}").status_code in (400, 404)
    client.delete_queue(full)


def test_the_description_is_valid_and_has_every_operation(gateway: Gateway) -> None:
    _, headers, body = gateway.ask("GET", "/openapi.json")
    found: dict[str, Any] = json.loads(body)
    assert "application/json" == headers["content-type"]
    assert document() == found

    validate(found)
    assert "3.1.0" == found["openapi"]
    listed = {one["operationId"] for path in found["paths"].values() for one in path.values()}
    assert {one.name for one in OPERATIONS} == listed


def test_the_page_of_docs_needs_nothing_else(gateway: Gateway) -> None:
    _, headers, body = gateway.ask("GET", "/docs")

    assert headers["content-security-policy"].startswith("default-src 'none'")
    page = body.decode()
    assert all(f"id='{one.name}'" in page for one in OPERATIONS)
    assert "queue_not_found" in page
    assert "<script" not in page
    assert "http:" not in page
