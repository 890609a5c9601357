"""Where a redrive goes: by what the queue itself wrote, and only where its caller may put."""

from __future__ import annotations

from collections.abc import Callable

import httpx
import pytest

import cassieq_spark as cassieq
from cassieq_spark.testing import wait_until
from tests.fixtures.accounts import Account, arn_of
from tests.fixtures.ui import SESSION, Visitor, text_of
from tests.server.conftest import Gateway, sqs_at
from tests.server.test_rest_auth import SignedBy
from tests.server.test_rest_queues import problem

Key = tuple[str, str]


class Place:
    """Queues of an account: two whose dead letters lie in ``open-dead``, and what is there."""

    def __init__(self, client: cassieq.Client, account: str) -> None:
        self.dead = client.create_queue(f"{account}/open-dead", linger=0)
        self.sources = [
            client.create_queue(
                f"{account}/{name}", linger=0, max_deliveries=9, dead_letter_queue=self.dead.name
            )
            for name in ("open-orders", "vault-orders")
        ]
        # As a producer of an older release could write it at a door.
        self.dead.put(b"planted", headers={"cassieq-source-queue": self.sources[1].name})
        orders = self.sources[0]
        orders.put(b"died")
        orders.reject(orders.get(1, wait=5), reason="bad")
        client.repair(orders.name)

    @property
    def visible(self) -> list[int]:
        """In the dead-letter queue, and in each of its sources."""
        return [one.stats().visible for one in (self.dead, *self.sources)]


@pytest.fixture
def place(client: cassieq.Client, account: Account) -> Place:
    return Place(client, account.name)


def by_rest(guarded: Gateway, key: Key) -> str:
    with httpx.Client(base_url=f"{guarded.url}/v1", auth=SignedBy(key), timeout=60) as rest:
        return rest.post("/queues/open-dead/redrive", json={}).raise_for_status().text


def by_a_task(guarded: Gateway, key: Key) -> str:
    sqs = sqs_at(guarded.url, key=key)
    arn = arn_of(sqs, sqs.get_queue_url(QueueName="open-dead")["QueueUrl"])
    sqs.start_message_move_task(SourceArn=arn)

    def ended() -> list[str]:
        tasks = sqs.list_message_move_tasks(SourceArn=arn)["Results"]
        return [one.get("FailureReason", "all") for one in tasks if one["Status"] != "RUNNING"]

    (why,) = wait_until(ended, deadline_s=30)
    sqs.close()
    return why


def on_the_page(guarded: Gateway, key: Key) -> str:
    with Visitor(guarded.url) as visitor:
        visitor.log_in(key)
        visitor.get("/ui/queues/open-dead/dead-letters")
        return text_of(
            visitor.post("/ui/queues/open-dead/redrive", {"all": "true", "sure": "true"})
        )


DOORS = pytest.mark.parametrize("door", [by_rest, by_a_task, on_the_page])


@DOORS
def test_a_redrive_goes_only_where_its_caller_may_put(
    guarded: Gateway, account: Account, place: Place, door: Callable[[Gateway, Key], str]
) -> None:
    said = door(guarded, account.key_for("redrive,read,info,put", "open-*"))

    assert [1, 1, 0] == place.visible
    assert "may not put messages into the queue that their headers name" in said
    assert "vault" not in said


@DOORS
def test_a_redrive_without_any_right_to_put_moves_nothing(
    guarded: Gateway, account: Account, place: Place, door: Callable[[Gateway, Key], str]
) -> None:
    door(guarded, account.key_for("redrive,read,info"))
    assert [2, 0, 0] == place.visible


@DOORS
def test_what_an_older_release_has_stored_goes_where_its_caller_may_put(
    guarded: Gateway, account: Account, place: Place, door: Callable[[Gateway, Key], str]
) -> None:
    door(guarded, account.key)
    assert [0, 1, 1] == place.visible


def test_a_token_that_a_session_is_not_puts_only_where_it_says_so(
    guarded: Gateway, account: Account, place: Place, client: cassieq.Client
) -> None:
    """The page's own sessions leave the right to put out; a token that somebody made means it."""
    with Visitor(guarded.url) as visitor:
        token = account.token("redrive,read,info", "open-*", now_us=client.now_us())
        visitor.http.cookies.set(SESSION, token)
        visitor.get("/ui/queues/open-dead/dead-letters")
        visitor.post("/ui/queues/open-dead/redrive", {"all": "true", "sure": "true"})
    assert [2, 0, 0] == place.visible


OWN = ("cassieq-source-queue", "Cassieq-History", "cassieq-body-encoding", "cassieq-group")


@pytest.mark.parametrize("name", OWN)
def test_no_producer_at_a_door_writes_a_header_that_the_queue_writes(
    rest: httpx.Client, queue: str, name: str
) -> None:
    one = {"body": "x", "headers": {"fine": "1", name: "vault"}}
    raw = {f"Cassieq-Header-{name}": "vault"}
    answers = (
        rest.post(f"{queue}/messages/batch", json={"messages": [{"body": "y"}, one]}),
        rest.post(f"{queue}/messages", headers=raw, content=b"x"),
    )
    for answer in answers:
        assert (400, "option_invalid") == problem(answer)[:2]
        assert name.lower() in answer.json()["detail"].lower()
    assert {"messages": []} == rest.post(f"{queue}/messages/next").json()


def test_a_program_copies_a_dead_letter_and_it_is_redriven(
    client: cassieq.Client, account: Account, place: Place, guarded: Gateway
) -> None:
    """Whoever reaches Cassandra writes any header: a copy goes where the letter would."""
    (letter,) = [one for one in place.dead.peek(10) if one.body == b"died"]
    place.dead.put(b"copy", headers=letter.headers)
    by_rest(guarded, account.key)
    assert [0, 2, 1] == place.visible
    assert {b"died", b"copy"} == {one.body for one in client.queue(place.sources[0].name).peek(10)}
