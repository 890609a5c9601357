"""The REST door: receipts, each with its verdict; dead letters and redrive."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import httpx
import pytest

import cassieq_spark as cassieq
from cassieq_spark.entropy import new_uuid
from cassieq_spark.model.receipt import Receipt
from cassieq_spark.testing import wait_until
from tests.server.test_rest_messages import lease
from tests.server.test_rest_queues import problem


def put(rest: httpx.Client, queue: str, *bodies: str) -> None:
    messages = [{"body": one} for one in bodies]
    assert rest.post(f"{queue}/messages/batch", json={"messages": messages}).is_success


def never_handed_out(receipt: str) -> str:
    """A well-formed receipt of the same bucket, for a message that it never had."""
    real = Receipt.decode(receipt)
    return replace(real, lease_id=new_uuid(), first=50_000, last=50_000).encode()


def settle(rest: httpx.Client, queue: str, verb: str, **body: Any) -> list[str]:
    """The verdicts."""
    answer = rest.post(f"{queue}/{verb}", json=body)
    assert 200 == answer.status_code, answer.text
    results = answer.json()["results"]
    assert [one["receipt"] for one in results] == body.get(
        "receipts", [one["receipt"] for one in body.get("updates", [])]
    )
    return [one["verdict"] for one in results]


@pytest.fixture
def other(rest: httpx.Client, queue: str) -> Iterator[str]:
    """A receipt of another queue."""
    path = f"{queue[:100]}-other"
    rest.put(path)
    put(rest, path, "x")
    yield lease(rest, path)[0]["receipt"]
    rest.delete(path)


@pytest.mark.invariant("I3")
def test_each_ack_has_its_verdict(rest: httpx.Client, queue: str, other: str) -> None:
    put(rest, queue, "a", "b", "c")
    first, second, third = (one["receipt"] for one in lease(rest, queue, max_messages=3))
    assert ["released"] == settle(rest, queue, "release", receipts=[third])

    receipts = [first, third, "no receipt", second, other]
    assert ["acked", "stale", "invalid", "acked", "invalid"] == settle(
        rest, queue, "ack", receipts=receipts
    )
    assert ["already_acked", "stale"] == settle(rest, queue, "ack", receipts=[first, third])
    assert ["c"] == [one["body"] for one in lease(rest, queue, max_messages=10)]


def test_one_ack_says_its_verdict_by_the_status(rest: httpx.Client, queue: str, other: str) -> None:
    put(rest, queue, "a", "b")
    first, second = (one["receipt"] for one in lease(rest, queue, max_messages=2))
    settle(rest, queue, "release", receipts=[second])

    assert 204 == rest.delete(f"{queue}/messages/{first}").status_code
    assert 204 == rest.delete(f"{queue}/messages/{first}").status_code
    assert (409, "receipt_expired", None) == problem(rest.delete(f"{queue}/messages/{second}"))
    for wrong in (other, "nothing", "%ff", "A" * 76):
        refused = rest.delete(f"{queue}/messages/{wrong}")
        assert (400, "receipt_invalid", None) == problem(refused)


def test_a_receipt_of_no_delivery_is_invalid_and_the_others_are_settled(
    rest: httpx.Client, queue: str
) -> None:
    put(rest, queue, "a", "b", "c", "d")
    released, rejected, extended, acked = (
        one["receipt"] for one in lease(rest, queue, max_messages=4)
    )
    never = never_handed_out(acked)
    assert problem(rest.delete(f"{queue}/messages/{never}")) == (400, "receipt_invalid", None)

    assert ["extended", "invalid"] == settle(
        rest, queue, "extend", receipts=[extended, never], visibility_timeout=60
    )
    assert ["acked", "invalid"] == settle(rest, queue, "ack", receipts=[acked, never])
    assert ["stale", "released", "invalid"] == settle(
        rest, queue, "release", receipts=[acked, released, never]
    )
    dead = f"{queue[:100]}-dead"
    rest.put(dead)
    rest.patch(queue, json={"settings": {"dead_letter_queue": dead.removeprefix("/queues/")}})
    assert ["rejected", "invalid", "stale"] == settle(
        rest, queue, "reject", receipts=[rejected, never, released]
    )
    rest.delete(dead)


def test_leases_are_extended_and_given_back(rest: httpx.Client, queue: str, other: str) -> None:
    put(rest, queue, "a", "b")
    first, second = (
        one["receipt"] for one in lease(rest, queue, max_messages=2, visibility_timeout=1)
    )

    assert ["extended", "invalid"] == settle(
        rest, queue, "extend", receipts=[first, other], visibility_timeout=600
    )
    assert ["extended"] == settle(rest, queue, "extend", receipts=[second], visibility_timeout=0)
    (again,) = lease(rest, queue, max_messages=2, wait=5)
    assert ("b", 2) == (again["body"], again["delivery_count"])
    assert ["stale"] == settle(rest, queue, "extend", receipts=[second], visibility_timeout=5)


def test_a_release_may_be_delayed_and_not_counted(rest: httpx.Client, queue: str) -> None:
    put(rest, queue, "a", "b")
    first, second = (one["receipt"] for one in lease(rest, queue, max_messages=2))

    assert ["released"] == settle(rest, queue, "release", receipts=[first], count_delivery=False)
    assert ["released"] == settle(rest, queue, "release", receipts=[second], delay=600)
    assert ["stale"] == settle(rest, queue, "release", receipts=[first])
    (again,) = lease(rest, queue, max_messages=2)
    assert ("a", 1) == (again["body"], again["delivery_count"])
    assert 1 == rest.get(f"{queue}/statistics").json()["delayed"]


def test_a_message_is_updated(rest: httpx.Client, queue: str, other: str) -> None:
    put(rest, queue, "a", "b")
    first, second = (one["receipt"] for one in lease(rest, queue, max_messages=2))

    answer = rest.put(f"{queue}/messages/{first}", content=b"\xff")
    assert 200 == answer.status_code
    assert (409, "receipt_expired", None) == problem(
        rest.put(f"{queue}/messages/{first}", content=b"")
    )
    updates = [
        {"receipt": answer.json()["receipt"], "body": "/w==", "encoding": "base64"},
        {"receipt": second, "body": "later", "visibility_timeout": 0},
        {"receipt": first, "body": "too late"},
        {"receipt": other, "body": "elsewhere"},
    ]
    answer = rest.post(f"{queue}/update", json={"updates": updates})
    results = answer.json()["results"]
    assert ["updated", "updated", "stale", "invalid"] == [one["verdict"] for one in results]
    assert results[0]["new_receipt"]
    assert (None, None) == (results[1]["new_receipt"], results[1]["visible_until"])
    assert "receipt_invalid" == results[3]["problem"]["code"]
    assert ["later"] == [one["body"] for one in lease(rest, queue, max_messages=2)]
    nothing = rest.post(f"{queue}/update", json={"updates": [{"receipt": second}]})
    assert "invalid" == nothing.json()["results"][0]["verdict"]


def test_receipts_are_checked_before_anything_is_done(rest: httpx.Client, queue: str) -> None:
    for body in (
        {},
        {"receipts": []},
        {"receipts": "x"},
        {"receipts": [1]},
        {"receipts": ["x"] * 201},
    ):
        assert (400, "option_invalid") == problem(rest.post(f"{queue}/ack", json=body))[:2]
    none = {"receipts": ["x"]}
    assert (404, "queue_not_found", None) == problem(rest.post("/queues/nothing/ack", json=none))
    assert (400, "usage", None) == problem_of_reject(rest, queue)


def problem_of_reject(rest: httpx.Client, queue: str) -> tuple[int, str, str | None]:
    put(rest, queue, "a")
    (got,) = lease(rest, queue)
    return problem(rest.post(f"{queue}/reject", json={"receipts": [got["receipt"]]}))


def test_rejected_messages_are_found_by_reason_and_redriven(
    rest: httpx.Client, queue: str, client: cassieq.Client
) -> None:
    name = queue.rpartition("/")[2]
    dead = f"{queue[:100]}.dead"
    rest.put(dead)
    change = {"settings": {"dead_letter_queue": dead.rpartition("/")[2]}}
    shown = rest.patch(queue, json=change).json()
    assert dead.rpartition("/")[2] == shown["settings"]["dead_letter_queue"]
    put(rest, queue, "a", "b")
    first, second = (one["receipt"] for one in lease(rest, queue, max_messages=2))
    # This gateway sees the change at once.
    assert ["rejected"] == settle(rest, queue, "reject", receipts=[first], reason="no order")
    assert ["rejected"] == settle(rest, queue, "reject", receipts=[second], reason="too old")
    assert ["rejected"] == settle(rest, queue, "reject", receipts=[second])
    client.repair(name)

    def letters(**query: Any) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = rest.get(f"{dead}/dead-letters", params=query).json()[
            "messages"
        ]
        return found

    wait_until(lambda: len(letters()) == 2, deadline_s=20)
    (letter,) = letters(where=["reason=no order", f"source-queue={name}"])
    assert ("a", "no order", name, None) == tuple(
        letter[key] for key in ("body", "reason", "source_queue", "receipt")
    )
    assert [] == letters(before="2020-01-01")
    for wrong in ({"where": "colour=red"}, {"before": "soon"}, {"max_messages": 0}):
        assert (400, "option_invalid") == problem(rest.get(f"{dead}/dead-letters", params=wrong))[
            :2
        ]

    foreseen = rest.post(f"{dead}/redrive", json={"dry_run": True}).json()
    assert (0, {name: 2}) == (foreseen["moved"], foreseen["by_target"])
    done = rest.post(f"{dead}/redrive", json={"where": ["reason=no order"]}).json()
    assert (1, {name: 1}, []) == (done["moved"], done["by_target"], done["problems"])
    assert ["a"] == [one["body"] for one in lease(rest, queue, max_messages=10, wait=5)]
    refused = rest.post(f"{queue}/redrive", json={})
    assert (400, "option_invalid") == problem(refused)[:2]
    assert "no queue names" in refused.json()["detail"]
    missing = rest.post(f"{dead}/redrive", json={"to": "nothing"})
    assert (404, "queue_not_found", None) == problem(missing)
    rest.delete(dead)
