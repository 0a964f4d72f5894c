"""The pictures of the documentation: `make screenshots` takes them of a shop at work.

With `--all FOLDER` every screen goes there, also as wide as a telephone.
"""

from __future__ import annotations

import argparse
import tempfile
import threading
from pathlib import Path
from typing import Any

from tests.e2e.browser import chromium
from tests.e2e.stage import fill, hook_up, keep_busy, let_tenants_in
from tests.integration.server.process import ServerProcess
from tests.integration.server.receiver import Receiver

DOCS = Path(__file__).parents[2] / "docs" / "img"
WIDE = {"width": 1280, "height": 860}
NARROW = {"width": 390, "height": 844}
FOR_DOCS = {
    "overview": "#/overview",
    "topic": "#/t/default/orders",
    "messages": "#/t/default/orders/messages",
    "dead-letters": "#/t/default/payments/dead",
}
ALL = FOR_DOCS | {
    "topics": "#/topics",
    "topic-groups": "#/t/default/orders/groups",
    "in-flight": "#/t/default/orders/in-flight",
    "topic-delayed": "#/t/default/emails/delayed",
    "publish": "#/t/default/orders/publish",
    "settings": "#/t/default/orders/settings",
    "groups": "#/groups",
    "stream-group": "#/group/default/reporting",
    "dead": "#/dead",
    "delayed": "#/delayed",
    "schedules": "#/schedules",
    "schedule": "#/schedule/default/poll-stock",
    "webhooks": "#/webhooks",
    "webhook": "#/webhook/default/ship",
    "keys": "#/keys",
    "traces": "#/traces?topic=payments",
    "schemas": "#/schemas",
    "schema": "#/schema/default/orders-value?version=2&against=1",
    "transactions": "#/transactions",
    "namespaces": "#/namespaces",
    "namespace": "#/namespace/partners",
    "audit": "#/audit",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--all", type=Path, metavar="FOLDER")
    parser.add_argument("--only", default="")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "shop"
        fill(data)
        with (
            ServerProcess(data, webhook_networks="127.0.0.0/8", webhook_http=True) as server,
            Receiver() as receiver,
            chromium() as browser,
        ):
            let_tenants_in(server.url)
            hook_up(server.url, receiver)
            stop = threading.Event()
            busy = threading.Thread(target=keep_busy, args=(server.url, stop))
            busy.start()
            try:
                if given.all:
                    given.all.mkdir(parents=True, exist_ok=True)
                    names = {
                        name: at
                        for name, at in ALL.items()
                        if any(each in name for each in given.only.split(","))
                    }
                    for theme in ("light", "dark"):
                        _take(browser, server.url, names, given.all, theme, WIDE, f"-{theme}")
                    _take(browser, server.url, names, given.all, "light", NARROW, "-narrow")
                else:
                    for theme in ("light", "dark"):
                        _take(browser, server.url, FOR_DOCS, DOCS, theme, WIDE, f"-{theme}")
            finally:
                stop.set()
                busy.join()


def _take(
    browser: Any, url: str, screens: dict[str, str], into: Path, theme: str, size: Any, suffix: str
) -> None:
    context = browser.new_context(viewport=size, color_scheme=theme, device_scale_factor=1)
    page = context.new_page()
    page.on("console", lambda said: said.type in ("error", "warning") and print(suffix, said.text))
    page.on("pageerror", lambda error: print(suffix, error))
    page.goto(url)
    for name, at in screens.items():
        page.evaluate("at => { location.hash = at }", at)
        page.wait_for_timeout(1600)
        if name == "messages":
            page.locator("tr.line").first.click()
            page.wait_for_timeout(200)
        page.screenshot(path=into / f"dashboard-{name}{suffix}.png", full_page="narrow" in suffix)
        wide = page.evaluate("document.documentElement.scrollWidth > innerWidth")
        if wide:
            print(f"{name}{suffix} is wider than the window")
    context.close()


if __name__ == "__main__":
    main()
