"""Names are checked at the door, and an error says the rule."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import InvalidInput
from penstock.model.names import TopicName, group_name, parse_topic, topic_name


@pytest.mark.parametrize(
    "name", ["a", "0", "orders", "a.b_c-d", "_x", "Orders", "a" * 249, "orders.dlq", "9.dlq"]
)
def test_names_that_are_allowed(name: str) -> None:
    assert topic_name(name) == TopicName("default", name)


@given(st.text(max_size=260))
def test_the_rule_is_the_rule(name: str) -> None:
    base = name.removesuffix(".dlq")
    if re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,248}", base, re.ASCII):
        assert topic_name(name).topic == name
    else:
        with pytest.raises(InvalidInput, match="is not allowed; it is made of"):
            topic_name(name)


@pytest.mark.parametrize(
    "name", [None, 5, b"orders", ["a"], "a\n", "a" * 250, ".dlq", "x" * 10_000]
)
def test_names_that_are_not(name: Any) -> None:
    with pytest.raises(InvalidInput) as caught:
        topic_name(name)
    assert len(str(caught.value)) < 250
    with pytest.raises(InvalidInput):
        topic_name("orders", name)


@given(st.lists(st.from_regex(r"[A-Za-z]{1,4}", fullmatch=True), unique=True, max_size=8))
def test_no_two_topics_share_a_folder_on_a_case_blind_disk(names: list[str]) -> None:
    assert len({topic_name(name).folder.lower() for name in names}) == len(names)


def test_the_folder_of_the_longest_name_fits_a_file_system() -> None:
    for name in ("a" * 249, "A" * 249):
        assert len(topic_name(name).dead_letters.folder) < 255


def test_a_topic_in_a_namespace_is_written_with_both() -> None:
    assert str(topic_name("orders")) == "orders"
    assert str(topic_name("orders", "team-a")) == "team-a/orders"
    for name in (topic_name("orders"), topic_name("orders", "team-a")):
        assert parse_topic(str(name)) == name
    with pytest.raises(InvalidInput):
        parse_topic("a/b/c")


def test_dead_letters_have_a_name_of_their_own() -> None:
    name = topic_name("orders", "team-a")
    assert name.dead_letters == TopicName("team-a", "orders.dlq")
    assert name.dead_letters.is_dead_letters
    assert not name.is_dead_letters


def test_a_group_may_have_capitals_and_is_longer() -> None:
    assert group_name("Billing-v2_x.1") == "Billing-v2_x.1"
    assert group_name("g" * 128)
    for name in ("", "~letters", "-a", "a b", "g" * 129, "ä", None, 3):
        with pytest.raises(InvalidInput, match="group name"):
            group_name(name)  # type: ignore[arg-type]
