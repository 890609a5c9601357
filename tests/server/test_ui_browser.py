"""The page in a real browser: small, dark, by keyboard alone, without a script, for everybody."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

import cassieq_spark as cassieq
from cassieq_spark.testing import wait_until
from tests.fixtures.accounts import Account
from tests.fixtures.browser import Screen, chromium, needs_chromium, screen
from tests.server.conftest import Gateway

__all__ = ["chromium", "screen"]

pytestmark = needs_chromium

GUIDE = Path(__file__).parents[2] / "docs" / "guides"
MOST_BYTES = 60_000
SHOTS = {
    "queues": "/ui/",
    "queue": "/ui/queues/orders#buckets",
    "dead-letters": "/ui/queues/orders-dead/dead-letters",
}
PATHS = (
    "/ui/",
    "/ui/queues/orders",
    "/ui/queues/orders/messages",
    "/ui/queues/orders-dead/dead-letters",
    "/ui/queues/orders/purge",
    "/ui/queues/orders/delete",
    "/ui/repair",
    "/ui/queues/none",
)


OPEN_ALL = "document.querySelectorAll('details').forEach(one => { one.open = true; })"


class Shop:
    """An account with queues in which something of everything is."""

    def __init__(self, client: cassieq.Client, account: Account) -> None:
        self.account = account
        self.dead = client.create_queue(f"{account.name}/orders-dead", linger=0)
        self.orders = client.create_queue(
            f"{account.name}/orders",
            dead_letter_queue=self.dead.name,
            max_deliveries=5,
            linger=0,
            bucket_size=100,
            visibility_timeout=600,
            labels={"owner": "shop"},
        )
        client.create_queue(f"{account.name}/{'a-very-long-name-' * 8}end", linger=0)
        body = b'{"order": %d, "items": [{"sku": "A-17", "count": 2}], "to": "Ada"}'
        for _ in range(26):
            self.orders.put_many([body % number for number in range(100)], tag="new")
        self.orders.reject(self._got(3), reason="no such customer")
        client.repair(self.orders.name)
        for _ in range(9):
            self.orders.ack(self._got(100))
        assert self.orders.get(150, consumer="billing")
        assert self.orders.get(40, consumer="spark:4f1c0a52-8a3c-4f0e-9d7b-2f1d5f0c8e11")
        self.orders.put(b"\xff\x00\x01", delay=3_600)
        self.orders.put(b"x" * 5_000, headers={"trace": "y" * 300})

    def _got(self, count: int) -> list[cassieq.Delivery]:
        found = self.orders.get(count, wait=10)
        assert found
        return found


@pytest.fixture
def shop(client: cassieq.Client, account: Account) -> Shop:
    return Shop(client, account)


def log_in(screen: Screen, account: Account) -> None:
    screen.open("/ui/")
    screen.page.get_by_label("Access key id").fill(account.key[0])
    screen.page.get_by_label("Secret").fill(account.key[1])
    screen.page.get_by_role("button", name="Log in").click()
    assert "/ui/" == screen.path


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_page_fits_a_telephone_and_has_nothing_that_shuts_somebody_out(
    screen: Callable[..., Screen], guarded: Gateway, shop: Shop, scheme: str
) -> None:
    window = screen(guarded.url, scheme=scheme)
    window.open("/ui/login")
    assert [] == window.violations()
    assert not window.is_wider_than_the_window
    log_in(window, shop.account)
    for path in PATHS:
        window.open(path)
        window.page.evaluate(OPEN_ALL)
        assert not window.is_wider_than_the_window, path
        assert [] == window.violations(), path
        back = window.page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (scheme == "dark") == (back != "rgb(255, 255, 255)"), path
    said = [one for one in window.complaints if "404" in one]
    window.complaints = [one for one in window.complaints if one not in said]
    assert 1 == len(said)  # the browser's own note on the page that says that there is no queue


def test_a_queue_is_purged_by_keyboard_alone(
    screen: Callable[..., Screen], guarded: Gateway, shop: Shop
) -> None:
    window = screen(guarded.url)
    page = window.page
    window.open("/ui/")
    window.tab_to("Access key id")
    page.keyboard.type(shop.account.key[0])
    window.tab_to("Secret")
    page.keyboard.type(shop.account.key[1])
    page.keyboard.press("Enter")
    page.wait_for_url("**/ui/")
    window.tab_to("Skip to the content")
    page.keyboard.press("Enter")
    assert "main" == page.evaluate("document.activeElement.id")
    window.tab_to("orders-dead")
    page.keyboard.press("Enter")
    page.wait_for_url("**/ui/queues/orders-dead")
    window.tab_to("Purge")
    page.keyboard.press("Enter")
    page.wait_for_url("**/purge")
    assert "3 messages would be lost" in page.inner_text("main")
    window.tab_to("write the name of the queue")
    page.keyboard.type("orders-dead")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    page.wait_for_url("**/ui/queues/orders-dead?purged=3")
    assert "3 messages dropped." in page.inner_text("main")
    assert 0 == shop.dead.stats().visible


def test_dead_letters_are_sent_back_where_scripts_are_switched_off(
    screen: Callable[..., Screen], guarded: Gateway, shop: Shop
) -> None:
    window = screen(guarded.url, java_script_enabled=False)
    page = window.page
    log_in(window, shop.account)
    window.open("/ui/queues/orders-dead/dead-letters")
    for box in page.get_by_role("checkbox").all()[:2]:
        box.check()
    page.get_by_role("button", name="Send the chosen ones back").click()
    assert "Send 2 messages back?" in page.inner_text("h1")
    page.get_by_role("button", name="Send 2 messages back").click()
    assert "2 messages sent back" in page.inner_text("h1")
    wait_until(lambda: shop.dead.stats().visible == 1, deadline_s=20)
    page.get_by_role("button", name="Log out").click()
    assert "/ui/login" == window.path
    window.open("/ui/")
    assert "/ui/login?next=%2Fui%2F" == window.path


def test_a_script_that_got_into_a_page_would_not_run(
    screen: Callable[..., Screen], gateway: Gateway
) -> None:
    """The policy holds even if the templates did not."""
    window = screen(gateway.url)
    window.open("/ui/")
    window.page.evaluate(
        """() => {
          const one = document.createElement("div");
          one.innerHTML = '<img src="https://evil.example/x" onerror="document.title = 1">';
          document.body.append(one);
          const script = document.createElement("script");
          script.textContent = "document.title = 2";
          document.body.append(script);
        }"""
    )
    assert "Queues · cassieq" == window.page.title()
    refused = [one for one in window.complaints if "Content Security Policy" in one]
    assert len(refused) >= 2
    window.complaints.clear()
    window.foreign.clear()


def test_a_link_on_another_site_leads_to_the_page_with_the_session(
    screen: Callable[..., Screen], guarded: Gateway, account: Account
) -> None:
    window = screen(guarded.url)
    log_in(window, account)
    window.page.route(
        "http://other.example/",
        lambda route: route.fulfill(
            body=f'<!doctype html><a href="{guarded.url}/ui/repair">go</a>',
            content_type="text/html",
        ),
    )
    window.page.goto("http://other.example/")
    window.page.get_by_text("go").click()
    window.page.wait_for_selector("h1:text-is('Repair')")
    assert "/ui/repair" == window.path
    window.foreign.clear()
    window.complaints = [one for one in window.complaints if "other.example" not in one]


def test_a_form_of_another_site_is_refused(
    screen: Callable[..., Screen], guarded: Gateway, shop: Shop
) -> None:
    window = screen(guarded.url)
    log_in(window, shop.account)
    form = (
        f'<form method="post" action="{guarded.url}/ui/queues/orders/purge">'
        '<input name="name" value="orders"><button>win</button></form>'
    )
    window.page.route(
        "http://other.example/",
        lambda route: route.fulfill(body=f"<!doctype html>{form}", content_type="text/html"),
    )
    before = shop.orders.stats().visible
    window.page.goto("http://other.example/")
    window.page.get_by_text("win").click()
    window.page.wait_for_url(f"{guarded.url}/**")
    assert "forbidden" in window.page.inner_text("main")
    assert before == shop.orders.stats().visible
    window.foreign.clear()
    window.complaints.clear()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where pictures go: into the guide if ``CASSIEQ_SCREENS`` says so, as `make screens` does."""
    return GUIDE / "ui" if os.environ.get("CASSIEQ_SCREENS") else tmp_path


def test_the_guide_has_a_picture_of_each_page(
    screen: Callable[..., Screen], guarded: Gateway, shop: Shop, folder: Path
) -> None:
    guide = (GUIDE / "ui.md").read_text("utf-8")
    for scheme, width in (("light", 640), ("dark", 400)):
        window = screen(guarded.url, scheme=scheme, viewport={"width": width, "height": 560})
        log_in(window, shop.account)
        for name, path in SHOTS.items():
            file = folder / f"{name}-{scheme}.png"
            window.open(path)
            window.page.evaluate("document.querySelector('.who').textContent = 'acme'")
            if "dead" in name:
                window.page.evaluate("document.querySelector('details').open = true")
                window.page.locator("details").first.scroll_into_view_if_needed()
            file.write_bytes(window.page.screenshot())
            assert 5_000 < file.stat().st_size < MOST_BYTES, file.name
            assert f"](ui/{file.name})" in guide
            assert (GUIDE / "ui" / file.name).stat().st_size < MOST_BYTES
