"""The REST door: schedules, at the address of the queue that they put messages into."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from typing import Any

import httpx
import pytest

import cassieq_spark as cassieq
from cassieq_spark.model.moments import time_of
from cassieq_spark.store import portal
from tests.fixtures.accounts import Account
from tests.server.conftest import Gateway
from tests.server.test_rest_auth import SignedBy
from tests.server.test_rest_queues import problem

pytestmark = pytest.mark.invariant("I11")

DAILY = {"cron": "30 2 * * *", "timezone": "Europe/Berlin", "body": "nightly", "tag": "t"}


@pytest.fixture
def schedules(queue: str, client: cassieq.Client) -> Iterator[str]:
    """The path of the schedules of a queue; all of them are deleted at the end."""
    yield f"{queue}/schedules"
    for one in client.schedules.list(queue.rpartition("/")[2]):
        client.schedules.delete(one.name)


def test_a_schedule_is_created_shown_altered_paused_run_and_deleted(
    rest: httpx.Client, queue: str, schedules: str, client: cassieq.Client, name: str
) -> None:
    path, own = f"{schedules}/{name[:40]}-r", f"{name[:40]}-r"
    created = rest.put(path, json={**DAILY, "headers": {"a": "b"}, "ttl": 60})
    assert 201 == created.status_code, created.text
    shown = created.json()
    assert {"name": own, "queue": name, "status": "active", "every": None, "ttl": 60}.items() <= (
        shown.items()
    )
    assert ("nightly", "text", "t", {"a": "b"}) == tuple(
        shown[one] for one in ("body", "encoding", "tag", "headers")
    )
    again = rest.put(path, json={**DAILY, "headers": {"a": "b"}, "ttl": 60})
    assert (200, shown) == (again.status_code, again.json())
    other = rest.put(path, json={"every": 60})
    assert (409, "schedule_exists", None) == problem(other)

    times = rest.get(f"{path}/times", params={"count": 3}).json()["times"]
    assert 3 == len(times)
    assert all("T02:30:00+0" in one for one in times)

    altered = rest.patch(
        path, json={"every": 3600, "tag": None, "body": "/w==", "encoding": "base64"}
    )
    assert (None, 3600, None, "/w==", "base64") == tuple(
        altered.json()[one] for one in ("cron", "every", "tag", "body", "encoding")
    )
    assert altered.json() == rest.get(path).json()
    assert client.schedules.get(own).body == b"\xff"
    assert "paused" == rest.post(f"{path}/pause").json()["status"]
    assert {"times": []} == rest.get(f"{path}/times").json()
    slot = rest.post(f"{path}/run").json()["slot"]
    (got,) = rest.post(f"{queue}/messages/next", params={"wait": 5}).json()["messages"]
    assert (slot, own) == (got["headers"]["cassieq-slot"], got["headers"]["cassieq-schedule"])
    assert "active" == rest.post(f"{path}/resume").json()["status"]
    now = time_of(client.now_us())
    past = {"begin": (now - timedelta(hours=1)).isoformat(), "end": now.isoformat()}
    assert {"put": 1} == rest.post(f"{path}/backfill", json=past).json()

    assert 204 == rest.delete(path).status_code
    for gone in (rest.get(path), rest.delete(path), rest.post(f"{path}/run")):
        assert (404, "schedule_not_found", None) == problem(gone)


def test_schedules_are_listed_in_pages_without_what_they_put(
    rest: httpx.Client, schedules: str, name: str
) -> None:
    names = [f"{name[:40]}-{one}" for one in "abc"]
    for one in names:
        assert 201 == rest.put(f"{schedules}/{one}", json=DAILY).status_code
    first = rest.get(schedules, params={"max_schedules": 2}).json()
    assert (names[:2], names[1]) == ([one["name"] for one in first["schedules"]], first["next"])
    assert {None} == {
        one[what] for one in first["schedules"] for what in ("body", "tag", "headers")
    }
    last = rest.get(schedules, params={"after": first["next"]}).json()
    assert (names[2:], None) == ([one["name"] for one in last["schedules"]], last["next"])


def test_a_schedule_is_not_at_the_address_of_another_queue(
    rest: httpx.Client, schedules: str, name: str
) -> None:
    own, other = f"{name[:40]}-o", f"/queues/{name[:60]}-other"
    assert 201 == rest.put(f"{schedules}/{own}", json=DAILY).status_code
    rest.put(other)
    elsewhere = f"{other}/schedules/{own}"
    for found in (
        rest.get(elsewhere),
        rest.patch(elsewhere, json={"tag": "x"}),
        rest.delete(elsewhere),
        *(rest.post(f"{elsewhere}/{one}") for one in ("pause", "resume", "run")),
        rest.get(f"{elsewhere}/times"),
    ):
        assert (404, "schedule_not_found", None) == problem(found)
    assert (409, "schedule_exists", None) == problem(rest.put(elsewhere, json=DAILY))
    assert "active" == rest.get(f"{schedules}/{own}").json()["status"]
    rest.delete(other)
    missing = rest.put(f"/queues/{name[:60]}-no/schedules/{own}-2", json=DAILY)
    assert (404, "queue_not_found", None) == problem(missing)


@pytest.mark.parametrize(
    ("given", "problem_of_it"),
    [
        ({}, ("one of cron, every, at", None)),
        ({"cron": "* * * * *", "every": 60}, ("was given cron and every", None)),
        ({"cron": "1 2 3"}, ("it has 3 fields", None)),
        ({"cron": "x" * 60_000}, ("fields", None)),
        ({"cron": 5}, ("valid string", "cron")),
        ({"cron": "* * * * *", "timezone": "../../etc/passwd"}, ("IANA", None)),
        ({"every": 0.5}, ("every is 0.5", "every")),
        ({"every": 1e300}, ("every is 1e+300", "every")),
        ({"every": 60, "lunar": True}, ("not a field", "lunar")),
        ({"at": "2030-01-01T00:00"}, ("time zone", "at")),
        ({"at": "1990-01-01T00:00Z"}, ("no time to come", None)),
        ({"every": 60, "count": 0}, ("count is 0", "count")),
        ({"every": 1, "horizon": 86_400}, ("too many times", None)),
        ({"every": 60, "misfire": "panic"}, ("misfire is 'panic'", "misfire")),
        ({"every": 60, "catch_up": 501}, ("catch_up is 501", "catch_up")),
        ({"every": 60, "priority": 16}, ("priority is 16", "priority")),
        ({"every": 60, "headers": {"cassieq-slot": "x"}}, ("only the queue writes", "headers")),
        ({"every": 60, "body": "?", "encoding": "base64"}, ("not base64", "body")),
        ({"every": 60, "body": "x" * 65_537}, ("65,537 bytes", None)),
        ({"every": 60, "tag": "\ud800"}, ("", None)),
    ],
)
def test_what_is_wrong_with_a_definition_is_named_and_nothing_is_written(
    rest: httpx.Client, schedules: str, name: str, given: dict[str, Any], problem_of_it: Any
) -> None:
    path, (says, field) = f"{schedules}/{name[:40]}-bad", problem_of_it
    refused = rest.put(path, content=_json(given), headers={"Content-Type": "application/json"})
    status, _, named = problem(refused)
    assert (400, field) == (status, named if field else None), refused.text
    assert says in refused.json()["detail"]
    assert 404 == rest.get(path).status_code


def test_a_body_may_have_all_of_the_limit(rest: httpx.Client, schedules: str, name: str) -> None:
    path = f"{schedules}/{name[:40]}-large"
    made = rest.put(path, json={**DAILY, "tag": None, "body": "x" * 65_536})
    assert (201, 65_536) == (made.status_code, len(made.json()["body"]))
    altered = rest.patch(path, json={"tag": "y"})
    assert (400, "option_invalid", None) == problem(altered)
    assert made.json() == rest.get(path).json()


@pytest.mark.parametrize("bad", ["a%20b", "x" * 201, "%00", "a%2Fb", "..%2F..%2Fqueues", "%ff"])
def test_a_hostile_name_reaches_nothing(rest: httpx.Client, schedules: str, bad: str) -> None:
    for found in (rest.put(f"{schedules}/{bad}", json=DAILY), rest.get(f"{schedules}/{bad}")):
        assert found.status_code in (400, 404)
    assert [] == rest.get(schedules).json()["schedules"]


# --- accounts -------------------------------------------------------------------------------------


@pytest.fixture
def as_key(guarded: Gateway) -> Iterator[Callable[[tuple[str, str]], httpx.Client]]:
    made: list[httpx.Client] = []

    def make(key: tuple[str, str]) -> httpx.Client:
        made.append(httpx.Client(base_url=f"{guarded.url}/v1", auth=SignedBy(key), timeout=60))
        return made[-1]

    yield make
    for one in made:
        one.close()


def test_a_schedule_belongs_to_the_account_of_its_queue_and_ends_with_it(
    as_key: Callable[[tuple[str, str]], httpx.Client],
    new_account: Callable[[], Account],
    client: cassieq.Client,
) -> None:
    mine, theirs = new_account(), new_account()
    own, other = as_key(mine.key), as_key(theirs.key)
    for one in (own, other):
        assert 201 == one.put("/queues/orders", json={"settings": {"linger": 0}}).status_code
    path = "/queues/orders/schedules/report"
    made = own.put(path, json={"every": 3600, "body": "secret"})
    assert (201, "report", "orders") == (
        made.status_code, made.json()["name"], made.json()["queue"],
    )  # fmt: skip
    assert f"{mine.name}/report" == client.schedules.get(f"{mine.name}/report").name
    assert 404 == other.get(path).status_code
    assert {"schedules": [], "next": None} == other.get("/queues/orders/schedules").json()

    looking = as_key(mine.key_for("info"))
    seen = looking.get(path).json()
    assert ("report", None, None) == (seen["name"], seen["body"], seen["headers"])
    assert "secret" == as_key(mine.key_for("info,read")).get(path).json()["body"]

    begun = datetime.fromisoformat(made.json()["start"])
    assert begun <= time_of(client.now_us())
    portal.run(mine.admin.delete(mine.name, with_queues=True))
    assert [] == [one for one in client.schedules.list() if one.name.startswith(mine.name)]
    assert f"{mine.name}/report" not in client.schedules.dispatch().problems
    portal.run(mine.admin.create(mine.name, mine.master_key))  # for the fixture, which deletes it


def _json(given: dict[str, Any]) -> bytes:
    return json.dumps(given).encode()
