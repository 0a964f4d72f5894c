"""The dashboard as a person uses it: in Chromium, against a real server."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.server.keys import KeyStore
from tests.e2e.browser import CHROMIUM
from tests.integration.server.process import ServerProcess

if CHROMIUM is not None:
    from playwright.sync_api import expect

OWN_PAGE = {"sec-fetch-site": "same-origin"}
HOSTILE = '<img src=x onerror="document.title=1"><script>document.title=1</script>{{7*7}}\u202e'


def go(page: Any, *path: str, query: str = "") -> None:
    page.evaluate("at => { location.hash = at }", f"#/{'/'.join(path)}{query}")


def button(page: Any, name: str) -> Any:
    return page.get_by_role("button", name=name, exact=True)


def row(page: Any, text: str) -> Any:
    return page.get_by_role("row").filter(has_text=text)


def test_the_overview_is_live(page: Any, ps: Any) -> None:
    expect(page.get_by_role("heading", name="Overview")).to_be_visible()
    expect(page.get_by_text("live", exact=True)).to_be_visible()
    ps.create_topic("live-orders")
    ps.publish_batch("live-orders", [b"x"] * 321)
    waiting = page.locator(".card").filter(has_text="Waiting")
    expect(waiting).to_contain_text("321")
    ps.receive("live-orders", "slow", max_messages=21)
    expect(page.locator(".card").filter(has_text="In flight")).to_contain_text("21")
    expect(row(page, "slow")).to_contain_text("live-orders")


def test_topics_are_searched_sorted_and_paged_on_the_server(page: Any, ps: Any) -> None:
    shop = ps.in_namespace("many")
    for number in range(120):
        shop.create_topic(f"queue-{number:03}")
    shop.publish_batch("queue-077", [b"x"] * 5)
    page.locator("nav").get_by_role("link", name="Topics").click()
    page.goto(re.sub(r"#.*", "", page.url) + "#/topics?ns=many")
    expect(page.get_by_text("1\u201350 of 120")).to_be_visible()
    button(page, "Next").click()
    expect(page.get_by_text("51\u2013100 of 120")).to_be_visible()
    assert "offset=50" in page.url
    expect(page.get_by_role("link", name="queue-050")).to_be_visible()
    page.get_by_role("columnheader", name="Waiting").get_by_role("button").click()
    expect(page.get_by_role("row").nth(1)).to_contain_text("queue-077")
    page.keyboard.press("/")
    page.keyboard.type("e-11")
    expect(page.get_by_text("10 in all")).to_be_visible()
    page.reload()
    expect(page.get_by_label("Search topics")).to_have_value("e-11")
    expect(page.get_by_role("row")).to_have_count(11)


def test_a_topic_is_made_altered_purged_and_deleted(page: Any, ps: Any) -> None:
    go(page, "topics")
    button(page, "New topic").click()
    page.get_by_label("Name", exact=True).fill("crud")
    page.get_by_label("Partitions").fill("2")
    button(page, "Create").click()
    expect(page.get_by_role("heading", name="crud")).to_be_visible()
    assert ps.describe_topic("crud").partitions == 2
    ps.publish_batch("crud", [b"x"] * 9)
    page.get_by_role("link", name="Settings").click()
    page.get_by_label("partitions").fill("3")
    button(page, "Change 1 setting").click()
    expect(page.get_by_text("The settings are changed")).to_be_visible()
    assert ps.describe_topic("crud").partitions == 3
    button(page, "Purge…").click()
    page.get_by_label("Type crud to go on").fill("crud")
    button(page, "Purge").click()
    expect(page.get_by_text("crud is empty")).to_be_visible()
    assert ps.stats("crud").messages == 0
    button(page, "Delete…").click()
    expect(button(page, "Delete")).to_be_disabled()
    page.get_by_label("Type crud to go on").fill("cru")
    expect(button(page, "Delete")).to_be_disabled()
    page.get_by_label("Type crud to go on").fill("crud")
    button(page, "Delete").click()
    expect(page.get_by_text("crud is deleted")).to_be_visible()
    assert "crud" not in ps.topics()


def test_a_message_is_published_found_and_published_again(page: Any, ps: Any) -> None:
    ps.create_topic("notes", partitions=2)
    go(page, "t", "default", "notes", "publish")
    page.get_by_label("Value", exact=True).fill('{"id": 12345678901234567890, "who": "Ada"}')
    page.get_by_label("Key", exact=True).fill("c-1")
    page.get_by_label("Headers").fill("type: note\nfrom: page")
    page.get_by_label("Priority").select_option("high")
    button(page, "Publish").click()
    page.get_by_role("link", name=re.compile("partition ., offset 0")).click()
    expect(row(page, "Ada")).to_contain_text("c-1")
    row(page, "Ada").click()
    expect(page.locator("pre.code")).to_contain_text('"id": 12345678901234567890')  # no rounding
    expect(page.locator("dl.kv")).to_contain_text("note")
    button(page, "Hex").click()
    expect(page.locator("pre.code")).to_contain_text("7b 22 69 64")
    button(page, "Publish again").click()
    button(page, "Publish").click()
    expect(page.get_by_text("Published", exact=True)).to_be_visible()
    (first, again) = ps.peek("notes", partition=None)
    assert (first.value, first.key, first.headers) == (again.value, again.key, again.headers)
    assert again.priority == first.priority == 1


def test_messages_are_filtered_on_the_server_and_downloaded(page: Any, ps: Any) -> None:
    ps.create_topic("events", partitions=2)
    for number in range(300):
        ps.publish("events", {"n": number, "user": {"id": number % 50}}, key=f"k-{number % 3}")
    go(page, "t", "default", "events", "messages")
    expect(page.get_by_role("row")).to_have_count(51)
    expect(page.get_by_role("row").nth(1)).to_contain_text('"n":299')
    page.get_by_label("JSON pointer").fill("/user/id")
    page.get_by_label("equals").fill("7")
    page.get_by_label("Key has").fill("k-1")
    expect(page.get_by_text("2 found")).to_be_visible()
    assert "pointer=%2Fuser%2Fid" in page.url
    with page.expect_download() as download:
        button(page, "Download 2").click()
    lines = [json.loads(line) for line in download.value.path().read_text().splitlines()]
    assert [json.loads(each["value"])["n"] for each in lines] == [157, 7]
    button(page, "Clear filters").click()
    button(page, "Oldest first").click()
    expect(page.get_by_role("row").nth(1)).to_contain_text('"n":0')
    button(page, "Look further").click()
    expect(page.get_by_text("100 found")).to_be_visible()


def test_whatever_is_hostile_is_shown_as_text(page: Any, ps: Any) -> None:
    ps.create_topic("hostile", max_retries=0)
    ps.publish("hostile", HOSTILE, key=HOSTILE, headers={HOSTILE[:60]: HOSTILE})
    ps.publish("hostile", json.dumps({HOSTILE: HOSTILE, "__proto__": [1]}))
    ps.publish("hostile", b"\xff\x00<script>", key=b"\xff")
    ps.receive("hostile", "g", 1, consumer=HOSTILE[:80])[0].reject(HOSTILE + "\nmore")
    ps.receive("hostile", "g", 1, consumer=HOSTILE[:80], visibility="1h")
    go(page, "t", "default", "hostile", "messages")
    expect(page.get_by_text("3 found")).to_be_visible()
    for number in range(3):
        page.locator("tr.line").nth(number).click()
        expect(page.locator("pre.code")).to_be_visible()
        if number == 2:
            expect(page.locator("pre.code")).to_contain_text("<img src=x onerror")
            expect(page.locator("dl.kv")).to_contain_text("<script>document.title=1</script>")
    go(page, "t", "default", "hostile", "dead")
    expect(row(page, "<img src=x").first).to_be_visible()
    page.locator("tr.line").click()
    expect(page.locator("pre.code").first).to_contain_text("more")
    go(page, "t", "default", "hostile", "in-flight")
    expect(row(page, "<img src=x")).to_be_visible()
    for bad in ("<script>alert(1)<", "%3Cimg%20src=x%3E", "a/b/../..", "%ff"):
        go(page, "t", "default", bad)
        go(page, "group", bad, bad)
        nothing = page.get_by_role("alert").or_(page.get_by_text("There is nothing"))
        expect(nothing.first).to_be_visible()
    assert page.locator("img, script:not([src])").count() == 0
    assert page.title() != "1"


def test_a_lease_is_taken_back(page: Any, ps: Any) -> None:
    ps.create_topic("jobs")
    ps.publish("jobs", b"x")
    ps.receive("jobs", "g", visibility="1h", consumer="stuck-worker")
    go(page, "t", "default", "jobs", "in-flight")
    row(page, "stuck-worker").get_by_role("button", name="Take back…").click()
    button(page, "Take back").click()
    expect(page.get_by_text("It is ready again")).to_be_visible()
    (again,) = ps.receive("jobs", "g", wait="5s")
    assert again.delivery_count == 2


def test_dead_letters_are_counted_then_redriven_with_progress(page: Any, ps: Any) -> None:
    ps.create_topic("charges", max_retries=0)
    ps.publish_batch("charges", [b"%d" % n for n in range(30)])
    for number, message in enumerate(ps.receive("charges", "bank", 30)):
        message.reject("Timeout\nat line 7" if number < 20 else "Declined")
    go(page, "dead")
    page.get_by_role("link", name="charges", exact=True).click()
    groups = page.get_by_role("region", name="By reason and error")  # letters have buttons, too
    row(groups, "Timeout").get_by_role("button").click()
    button(page, "Redrive these…").click()
    expect(page.get_by_text("20 letters.")).to_be_visible()
    expect(button(page, "Redrive")).to_be_disabled()
    page.get_by_label("At most, a second").fill("15")
    page.get_by_label("Type 20 to go on").fill("20")
    button(page, "Redrive").click()
    expect(page.get_by_role("progressbar")).to_be_visible()
    expect(page.get_by_text("20 letters redriven")).to_be_visible()
    assert ps.dead_letters("charges").groups().counted == 10
    assert ps.stats("charges").groups[0].ready == 20
    page.locator("tr.line").first.click()
    page.locator("tr.open").get_by_role("button", name="Purge").click()
    expect(page.get_by_text("It is gone")).to_be_visible()
    assert len(ps.dead_letters("charges")) == 9


def test_a_trace_leads_to_its_dead_letter(page: Any, ps: Any) -> None:
    ps.create_topic("refunds", max_retries=0, trace_sample=1.0)
    for value in (b"first", b"second"):
        ps.publish("refunds", value)
        ps.receive("refunds", "bank", wait="5s")[0].reject("no such account")
    go(page, "traces", query="?topic=refunds")
    second = page.get_by_role("link", name="dead lettered").nth(1)
    expect(second).to_be_visible()
    second.click()
    letters = page.get_by_role("region", name="Letter 0-1")
    expect(letters.locator("tr.line")).to_have_count(1)
    expect(letters.locator("tr.open").filter(has_text="second").first).to_be_visible()
    button(page, "Show all letters").click()
    expect(page.locator("tr.line")).to_have_count(2)
    ps.dead_letters("refunds").purge()
    go(page, "t", "default", "refunds", "dead", query="?letter=0-1")
    expect(page.get_by_text("This letter is not here any more")).to_be_visible()


def test_a_group_is_moved_and_deleted(page: Any, ps: Any) -> None:
    ps.create_topic("replay")
    ps.publish_batch("replay", [b"x"] * 10)
    for message in ps.receive("replay", "readers", 10):
        message.ack()
    go(page, "t", "default", "replay", "groups")
    button(page, "Move…").click()
    page.get_by_label("Go on from").select_option("offset")
    page.get_by_label("Offset", exact=True).fill("4")
    button(page, "Move").click()
    expect(page.get_by_text("The group goes on from there")).to_be_visible()
    assert ps.stats("replay").groups[0].depth == 6
    button(page, "Delete…").click()
    page.get_by_label("Type readers to go on").fill("readers")
    button(page, "Delete").click()
    expect(page.get_by_text("No group reads this topic")).to_be_visible()


def test_a_schedule_is_made_fired_paused_and_a_delayed_message_cancelled(
    page: Any, ps: Any
) -> None:
    ps.create_topic("mails")
    ps.publish("mails", "later", delay="1h")
    go(page, "schedules")
    button(page, "New schedule").click()
    page.get_by_label("Name", exact=True).fill("nightly")
    page.get_by_label("Topic", exact=True).fill("mails")
    page.get_by_label("Cron", exact=True).fill("30 2 * * *")
    page.get_by_label("Value", exact=True).fill("report")
    button(page, "Create").click()
    button(page, "Fire now").click()
    expect(page.get_by_role("link", name="0:0")).to_be_visible()
    button(page, "Pause").click()
    expect(page.get_by_text("paused", exact=True)).to_be_visible()
    assert ps.describe_schedule("nightly").paused
    go(page, "t", "default", "mails", "delayed")
    button(page, "Cancel").click()
    expect(page.get_by_text("No message waits for its time")).to_be_visible()
    assert ps.stats("mails").delayed == 0


def test_keys_move_around(page: Any) -> None:
    expect(page.get_by_role("heading", name="Overview")).to_be_visible()
    page.keyboard.press("g")
    page.keyboard.press("t")
    expect(page.get_by_role("heading", name="Topics")).to_be_visible()
    page.keyboard.press("?")
    expect(page.get_by_role("dialog", name="Keys")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    page.keyboard.press("g")
    page.keyboard.press("w")
    expect(page.get_by_role("heading", name="Webhooks")).to_be_visible()
    page.keyboard.press("u")
    expect(button(page, "local")).to_be_visible()
    page.get_by_label("Theme").select_option("dark")
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"


@pytest.mark.parametrize("width", [390, 1280])
def test_no_screen_is_wider_than_the_window(
    open_page: Callable[..., Any], server: ServerProcess, ps: Any, width: int
) -> None:
    ps.create_topic("x" * 240, exist_ok=True)
    ps.publish("x" * 240, b"held")
    assert ps.receive("x" * 240, "g" * 60, consumer="c" * 60)  # so that it can be taken back
    page = open_page(f"{server.url}/", viewport={"width": width, "height": 844})
    for at in (
        "overview",
        "topics",
        "groups",
        "dead",
        "traces",
        "transactions",
        "schemas",
        "delayed",
        "schedules",
        "webhooks",
        "keys",
        "namespaces",
        "audit",
    ):
        go(page, at)
        expect(page.get_by_role("heading", level=1)).to_be_visible()
        page.wait_for_timeout(100)
        assert page.evaluate("document.documentElement.scrollWidth") <= width, at
    for tab in ("", "messages", "groups", "in-flight", "dead", "delayed", "publish", "settings"):
        go(page, "t", "default", "x" * 240, tab)
        if tab == "in-flight":
            expect(button(page, "Take back…").first).to_be_visible()
        page.wait_for_timeout(100)
        assert page.evaluate("document.documentElement.scrollWidth") <= width, tab


def test_a_key_logs_in_and_its_role_hides_what_it_may_not(
    open_page: Callable[..., Any], tmp_path: Path
) -> None:
    keys = KeyStore.open(tmp_path)
    boss, eyes = keys.create("boss", "admin").token, keys.create("eyes", "readonly").token
    with ServerProcess(tmp_path) as server:
        with penstock.connect(server.url, api_key=boss) as ps:
            ps.create_topic("orders")
        page = open_page(f"{server.url}/#/topics")
        page.get_by_label("API key").fill("psk_wrong")
        button(page, "Log in").click()
        expect(page.get_by_role("alert")).to_contain_text("not known")
        page.get_by_label("API key").fill(eyes)
        button(page, "Log in").click()
        expect(page.get_by_role("link", name="orders")).to_be_visible()
        expect(page.get_by_text("live", exact=True)).to_be_visible()
        assert button(page, "New topic").count() == 0
        assert page.get_by_role("link", name="API keys").count() == 0
        assert page.evaluate("document.cookie") == ""
        assert "psk_" not in page.evaluate("JSON.stringify([localStorage, sessionStorage])")
        forced = page.request.put(f"{server.url}/v1/topics/x", data={}, headers=OWN_PAGE)
        assert forced.status == 403
        page.reload()
        expect(page.get_by_role("link", name="orders")).to_be_visible()
        keys.revoke("eyes")
        expect(page.get_by_label("API key")).to_be_visible()
        page.get_by_label("API key").fill(boss)
        button(page, "Log in").click()
        expect(button(page, "New topic")).to_be_visible()
        button(page, "Log out").click()
        expect(page.get_by_label("API key")).to_be_visible()


def test_it_comes_back_after_the_server_was_killed(
    open_page: Callable[..., Any], tmp_path: Path
) -> None:
    with ServerProcess(tmp_path, auto_create=True) as server:
        page = open_page(f"{server.url}/#/topics")
        expect(page.get_by_text("live", exact=True)).to_be_visible()
        server.kill()
        expect(page.get_by_text("connecting", exact=True)).to_be_visible()
        server.start()
        with penstock.connect(server.url) as ps:
            ps.publish("back-again", b"x")
        expect(page.get_by_role("link", name="back-again")).to_be_visible()


def test_a_folder_of_another_process_is_looked_at(
    open_page: Callable[..., Any], tmp_path: Path
) -> None:
    data = tmp_path / "data"
    with penstock.connect(data) as ps:
        ps.create_topic("embedded")
        ps.publish("embedded", "x")
        command = [sys.executable, "-m", "penstock", "dashboard", str(data), "--no-open"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            try:
                assert process.stdout is not None
                page = open_page(process.stdout.readline().strip() + "#/t/default/embedded/publish")
                page.get_by_label("Value", exact=True).fill("from the page")
                button(page, "Publish").click()
                expect(page.get_by_role("link", name="partition 0, offset 1")).to_be_visible()
                values = [message.value for message in ps.peek("embedded")]
                assert values == [b"x", b"from the page"]
            finally:
                process.send_signal(signal.SIGINT)
                assert process.wait(20) == 0
