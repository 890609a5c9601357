"""The page under requests that hypothesis makes up: never a 500, a secret, or another account."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import cassieq_spark as cassieq
from cassieq_spark.server.operations import PAGES
from cassieq_spark.testing import EmbeddedCassandra
from tests.fixtures.accounts import Account
from tests.fixtures.commands import CommandLine, end
from tests.fixtures.ui import SESSION, Visitor
from tests.server.conftest import Gateway, start_gateway, victimised

BODY = "the victim's message"
MARK = "<zz>"
"""In every text that is made up; no page may have it as it is."""


class Scene:
    def __init__(self, gateway: Gateway, stranger: Account, victim: Account) -> None:
        self.gateway, self.stranger, self.victim = gateway, stranger, victim
        self.visitor = Visitor(gateway.url)
        self.visitor.log_in(stranger.key)
        self.visitor.get("/ui/")
        self.csrf = self.visitor.csrf

    def check(self, answer: httpx.Response) -> None:
        assert answer.status_code < 500, (answer.status_code, answer.text)
        for hidden in (BODY, MARK, self.stranger.key[1], self.victim.key[1], "Traceback"):
            assert hidden not in answer.text
        if answer.status_code == 303:
            assert answer.headers["location"].startswith("/ui/")
        elif (404, "Not Found") != (answer.status_code, answer.text):
            # That one is no page: a path with a line break leads to no door.
            assert "default-src 'none'" in answer.headers["content-security-policy"]


@pytest.fixture(scope="module")
def scene(
    cassandra: EmbeddedCassandra, client: cassieq.Client, master_key_file: Path
) -> Iterator[Scene]:
    with victimised(cassandra, client, master_key_file, BODY) as (gateway, stranger, victim):
        client.create_queue(f"{stranger.name}/own", linger=0).put(MARK.encode(), tag=MARK)
        made = Scene(gateway, stranger, victim)
        yield made
        made.visitor.http.close()


TEXT = st.text(max_size=20).map(lambda text: text + MARK) | st.sampled_from(
    ["own", "orders", "", "x", "true", "1", "auto", "hex", MARK, "2026-01-01", "9" * 30]
)
NAMES = sorted({name for page in PAGES for name in page.parameters.model_fields} - {"csrf"})


@settings(max_examples=150)
@given(
    page=st.sampled_from(PAGES), queue=TEXT, given_=st.dictionaries(st.sampled_from(NAMES), TEXT)
)
def test_no_query_and_no_form_does_any_harm(
    scene: Scene, page: Any, queue: str, given_: dict[str, str]
) -> None:
    if page.name == "logOut":
        return  # it would end the session of the others
    text = quote(queue, safe="") or "none"
    path = "/ui" + page.path.replace("{queue}", text).replace("{schedule}", text)
    known = {name: text for name, text in given_.items() if name in page.parameters.model_fields}
    for fields in (given_, known):
        # One that purges its own queue, or deletes it, may do so: all others are left alone.
        if page.method == "GET":
            scene.check(scene.visitor.http.get(path, params=fields))
        else:
            scene.check(scene.visitor.http.post(path, data={**fields, "csrf": scene.csrf}))


@settings(max_examples=100)
@given(
    cookie=st.text(st.characters(min_codepoint=33, max_codepoint=126, exclude_characters=";")),
    path=st.text(st.characters(min_codepoint=33, max_codepoint=126, exclude_characters="?#")),
)
@example(cookie="a.b.c", path="queues/orders")
@example(cookie="", path="/..//login")
def test_no_cookie_and_no_path_opens_anything(scene: Scene, cookie: str, path: str) -> None:
    answer = httpx.get(
        f"{scene.gateway.url}/ui/{quote(path)}", headers={"Cookie": f"{SESSION}={cookie}"}
    )
    scene.check(answer)
    assert answer.status_code in (200, 303, 400, 404, 405)
    assert "Log out" not in answer.text


def test_a_page_waits_for_cassandra_with_an_error_that_says_so() -> None:
    started = start_gateway(CommandLine("127.0.0.1:1"), "--no-repair")
    try:
        answer = httpx.get(f"{started.url}/ui/", timeout=30)
        assert (503, "1") == (answer.status_code, answer.headers["retry-after"])
        assert "store_unavailable" in answer.text
        assert 200 == httpx.get(f"{started.url}/ui/style.css").status_code
    finally:
        started.kill()
        end(started.process)
