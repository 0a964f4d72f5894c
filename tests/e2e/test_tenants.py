"""Namespaces with quotas, and the audit log, as a person uses them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.errors import Forbidden
from penstock.server.keys import KeyStore
from tests.e2e.browser import CHROMIUM
from tests.e2e.test_dashboard import button, go, row
from tests.integration.server.process import ServerProcess

if CHROMIUM is not None:
    from playwright.sync_api import expect


def test_a_namespace_is_made_limited_and_deleted(page: Any, ps: Any) -> None:
    expect(page.get_by_role("heading", name="Overview")).to_be_visible()
    page.keyboard.press("g")
    page.keyboard.press("n")
    dialog = page.get_by_role("dialog")
    button(page, "New namespace").click()
    dialog.get_by_role("textbox", name="Name").fill("shop")
    button(page, "Create").click()
    expect(page.get_by_role("heading", name="shop")).to_be_visible()
    button(page, "Edit quotas\u2026").click()
    dialog.get_by_label("Topics", exact=True).fill("4")
    dialog.get_by_label("Longest retention").fill("36")
    dialog.get_by_label("What is too fast is").select_option("refuse")
    button(page, "Save").click()
    topics = page.get_by_role("meter", name="Topics", exact=True)
    expect(topics).to_have_attribute("aria-valuetext", "0 of 4")
    quotas = ps.describe_namespace("shop").quotas
    assert (quotas.topics, quotas.retention_ms, quotas.policy) == (4, 36 * 3_600_000, "refuse")
    assert quotas.storage_bytes is None
    for number in range(3):
        ps.in_namespace("shop").create_topic(f"orders-{number}", retention="1d")
    expect(topics).to_have_attribute("aria-valuetext", "3 of 4")
    button(page, "Edit quotas\u2026").click()
    expect(dialog.get_by_label("Longest retention")).to_have_value("36")
    dialog.get_by_label("Topics", exact=True).fill("")
    button(page, "Save").click()
    expect(topics).to_have_count(0)
    assert ps.describe_namespace("shop").quotas.topics is None
    button(page, "Delete\u2026").click()
    expect(dialog).to_contain_text("3 topics")
    expect(button(page, "Delete")).to_be_disabled()
    page.get_by_label("Type shop to go on").fill("shop")
    button(page, "Delete").click()
    expect(row(page, "default")).to_be_visible()
    expect(row(page, "shop")).to_have_count(0)
    assert "shop" not in ps.namespaces()


def test_the_audit_log_is_paged_and_searched_by_who_may(
    open_page: Callable[..., Any], tmp_path: Path
) -> None:
    keys = KeyStore.open(tmp_path)
    boss, eyes = keys.create("boss", "admin").token, keys.create("eyes", "readonly").token
    with ServerProcess(tmp_path) as server:
        with penstock.connect(server.url, api_key=boss) as ps:
            ps.create_topic("first-of-all")
            for number in range(101):
                ps.create_namespace(f"tenant-{number}")
        with penstock.connect(server.url, api_key=eyes) as ps, pytest.raises(Forbidden):
            ps.delete_topic("first-of-all")
        page = open_page(f"{server.url}/#/audit")
        page.get_by_label("API key").fill(boss)
        button(page, "Log in").click()
        expect(page.get_by_role("row").nth(1)).to_contain_text("eyes")
        expect(row(page, "create topic")).to_have_count(0)
        button(page, "Older").click()
        expect(row(page, "create topic")).to_contain_text("first-of-all")
        expect(button(page, "Older")).to_have_count(0)
        button(page, "Newest").click()
        page.get_by_label("Who, what, to what").fill("boss create_topic")
        expect(page.get_by_text("1 of 103 entries")).to_be_visible()
        expect(row(page, "create topic")).to_contain_text("first-of-all")
        go(page, "audit")
        button(page, "Refused").click()
        expect(row(page, "delete topic")).to_contain_text("eyes")
        expect(page.get_by_role("row")).to_have_count(2)
        button(page, "Log out").click()
        page.get_by_label("API key").fill(eyes)
        button(page, "Log in").click()
        expect(page.get_by_role("link", name="Topics")).to_be_visible()
        assert page.get_by_role("link", name="Audit log").count() == 0
        go(page, "namespaces")
        expect(row(page, "tenant-0")).to_be_visible()
        assert button(page, "New namespace").count() == 0


def test_a_screen_about_one_namespace_says_which(page: Any, ps: Any) -> None:
    ps.create_namespace("zone")
    ps.in_namespace("zone").create_topic("t")
    ps.in_namespace("zone").schedule("nightly", topic="t", value="v", every="1d")
    page.reload()
    picker = page.get_by_label("Namespace", exact=True)
    go(page, "topics")
    expect(picker).to_have_value("")
    go(page, "schedules")
    expect(picker).to_have_value("default")
    expect(page.get_by_text("Namespace default has no schedules")).to_be_visible()
    expect(picker.get_by_role("option", name="All namespaces")).to_have_count(0)
    picker.select_option("zone")
    expect(page.get_by_role("link", name="nightly")).to_be_visible()
    ps.delete_namespace("zone", force=True)
