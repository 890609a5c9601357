"""The REST door with accounts: what a key may do, and what it never reaches."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from botocore.auth import SigV4Auth, SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

import cassieq_spark as cassieq
from cassieq_spark.model.rights import Right
from cassieq_spark.server.operations import OPERATIONS
from cassieq_spark.store import portal
from cassieq_spark.testing import wait_until
from tests.fixtures.accounts import Account, all_but, pair
from tests.server.conftest import Gateway
from tests.server.test_rest_queues import problem

BODIES: dict[str, Any] = {
    "alterQueue": {"labels": {"a": "b"}},
    "putMessages": {"messages": [{"body": "x"}]},
    "extendMessages": {"receipts": ["x"], "visibility_timeout": 1},
    "updateMessages": {"updates": [{"receipt": "x", "body": "y"}]},
    "ackMessages": {"receipts": ["x"]},
    "releaseMessages": {"receipts": ["x"]},
    "rejectMessages": {"receipts": ["x"]},
    "changeKey": {"enabled": True},
    "createSchedule": {"every": 3600, "horizon": 60},
    "alterSchedule": {"tag": "t"},
    "backfillSchedule": {"begin": "2026-01-01T00:00Z", "end": "2026-01-02T00:00Z"},
}
LAST = ("purgeQueue", "deleteQueue")


class SignedBy(httpx.Auth):
    """Requests that botocore signs, as any SDK of AWS would."""

    requires_request_body = True

    def __init__(self, key: tuple[str, str]) -> None:
        self._credentials = Credentials(*key)

    def auth_flow(self, request: httpx.Request) -> Iterator[httpx.Request]:  # type: ignore[override]  # as httpx has it
        signed = AWSRequest(
            method=request.method,
            url=str(request.url),
            data=request.content,
            headers={"Content-Type": request.headers.get("content-type", "")},
        )
        SigV4Auth(self._credentials, "sqs", "eu-west-1").add_auth(signed)
        request.headers.update(dict(signed.headers))
        yield request


@pytest.fixture
def as_key(guarded: Gateway) -> Iterator[Callable[[tuple[str, str]], httpx.Client]]:
    """``as_key(key)``: a client that signs by a key."""
    made: list[httpx.Client] = []

    def make(key: tuple[str, str]) -> httpx.Client:
        made.append(httpx.Client(base_url=f"{guarded.url}/v1", auth=SignedBy(key), timeout=60))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture
def own(as_key: Callable[[tuple[str, str]], httpx.Client], account: Account) -> httpx.Client:
    """A client that may do everything in its account, where queue ``orders`` is."""
    client = as_key(account.key)
    assert 201 == client.put("/queues/orders", json={"settings": {"linger": 0}}).status_code
    return client


def ask(client: httpx.Client, operation: Any) -> httpx.Response:
    path = operation.path.format(queue="orders", receipt="x", key="x", schedule="x")
    if isinstance(operation.body, str):
        return client.request(operation.method, path, content=b"x")
    if operation.name in BODIES:
        return client.request(operation.method, path, json=BODIES[operation.name])
    return client.request(operation.method, path)


def test_each_operation_asks_for_its_right_and_says_which_is_missing(
    as_key: Callable[[tuple[str, str]], httpx.Client], account: Account, own: httpx.Client
) -> None:
    assert own.get("/queues/orders").is_success
    lacking = {one: pair(account.new_key(*all_but(one))) for one in Right}
    clients = {right: as_key(key) for right, key in lacking.items()}
    for one in OPERATIONS:
        refused = ask(clients[one.right], one)
        assert (403, "access_denied", None) == problem(refused), one.name
        assert f"lacks the right {one.right.value!r}" in refused.json()["detail"], one.name
        if one.puts:
            refused = ask(clients[Right.PUT], one)
            assert (403, "access_denied", None) == problem(refused), one.name
            assert "lacks the right 'put'" in refused.json()["detail"], one.name


def test_each_operation_needs_no_other_right(
    as_key: Callable[[tuple[str, str]], httpx.Client], account: Account, own: httpx.Client
) -> None:
    assert own.get("/queues/orders").is_success
    needed = {(one.right, one.puts) for one in OPERATIONS}
    rights = {one: one[0].value + ",put" * one[1] for one in needed}
    clients = {one: as_key(account.key_for(rights[one])) for one in needed}
    for one in sorted(OPERATIONS, key=lambda one: one.name in LAST):
        found = ask(clients[one.right, one.puts], one)
        assert found.status_code not in (401, 403, 500, 503), one.name


def test_nothing_of_another_account_is_reached_or_listed(
    as_key: Callable[[tuple[str, str]], httpx.Client],
    new_account: Callable[[], Account],
    own: httpx.Client,
    client: cassieq.Client,
) -> None:
    theirs = new_account()
    other = as_key(theirs.key)
    other.put("/queues/orders")
    other.put("/queues/only-theirs")
    own.post("/queues/orders/messages", content=b"mine")
    (got,) = own.post("/queues/orders/messages/next", params={"wait": 5}).json()["messages"]

    assert {"queues": ["orders"], "next": None} == own.get("/queues").json()
    assert {"messages": []} == other.post("/queues/orders/messages/next").json()
    receipt = {"receipts": [got["receipt"]]}
    verdicts = other.post("/queues/orders/ack", json=receipt).json()["results"]
    assert ["invalid"] == [one["verdict"] for one in verdicts]
    for name in ("only-theirs", f"{theirs.name}%2Fonly-theirs", f"..%2F{theirs.name}%2Forders"):
        assert own.post(f"/queues/{name}/messages", content=b"x").status_code in (400, 404)
    target = f"{theirs.name}/orders"
    settings = {"dead_letter_queue": target}
    assert 400 == own.patch("/queues/orders", json={"settings": settings}).status_code
    assert 400 == own.post("/queues/orders/redrive", json={"to": target}).status_code
    verdicts = own.post("/queues/orders/ack", json=receipt).json()["results"]
    assert ["acked"] == [one["verdict"] for one in verdicts]
    assert 0 == client.queue(target).stats().visible


def test_dead_letters_name_queues_without_the_account(
    own: httpx.Client, account: Account, client: cassieq.Client
) -> None:
    own.put("/queues/dead")
    shown = own.patch("/queues/orders", json={"settings": {"dead_letter_queue": "dead"}}).json()
    assert ("orders", "dead") == (shown["name"], shown["settings"]["dead_letter_queue"])
    own.post("/queues/orders/messages", content=b"x")
    (got,) = own.post("/queues/orders/messages/next", params={"wait": 5}).json()["messages"]
    own.post("/queues/orders/reject", json={"receipts": [got["receipt"]]})
    client.repair(f"{account.name}/orders")

    where = {"where": "source-queue=orders"}
    (letter,) = own.get("/queues/dead/dead-letters", params=where).json()["messages"]
    assert "orders" == letter["source_queue"]
    done = own.post("/queues/dead/redrive", json={"where": ["source-queue=orders"]}).json()
    assert ("dead", {"orders": 1}) == (done["queue"], done["by_target"])


def test_tokens_and_presigned_urls_are_let_in_and_all_else_is_not(
    guarded: Gateway, account: Account, own: httpx.Client, client: cassieq.Client
) -> None:
    token = account.token("put", "orders", now_us=client.now_us())
    bearer = {"Authorization": f"Bearer {token}"}
    path = "/v1/queues/orders/messages"
    assert 201 == guarded.ask("POST", path, b"x", bearer)[0]
    assert 403 == guarded.ask("POST", f"{path}/next", headers=bearer)[0]
    assert 401 == guarded.ask("POST", path, b"x", {"Authorization": f"Bearer {token}x"})[0]

    status, headers, body = guarded.ask("POST", path, b"x")
    assert (401, "authentication_failed") == (status, json.loads(body)["code"])
    assert "AWS4-HMAC-SHA256" in headers["www-authenticate"]

    request = AWSRequest(method="GET", url=f"{guarded.url}{path}?max_messages=5")
    SigV4QueryAuth(Credentials(*account.key), "sqs", "eu-west-1", expires=60).add_auth(request)
    assert ["x"] == [one["body"] for one in httpx.get(request.url).json()["messages"]]
    assert 403 > own.get("/queues/orders/messages").status_code


def test_a_waiter_whose_key_is_disabled_gets_nothing(
    as_key: Callable[[tuple[str, str]], httpx.Client], account: Account, own: httpx.Client
) -> None:
    key = account.key_for("read")
    waiter = as_key(key)
    answers: list[httpx.Response] = []

    def wait() -> None:
        answers.append(waiter.post("/queues/orders/messages/next", params={"wait": 45}))

    waiter.get("/queues/orders/messages")  # its key is remembered from now on
    thread = threading.Thread(target=wait)
    thread.start()
    portal.run(account.admin.set_enabled(account.name, is_enabled=False, key_id=key[0]))
    # The gateway remembers keys for ten seconds.
    probe = as_key(key)
    wait_until(lambda: probe.get("/queues/orders/messages").status_code == 401, deadline_s=20)
    own.post("/queues/orders/messages", content=b"x")
    thread.join(60)

    assert (401, "authentication_failed", None) == problem(answers[0])
    (got,) = own.post("/queues/orders/messages/next", params={"wait": 10}).json()["messages"]
    assert 1 == got["delivery_count"]
