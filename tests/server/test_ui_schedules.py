"""The page of schedules: what is late, and pause, resume and run."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

import cassieq_spark as cassieq
from tests.fixtures.accounts import Account
from tests.fixtures.ui import Visitor, problem_of, text_of
from tests.server.conftest import Gateway

pytestmark = pytest.mark.invariant("I11")


@pytest.fixture
def visitor(guarded: Gateway) -> Iterator[Visitor]:
    with Visitor(guarded.url) as one:
        yield one


@pytest.fixture
def schedule(account: Account, client: cassieq.Client) -> str:
    """A schedule of a queue of the account; both end with it."""
    client.create_queue(f"{account.name}/orders", linger=0)
    name = f"{account.name}/report"
    client.schedules.create(
        name, queue=f"{account.name}/orders", cron="30 2 * * *", timezone="Europe/Berlin",
        body=b"<b>secret</b>",
    )  # fmt: skip
    return name


def test_a_schedule_is_shown_paused_resumed_and_run(
    visitor: Visitor, account: Account, schedule: str, client: cassieq.Client
) -> None:
    visitor.log_in(account.key)
    page = visitor.get("/ui/schedules")
    assert 200 == page.status_code
    assert "1 schedule. None is late." in text_of(page)
    assert "report orders 30 2 * * * Europe/Berlin active" in text_of(page)
    assert "secret" not in page.text
    path = "/ui/queues/orders/schedules/report"

    gone = visitor.post(f"{path}/pause")
    assert (303, "/ui/schedules?done=pause") == (gone.status_code, gone.headers["location"])
    assert "paused" == client.schedules.get(schedule).status
    page = visitor.get("/ui/schedules?done=pause")
    assert "Europe/Berlin paused" in text_of(page)
    assert "Paused: what was put ahead is taken back." in text_of(page)
    assert f"{path}/resume" in page.text
    assert f"{path}/pause" not in page.text

    assert 303 == visitor.post(f"{path}/run").status_code
    queue = client.queue(f"{account.name}/orders")
    (got,) = queue.get(wait=5)
    assert (b"<b>secret</b>", schedule) == (got.body, got.headers["cassieq-schedule"])
    queue.ack(got)
    visitor.get("/ui/schedules")
    assert 303 == visitor.post(f"{path}/resume").status_code
    assert "active" == client.schedules.get(schedule).status
    last = client.schedules.get(schedule).last_at
    assert last is not None
    assert f"{last:%Y-%m-%d %H:%M:%S}" in text_of(visitor.get("/ui/schedules"))


def test_what_a_key_may_not_do_is_neither_offered_nor_done(
    visitor: Visitor, account: Account, schedule: str, client: cassieq.Client
) -> None:
    for rights, offers in [("info", False), ("info,create", False), ("info,create,put", True)]:
        visitor.http.cookies.clear()
        visitor.log_in(account.key_for(rights))
        page = visitor.get("/ui/schedules")
        assert "report orders" in text_of(page)
        assert offers == ("Pause" in text_of(page))
        done = visitor.post("/ui/queues/orders/schedules/report/pause")
        assert (303 if offers else 403) == done.status_code
    assert "paused" == client.schedules.get(schedule).status
    visitor.http.cookies.clear()
    visitor.log_in(account.key_for("info,create,put", "others"))
    assert "There is no schedule here" in text_of(visitor.get("/ui/schedules"))


def test_nothing_of_another_account_is_shown_or_reached(
    visitor: Visitor,
    new_account: Callable[[], Account],
    schedule: str,
    client: cassieq.Client,
) -> None:
    other = new_account()
    client.create_queue(f"{other.name}/orders")
    visitor.log_in(other.key)
    assert "There is no schedule here" in text_of(visitor.get("/ui/schedules"))
    gone = visitor.post("/ui/queues/orders/schedules/report/pause")
    assert (404, "schedule_not_found") == problem_of(gone)
    assert "active" == client.schedules.get(schedule).status


def test_a_form_of_another_site_and_a_strange_result_are_refused(
    visitor: Visitor, account: Account, schedule: str, client: cassieq.Client
) -> None:
    visitor.log_in(account.key)
    visitor.get("/ui/schedules")
    path = "/ui/queues/orders/schedules/report/pause"
    forged = visitor.post(path, {"csrf": "0" * 64})
    assert 403 == forged.status_code
    assert "active" == client.schedules.get(schedule).status
    assert 400 == visitor.get("/ui/schedules?done=All+is+lost").status_code
