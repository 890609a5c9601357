"""Hostile requests for keys and tokens: no fault of the gateway's, no secret, nobody else's keys.

The requests are made of the REST door's own description, by a stranger who has an account and knows
everything about the victim but the secret: its name, its key's id and its queue.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from hypothesis import strategies as st
from requests.auth import AuthBase
from schemathesis import GenerationMode

import cassieq_spark as cassieq
from cassieq_spark.accounts.admin import NewKey
from cassieq_spark.server.operations import OPERATIONS
from cassieq_spark.store import portal
from tests.fixtures.accounts import Account, pair
from tests.fuzz.described import CHECKS, KINDS, SCHEMA
from tests.fuzz.sqs import drawn
from tests.server.conftest import Gateway
from tests.server.test_rest_schema import EXAMPLES

BODY = "what only the victim may read"
QUEUE = "victims-own-orders"
OF_KEYS = [one for one in OPERATIONS if one.path.startswith(("/keys", "/tokens"))]
MAKES = ("createKey", "rotateKey", "signToken")


class Signed(AuthBase):
    """Requests that botocore signs, with the headers and the body that they have."""

    def __init__(self, key: tuple[str, str]) -> None:
        self._credentials = Credentials(*key)

    def __call__(self, request: Any) -> Any:
        given = AWSRequest(method=request.method, url=request.url, data=request.body or b"")
        SigV4Auth(self._credentials, "sqs", "eu-west-1").add_auth(given)
        request.headers.update(dict(given.headers))
        return request


class Bearer(AuthBase):
    """Requests with a token."""

    def __init__(self, token: str) -> None:
        self._token = token

    def __call__(self, request: Any) -> Any:
        request.headers["Authorization"] = f"Bearer {self._token}"
        return request


@dataclass
class Scene:
    """A gateway, a stranger with several ways to say who it is, and a victim."""

    gateway: Gateway
    stranger: Account
    victim: Account
    spare: NewKey
    callers: dict[str, AuthBase | None]
    kept: frozenset[str]
    secrets: set[str] = field(default_factory=set)

    def tidy(self) -> None:
        """The stranger has the keys of the beginning again, but those that were deleted."""
        admin, name = self.stranger.admin, self.stranger.name
        for one in portal.run(admin.keys(name)):
            if one.key_id not in self.kept:
                portal.run(admin.delete_key(name, one.key_id))
            else:
                portal.run(admin.set_enabled(name, is_enabled=True, key_id=one.key_id))


def of(account: Account) -> list[dict[str, Any]]:
    """An account's keys, but not when they were last used."""
    found = [one.to_plain() for one in portal.run(account.admin.keys(account.name))]
    return [{name: one[name] for name in one if name != "last_used_at"} for one in found]


@pytest.fixture
def scene(
    guarded: Gateway, new_account: Callable[[], Account], client: cassieq.Client
) -> Iterator[Scene]:
    """At the end, nothing of the victim's has changed."""
    stranger, victim = new_account(), new_account()
    admin, spare = stranger.admin, stranger.new_key(*stranger.first.grants)
    orders = client.create_queue(f"{victim.name}/{QUEUE}", linger=0)
    orders.put(BODY.encode())
    before = of(victim)
    token = stranger.token("admin", now_us=client.store.clock.now_us())
    reader = stranger.key_for("read,info,put")
    callers: dict[str, AuthBase | None] = {
        "administrator": Signed(stranger.key),
        "token": Bearer(token),
        "reader": Signed(reader),
        "guesser": Signed((victim.key[0], stranger.key[1])),
        "nobody": None,
    }
    kept = frozenset({stranger.first.key_id, spare.key_id, reader[0]})
    found = Scene(guarded, stranger, victim, spare, callers, kept)
    found.secrets |= {stranger.key[1], victim.key[1], pair(spare)[1], reader[1]}
    yield found
    assert before == of(victim)
    assert [f"{victim.name}/{QUEUE}"] == [one.name for one in portal.run(admin.queues(victim.name))]
    (message,) = orders.peek()
    assert (BODY.encode(), 0) == (message.body, message.delivery_count)


