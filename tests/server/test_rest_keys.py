"""Keys and tokens over REST: whoever administers an account does it without Cassandra at hand."""

from __future__ import annotations

from typing import TYPE_CHECKING

import httpx
import pytest

from cassieq_spark.accounts.admin import MOST_KEYS
from cassieq_spark.testing import wait_until
from tests.server.test_rest_auth import as_key, own
from tests.server.test_rest_queues import problem

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.fixtures.accounts import Account
    from tests.server.conftest import Gateway

    AsKey = Callable[[tuple[str, str]], httpx.Client]

__all__ = ["as_key", "own"]  # fixtures

READ_ORDERS = {"rights": ["ack", "read"], "queues": ["orders"]}


def made(response: httpx.Response) -> tuple[str, str]:
    assert 201 == response.status_code
    assert "no-store" == response.headers["cache-control"]
    found = response.json()
    return found["access_key_id"], found["secret_access_key"]


def with_token(gateway: Gateway, text: str) -> httpx.Client:
    bearer = {"Authorization": f"Bearer {text}"}
    return httpx.Client(base_url=f"{gateway.url}/v1", headers=bearer, timeout=60)


def test_a_key_is_made_listed_rotated_disabled_and_deleted(
    as_key: AsKey, account: Account, own: httpx.Client
) -> None:
    key = made(own.post("/keys", json={"grants": [READ_ORDERS]}))
    reader = as_key(key)
    assert reader.get("/queues/orders/messages").is_success
    assert (403, "access_denied", None) == problem(reader.post("/queues/orders/messages"))

    other = made(own.post(f"/keys/{key[0]}/rotate"))
    listed = {one["access_key_id"]: one for one in own.get("/keys").json()["keys"]}
    assert {account.first.key_id, key[0], other[0]} == listed.keys()
    assert {"active"} == {one["status"] for one in listed.values()}
    assert [READ_ORDERS] == listed[key[0]]["grants"] == listed[other[0]]["grants"]
    assert not any("secret" in name for one in listed.values() for name in one)

    assert 204 == own.patch(f"/keys/{key[0]}", json={"enabled": False}).status_code
    wait_until(
        lambda: reader.get("/queues/orders/messages").status_code == 401,
        describe="the disabled key is refused",
    )
    assert as_key(other).get("/queues/orders/messages").is_success
    assert 204 == own.patch(f"/keys/{key[0]}", json={"enabled": True}).status_code
    wait_until(
        lambda: reader.get("/queues/orders/messages").is_success,
        describe="the enabled key is accepted",
    )
    assert 204 == own.delete(f"/keys/{key[0]}").status_code
    assert (404, "key_not_found", None) == problem(own.delete(f"/keys/{key[0]}"))
    assert (404, "key_not_found", None) == problem(own.post(f"/keys/{key[0]}/rotate"))


def test_nobody_shuts_himself_out(account: Account, own: httpx.Client) -> None:
    path = f"/keys/{account.first.key_id}"
    for refused in (own.delete(path), own.patch(path, json={"enabled": False})):
        assert (400, "option_invalid", None) == problem(refused)
        assert "is the one that this request was made with" in refused.json()["detail"]
    assert own.get("/keys").is_success


def test_a_key_for_some_queues_cannot_give_itself_the_others(
    as_key: AsKey, account: Account
) -> None:
    some = as_key(account.key_for("admin", "orders"))
    for refused in (some.get("/keys"), some.post("/keys"), some.post("/tokens")):
        assert (403, "access_denied", None) == problem(refused)
        assert "lacks the right 'admin' on the pattern '*'" in refused.json()["detail"]


def test_nothing_of_another_account_is_shown_or_changed(
    as_key: AsKey, new_account: Callable[[], Account], own: httpx.Client
) -> None:
    theirs = new_account()
    path = f"/keys/{theirs.first.key_id}"
    assert theirs.first.key_id not in {
        one["access_key_id"] for one in own.get("/keys").json()["keys"]
    }
    for refused in (
        own.delete(path),
        own.patch(path, json={"enabled": False}),
        own.post(f"{path}/rotate"),
    ):
        assert (404, "key_not_found", None) == problem(refused)
    assert as_key(theirs.key).get("/keys").is_success


def test_a_token_allows_what_it_names_and_makes_nothing_that_outlives_it(
    guarded: Gateway, own: httpx.Client
) -> None:
    asked = {"grants": [READ_ORDERS], "expires_in": 60}
    signed = own.post("/tokens", json=asked).json()
    with with_token(guarded, signed["token"]) as reader:
        assert reader.get("/queues/orders/messages").is_success
        assert 403 == reader.post("/queues/orders/messages", content=b"x").status_code
        assert 403 == reader.get("/keys").status_code
    assert signed["expires_at"].startswith("20")

    everything = own.post("/tokens").json()["token"]
    with with_token(guarded, everything) as admin:
        assert admin.get("/keys").is_success
        for refused in (admin.post("/keys"), admin.post("/tokens")):
            assert (403, "forbidden", None) == problem(refused)
            assert "they would outlive it" in refused.json()["detail"]

    later = own.post("/tokens", json={"starts_in": 3_600}).json()["token"]
    with with_token(guarded, later) as early:
        assert 401 == early.get("/queues/orders/messages").status_code


def test_a_token_never_allows_more_than_its_key(
    guarded: Gateway, as_key: AsKey, account: Account, own: httpx.Client
) -> None:
    assert own.get("/queues/orders").is_success
    admin = as_key(account.key_for("admin"))
    with with_token(guarded, admin.post("/tokens").json()["token"]) as holder:
        assert holder.get("/keys").is_success
        assert 403 == holder.post("/queues/orders/messages", content=b"x").status_code


@pytest.mark.parametrize(
    ("body", "field", "says"),
    [
        ({"grants": [{"rights": ["reed"]}]}, "grants.0", "'reed' is not a right"),
        ({"grants": [{"rights": ["read"], "queues": ["a/b"]}]}, "grants.0", "not a pattern"),
        ({"grants": [{"rights": []}]}, "grants.0.rights", ""),
        ({"grants": []}, "grants", ""),
        ({"grant": []}, "grant", ""),
    ],
)
def test_a_wrong_grant_is_named_and_no_key_is_made(
    own: httpx.Client, body: object, field: str, says: str
) -> None:
    refused = own.post("/keys", json=body)
    status, _, named = problem(refused)
    assert (400, field) == (status, named)
    assert says in refused.json()["detail"]
    assert 1 == len(own.get("/keys").json()["keys"])


def test_an_account_has_so_many_keys(own: httpx.Client) -> None:
    for _ in range(MOST_KEYS - 1):
        assert 201 == own.post("/keys").status_code
    assert (409, "too_many_keys", None) == problem(own.post("/keys"))


def test_without_accounts_there_are_no_keys(rest: httpx.Client) -> None:
    refused = rest.get("/keys")
    assert (404, "not_found", None) == problem(refused)
    assert "--auth" in refused.json()["detail"]
