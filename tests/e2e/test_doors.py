"""Keys and webhooks made in the dashboard, and the example page of WebSockets."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

import penstock
from tests.e2e.browser import CHROMIUM
from tests.e2e.test_dashboard import button
from tests.integration.server.process import ServerProcess

if CHROMIUM is not None:
    from playwright.sync_api import expect

EXAMPLES = Path(__file__).parents[2] / "examples"


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *args: Any) -> None:
        pass


@pytest.fixture
def examples() -> Iterator[str]:
    """The address of the examples, served from another port."""
    handler = partial(_Quiet, directory=str(EXAMPLES))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,)).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def _late(route: Any) -> None:
    answer = route.fetch()
    if route.request.method == "POST":
        time.sleep(3)
    route.fulfill(response=answer)


def test_the_first_key_is_for_an_admin_who_stays_logged_in(
    open_page: Callable[..., Any], tmp_path: Path
) -> None:
    """One that only looks would lock everybody out."""
    with ServerProcess(tmp_path) as server:
        page = open_page(f"{server.url}/#/keys")
        page.route("**/v1/keys", _late)  # by then all else was told that it needs a key
        button(page, "New key").click()
        dialog = page.get_by_role("dialog")
        expect(dialog.get_by_label("Role")).to_have_value("admin")
        dialog.get_by_label("Name", exact=True).fill("boss")
        button(dialog, "Create").click()
        token = page.get_by_role("dialog").locator("pre")
        expect(token).to_contain_text("psk_")
        with penstock.connect(server.url, api_key=token.inner_text()) as ps:
            ps.create_topic("orders")
        button(page, "I have it").click()
        button(page, "New key").click()
        expect(page.get_by_role("dialog").get_by_label("Role")).to_have_value("readonly")
        expect(page.get_by_text("boss · admin")).to_be_visible()


def test_a_webhook_is_made_with_what_it_posts_and_how_fast(
    open_page: Callable[..., Any], tmp_path: Path
) -> None:
    with ServerProcess(tmp_path) as server, penstock.connect(server.url) as ps:
        ps.create_topic("orders")
        page = open_page(f"{server.url}/#/webhooks")
        button(page, "New webhook").click()
        dialog = page.get_by_role("dialog")
        for label, value in (
            ("Name", "ship"),
            ("URL", "https://shop.example/hook"),
            ("Requests a second", "2.5"),
            ("Messages in a request", "20"),
            ("Only keys that begin with", "eu-"),
            ("Only the types", "order.paid, order.sent"),
        ):
            dialog.get_by_label(label).fill(value)
        dialog.get_by_role("combobox", name="Topic").fill("orders")
        button(dialog, "Create").click()
        button(page, "I have it").click()
        expect(page.get_by_text("a key that begins with eu-, the type order.paid")).to_be_visible()
        settings = ps.webhook("ship").settings
        assert (settings.rate, settings.batch and settings.batch.max_messages) == (2.5, 20)
        assert settings.filter.types == ["order.paid", "order.sent"]
        button(page, "Replay…").click()
        expect(page.get_by_role("dialog").get_by_label("Go on from")).to_be_visible()
        assert page.get_by_role("dialog").get_by_label("On", exact=True).count() == 0
        page.keyboard.press("Escape")


def test_the_example_page_shows_messages_as_they_come(
    open_page: Callable[..., Any], tmp_path: Path, examples: str
) -> None:
    with (
        ServerProcess(tmp_path, allowed_hosts="127.0.0.1") as server,
        penstock.connect(server.url) as ps,
    ):
        ps.create_topic("orders")
        page = open_page(f"{examples}/live.html")
        page.get_by_label("URL").fill(server.url.replace("http", "ws", 1) + "/v1/ws")
        page.get_by_label("group").fill("page")
        button(page, "Listen").click()
        expect(page.get_by_text("listening to orders")).to_be_visible()
        for number in range(50):  # more than its credit
            ps.publish("orders", f"<b>order {number}</b>".encode())
        expect(page.locator("li")).to_have_count(50)
        expect(page.locator("li").first).to_have_text("<b>order 49</b>")
        expect(page.locator("b")).to_have_count(0)
        stats: Callable[[], Any] = lambda: ps.stats("orders").groups[0]  # noqa: E731
        page.wait_for_timeout(300)
        assert (stats().depth, stats().in_flight) == (0, 0)
