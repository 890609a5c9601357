"""The page: who gets in, what of other accounts is there, and what a form of another site does."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator

import httpx
import pytest

import cassieq_spark as cassieq
from cassieq_spark.model.rights import Right
from cassieq_spark.server.operations import PAGES
from cassieq_spark.server.ui.page import Form
from cassieq_spark.store import portal
from tests.fixtures.accounts import HOUR_US, Account, all_but, pair
from tests.fixtures.ui import SESSION, Visitor, problem_of, text_of
from tests.server.conftest import Gateway

OF_A_QUEUE = [one for one in PAGES if "{queue}" in one.path]


@pytest.fixture
def visitor(guarded: Gateway) -> Iterator[Visitor]:
    """Somebody who is not logged in."""
    with Visitor(guarded.url) as one:
        yield one


@pytest.fixture
def orders(client: cassieq.Client, account: Account) -> cassieq.Queue:
    """A queue of the account; it goes with the account."""
    return client.create_queue(f"{account.name}/orders", linger=0, visibility_timeout=60)


def test_a_key_opens_the_queues_of_its_account(
    visitor: Visitor, account: Account, orders: cassieq.Queue
) -> None:
    orders.put_many([b"1", b"2", b"3"])
    assert orders.get(1)
    asked = visitor.get("/ui/")
    assert (303, "/ui/login?next=%2Fui%2F") == (asked.status_code, asked.headers["location"])

    entered = visitor.log_in(account.key, "/ui/?prefix=or")

    assert (303, "/ui/?prefix=or") == (entered.status_code, entered.headers["location"])
    shown = visitor.get("/ui/?prefix=or")
    assert 200 == shown.status_code
    assert "orders 2 1 0 0" in text_of(shown)
    assert account.name in text_of(shown)


def test_the_cookie_holds_no_secret_and_no_right_that_the_page_does_not_need(
    visitor: Visitor, guarded: Gateway, account: Account, orders: cassieq.Queue
) -> None:
    cookie = visitor.log_in(account.key).headers["set-cookie"]

    assert {"httponly", "samesite=strict", "path=/ui", "max-age=28800"} <= {
        one.strip().lower() for one in cookie.split(";")
    }
    session = visitor.session
    assert session is not None
    assert account.key[1] not in session
    parts = [base64.urlsafe_b64decode(f"{part}==") for part in session.split(".")]
    assert all(account.key[1].encode() not in part for part in parts)
    rights = json.loads(parts[1])["grants"][0]["rights"]
    assert ["delete", "info", "read", "redrive"] == rights
    put = httpx.post(
        f"{guarded.url}/v1/queues/orders/messages",
        content=b"x",
        headers={"Authorization": f"Bearer {session}"},
    )
    assert (403, "access_denied") == (put.status_code, put.json()["code"])
    assert 0 == orders.stats().visible


@pytest.mark.parametrize(
    ("key_id", "secret"),
    [
        ("own", "x" * 40),
        ("CQAK" + "A" * 16, "own"),
        ("", ""),
        ("<script>alert(1)</script>", "'\"><img src=x>"),
        ("CQAK\u00e4", "\ud7ff"),
        ("a" * 500, "b" * 500),
    ],
)
def test_a_wrong_key_and_a_wrong_secret_are_told_alike(
    visitor: Visitor, account: Account, key_id: str, secret: str
) -> None:
    own_id, own_secret = account.key
    key = (key_id.replace("own", own_id), secret.replace("own", own_secret))

    refused = visitor.log_in(key)

    assert 401 == refused.status_code
    assert "The access key id or the secret is wrong" in text_of(refused)
    assert own_secret not in refused.text
    assert "<script>alert" not in refused.text
    assert visitor.session is None


def test_a_login_leads_to_pages_of_ours_only(visitor: Visitor, account: Account) -> None:
    for path in ("https://evil.example/", "//evil.example", "/ui//../..\\evil", "/v1/queues"):
        entered = visitor.log_in(account.key, path)
        assert (303, "/ui/") == (entered.status_code, entered.headers["location"]), path


def test_a_session_ends_by_time_by_logout_and_with_its_key(
    visitor: Visitor, account: Account, client: cassieq.Client
) -> None:
    old = account.token("info", now_us=client.now_us() - 9 * HOUR_US, lasts_us=8 * HOUR_US)
    visitor.http.cookies.set(SESSION, old, domain="127.0.0.1", path="/ui")
    ended = visitor.get("/ui/")
    assert "/ui/login?next=%2Fui%2F&ended=true" == ended.headers["location"]
    assert "The session has ended" in text_of(visitor.get(ended.headers["location"]))
    assert visitor.session is None

    visitor.log_in(account.key)
    assert 200 == visitor.get("/ui/").status_code
    copied = visitor.session or ""
    assert "/ui/login" == visitor.post("/ui/logout").headers["location"]
    assert visitor.session is None
    assert 303 == visitor.get("/ui/").status_code
    # No gateway keeps sessions, and the page says what that means.
    assert "a copy of its cookie, if somebody has one, does not end before" in text_of(
        visitor.get("/ui/login")
    )
    visitor.http.cookies.set(SESSION, copied, domain="127.0.0.1", path="/ui")
    assert 200 == visitor.get("/ui/").status_code

    # Keys are kept for ten seconds: the gateway has not seen these before.
    kept, deleted = (account.new_key(*all_but(Right.PUT)) for _ in range(2))
    portal.run(account.admin.delete_key(account.name, deleted.key_id))
    for key, status in ((kept, 200), (deleted, 303)):
        session = account.token("info", now_us=client.now_us(), key=key)
        visitor.http.cookies.set(SESSION, session, domain="127.0.0.1", path="/ui")
        assert status == visitor.get("/ui/").status_code


def test_each_page_asks_for_its_right(
    guarded: Gateway, account: Account, orders: cassieq.Queue
) -> None:
    assert orders.name
    keys = {
        one: pair(account.new_key(*all_but(one))) for one in {one.right for one in PAGES} if one
    }
    for page in PAGES:
        if page.right is None:
            continue
        path = "/ui" + page.path.format(queue="orders", schedule="x")
        with Visitor(guarded.url) as lacking:
            lacking.log_in(keys[page.right])
            if page.method == "GET":
                refused = lacking.get(path)
            else:
                # A form needs a page before it: any one of the session has the same mark.
                lacking.get("/ui/login")
                refused = lacking.http.post(path, data=_fields(page.parameters, lacking.csrf))
            assert (403, "access_denied") == problem_of(refused), page.name
            assert f"lacks the right '{page.right.value}'" in text_of(refused), page.name


def _fields(model: type, csrf: str) -> dict[str, str]:
    assert issubclass(model, Form)
    needed = {name: "x" for name, field in model.model_fields.items() if field.is_required()}
    return {**needed, "csrf": csrf}


def test_queues_of_other_accounts_and_of_none_do_not_exist(
    visitor: Visitor,
    new_account: Callable[[], Account],
    account: Account,
    client: cassieq.Client,
    queue_name: str,
) -> None:
    theirs = new_account()
    client.create_queue(f"{theirs.name}/secret-plans")
    client.create_queue(queue_name)
    visitor.log_in(account.key)

    assert "secret-plans" not in visitor.get("/ui/").text
    assert queue_name not in visitor.get("/ui/").text
    for page in OF_A_QUEUE:
        if page.method != "GET":
            continue
        for name in ("secret-plans", queue_name, f"{theirs.name}%2Fsecret-plans", "..%2F.."):
            status, code = problem_of(visitor.get("/ui" + page.path.replace("{queue}", name)))
            assert (status, code) in {(404, "queue_not_found"), (404, "not_found"),
                                      (400, "option_invalid")}, (page.name, name)  # fmt: skip


def test_a_form_needs_the_mark_of_this_visitor(
    visitor: Visitor, guarded: Gateway, account: Account
) -> None:
    with Visitor(guarded.url) as other:
        other.get("/ui/login")
        foreign = other.csrf
    key = {"access_key_id": account.key[0], "secret": account.key[1]}
    visitor.get("/ui/login")
    for mark in (foreign, "", "0" * 64, "\u00e4"):
        refused = visitor.http.post("/ui/login", data={**key, "csrf": mark})
        assert (403, "forbidden") == problem_of(refused), mark
    bare = httpx.post(f"{guarded.url}/ui/login", data={**key, "csrf": visitor.csrf})
    assert (403, "forbidden") == problem_of(bare)
    assert visitor.session is None

    visitor.log_in(account.key)
    for mark in (foreign, ""):
        assert (403, "forbidden") == problem_of(
            visitor.http.post("/ui/logout", data={"csrf": mark})
        )
    assert visitor.session is not None


def test_a_queue_is_paused_and_resumed_by_a_key_that_may(
    visitor: Visitor, account: Account, orders: cassieq.Queue
) -> None:
    """A session has no right to create, so the page asks the key that has logged in."""
    visitor.log_in(account.key_for("info"))
    assert "/pause" not in visitor.get("/ui/queues/orders").text
    visitor.http.cookies.clear()
    visitor.log_in(account.key)
    page = visitor.get("/ui/queues/orders")
    assert "/ui/queues/orders/pause" in page.text
    assert 303 == visitor.post("/ui/queues/orders/pause").status_code
    assert (0,) == orders.paused()
    visitor.get("/ui/queues/orders")
    assert 303 == visitor.post("/ui/queues/orders/resume").status_code
    assert () == orders.paused()

    visitor.http.cookies.clear()
    visitor.log_in(account.key_for("info,put"))
    visitor.get("/ui/queues/orders")
    refused = visitor.http.post("/ui/queues/orders/pause", data={"csrf": visitor.csrf})
    assert (403, "access_denied") == problem_of(refused)
    assert () == orders.paused()


def test_each_form_needs_the_mark_and_a_login(
    guarded: Gateway, visitor: Visitor, account: Account, orders: cassieq.Queue
) -> None:
    orders.put(b"x")
    visitor.log_in(account.key)
    visitor.get("/ui/")
    for page in PAGES:
        path = "/ui" + page.path.format(queue="orders", schedule="x")
        if page.method == "POST":
            fields = {**_fields(page.parameters, "0" * 64), "name": "orders", "sure": "true"}
            known = {name: fields[name] for name in page.parameters.model_fields if name in fields}
            assert (403, "forbidden") == problem_of(visitor.http.post(path, data=known)), page.name
            if not page.is_open:
                with Visitor(guarded.url) as nobody:
                    nobody.get("/ui/login")
                    known["csrf"] = nobody.csrf
                    refused = nobody.http.post(path, data=known)
                    assert (403, "forbidden") == problem_of(refused), page.name
        elif not page.is_open:
            asked = httpx.get(f"{guarded.url}{path}")
            assert 303 == asked.status_code, page.name
            assert asked.headers["location"].startswith("/ui/login?next="), page.name
    assert 1 == orders.stats().visible
    assert visitor.session is not None


def test_a_link_on_another_site_asks_for_the_cookie_once_more(visitor: Visitor) -> None:
    """A browser does not send a strict cookie along with such a link."""
    shown = visitor.get("/ui/?prefix=a", headers={"Sec-Fetch-Site": "cross-site"})
    assert 200 == shown.status_code
    assert '<meta http-equiv="refresh" content="0; url=/ui/?prefix=a">' in shown.text


def test_every_answer_keeps_scripts_frames_and_caches_away(
    visitor: Visitor, account: Account
) -> None:
    visitor.log_in(account.key)
    for path in ("/ui/", "/ui/login", "/ui/nothing", "/ui/?x=1", "/ui/queues/none"):
        found = visitor.get(path).headers
        policy = found["content-security-policy"]
        assert policy.startswith("default-src 'none'; style-src 'self'"), path
        assert "unsafe" not in policy
        assert "script-src" not in policy
        assert "frame-ancestors 'none'" in policy
        assert ("no-store", "nosniff", "DENY", "same-origin") == tuple(
            found[name]
            for name in (
                "cache-control",
                "x-content-type-options",
                "x-frame-options",
                "referrer-policy",
            )
        ), path


def test_files_are_ours_and_kept(local: Visitor) -> None:
    for name, media_type in (("style.css", "text/css"), ("icon.svg", "image/svg+xml")):
        found = local.get(f"/ui/{name}")
        assert 200 == found.status_code
        assert found.headers["content-type"].startswith(media_type)
        assert "max-age" in found.headers["cache-control"]
    assert (404, "not_found") == problem_of(local.get("/ui/../ui/render.py"))


def test_wrong_requests_are_pages_with_a_code(local: Visitor) -> None:
    cases = {
        "/ui/nothing": (404, "not_found"),
        "/ui/?what=1": (400, "option_unknown"),
        "/ui/?prefix=%ff": (400, "option_invalid"),
        "/ui/logout": (405, "method_not_allowed"),
    }
    for path, expected in cases.items():
        shown = local.get(path)
        assert expected == problem_of(shown), path
        assert "Traceback" not in shown.text
    local.get("/ui/login")
    posted = local.http.post("/ui/", data={})
    assert (405, "method_not_allowed") == problem_of(posted)
    assert (415, "unsupported_media_type") == problem_of(
        local.http.post("/ui/logout", json={"csrf": "x"})
    )
    assert (413, "content_too_large") == problem_of(
        local.http.post("/ui/logout", data={"csrf": "x" * 70_000})
    )


def test_without_accounts_there_is_no_login_and_only_known_hosts_are_shown_it(
    local: Visitor,
) -> None:
    assert (303, "/ui/") == (
        (found := local.get("/ui")).status_code, found.headers["location"]
    )  # fmt: skip
    shown = local.get("/ui/")
    assert 200 == shown.status_code
    assert "Log out" not in shown.text
    assert "/ui/" == local.get("/ui/login").headers["location"]
    for host in ("evil.example", "127.0.0.1.evil.example", "", "[::1"):
        refused = local.get("/ui/", headers={"Host": host})
        assert (403, "forbidden") == problem_of(refused), host
    for host in ("localhost:8080", "127.0.0.1", "127.8.9.1:1", "[::1]:80", "LOCALHOST", "10.0.0.1"):
        assert 200 == local.get("/ui/", headers={"Host": host}).status_code, host


def test_over_tls_the_cookie_is_this_hosts_alone(visitor: Visitor) -> None:
    """As a proxy on this machine says it: the gateway has the same answer with a certificate."""
    found = visitor.get("/ui/login", headers={"X-Forwarded-Proto": "https"})
    cookie = found.headers["set-cookie"]
    assert cookie.startswith("__Host-cassieq-ui-forms=")
    assert {"secure", "path=/", "httponly", "samesite=strict"} <= {
        one.strip().lower() for one in cookie.split(";")
    }


def test_the_login_warns_of_a_connection_that_others_can_read(visitor: Visitor) -> None:
    """Addresses and schemes as a proxy on this machine says them."""
    far = {"X-Forwarded-For": "203.0.113.9"}
    for headers, expected in (
        ({}, False),
        (far, True),
        ({**far, "X-Forwarded-Proto": "https"}, False),
    ):
        shown = text_of(visitor.get("/ui/login", headers=headers))
        assert expected == ("others on the network can read the secret" in shown), headers