def named(case: Any, scene: Scene, draw: Any) -> None:
    """Name keys and queues that exist, the victim's too, more often than chance would."""
    found = case.path_parameters or {}
    if "key" in found:
        keys = [scene.spare.key_id, scene.stranger.first.key_id, scene.victim.first.key_id]
        found["key"] = draw(st.sampled_from([*keys, found["key"]]))
    grants = case.body.get("grants") if isinstance(case.body, dict) else None
    for one in grants if isinstance(grants, list) else ():
        if isinstance(one, dict) and isinstance(one.get("queues"), list):
            theirs = [f"{scene.victim.name}/{QUEUE}", f"{scene.victim.name}/*", QUEUE]
            one["queues"] = [draw(st.sampled_from([*theirs, "*"])), *one["queues"]]


def check(scene: Scene, case: Any, response: Any, *, who: str, operation: Any) -> None:
    """What an answer may say, whoever asks."""
    text = response.content.decode()
    assert not [one for one in scene.secrets if one in text]
    assert BODY not in text
    assert QUEUE not in text or QUEUE in str(case.body), "only what was said may be said again"
    if who in ("guesser", "nobody"):
        assert response.status_code in (400, 401, 403, 404, 405, 406, 413, 415), who
    elif who == "reader" or (who == "token" and operation.name in MAKES):
        assert response.status_code >= 400, who
    if response.status_code == 201:
        assert who == "administrator"
        scene.secrets.add(response.json()["secret_access_key"])
    if (case.path_parameters or {}).get("key") == scene.victim.first.key_id:
        assert response.status_code >= 400, who
        if who == "administrator" and case.meta.generation.mode is GenerationMode.POSITIVE:
            assert (404, "key_not_found") == (response.status_code, response.json()["code"])
    if operation.name == "listKeys" and response.status_code == 200:
        assert scene.victim.first.key_id not in text


def check_token(scene: Scene, token: str) -> None:
    """A token reaches nothing outside of its own account, whatever queues it names."""
    import requests  # noqa: PLC0415 - what schemathesis asks with

    for path in ("/queues", f"/queues/{QUEUE}/messages", f"/queues/{QUEUE}"):
        found = requests.get(f"{scene.gateway.url}/v1{path}", auth=Bearer(token), timeout=30)
        assert found.status_code < 500
        assert BODY not in found.text
        assert found.status_code != 200 or json.loads(found.text) == {"queues": [], "next": None}


@pytest.mark.parametrize(
    ("mode", "operation"),
    [
        pytest.param(mode, one, id=f"{mode.value}-{one.name}")
        for mode, one in KINDS
        if one in OF_KEYS
    ],
)
def test_keys_and_tokens_answer_as_described_and_give_nothing_away(
    scene: Scene, operation: Any, mode: GenerationMode
) -> None:
    described = SCHEMA[f"/v1{operation.path}"][operation.method]
    seen: set[int] = set()

    def run(data: st.DataObject) -> None:
        case = data.draw(described.as_strategy(mode))
        named(case, scene, data.draw)
        for who, auth in scene.callers.items():
            response = case.call(base_url=scene.gateway.url, timeout=30, auth=auth)
            case.validate_response(response, checks=CHECKS)
            check(scene, case, response, who=who, operation=operation)
            seen.add(response.status_code)
            if operation.name == "signToken" and response.status_code == 200:
                check_token(scene, response.json()["token"])
        scene.tidy()

    drawn(20_261_124, st.data(), EXAMPLES, run)
    assert {401, 403} & seen
    if mode is GenerationMode.POSITIVE:
        assert {200, 201, 204} & seen, "the administrator is let in"
