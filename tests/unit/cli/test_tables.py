"""Tables are as wide as a terminal, and lose only what may be lost."""

from __future__ import annotations

import pytest
from rich.cells import cell_len

from penstock.cli.tables import lines

STATS = ("topic", "messages", "size", "to do", "in flight", "dead", "in/s")
LETTERS = ("id", "reason", "last tried (UTC)", "error", "value")
ID = "01M7EW3PQYPBM4QJXRVV000000"
LETTER = (ID, "max_retries", "2026-11-16 16:30:00.123", "the bank does not answer", "12 apples" * 9)


def letters(width: int | None) -> list[str]:
    rows = lines(LETTERS, [LETTER], width, cut=("error", "value"), drop=("last tried (UTC)",))
    return [line for row in rows for line in row]


def test_where_nobody_looks_a_table_is_whole() -> None:
    head, row = letters(None)
    assert head.split("  ")[0] == "id"
    assert row == "  ".join(LETTER)


def test_a_narrow_table_has_its_head_on_two_lines_and_all_its_numbers() -> None:
    row = ("a-topic-of-a-shop", 1_234_567, "64.0 MB", 123_456, 12, 3, 1234.5)
    heads, (text,) = lines(STATS, [row], 70)
    assert heads[0].split() == ["to", "in"]
    assert heads[1].split() == ["topic", "messages", "size", "do", "flight", "dead", "in/s"]
    assert text.split() == [
        *("a-topic-of-a-shop", "1,234,567", "64.0", "MB", "123,456", "12", "3", "1,234.5")
    ]
    assert max(map(cell_len, [*heads, text])) <= 70


@pytest.mark.parametrize("width", [80, 100, 120])
def test_what_may_be_left_out_goes_first_and_then_the_ends_of_free_text(width: int) -> None:
    head, *_, row = letters(width)
    assert max(map(cell_len, [head, row])) <= width
    assert ID in row
    assert "max_retries" in row
    assert row.endswith("...")
    assert ("2026" in row) == (width > 80)


def test_names_are_never_cut() -> None:
    (head,), (row,) = lines(("topic", "messages"), [("t" * 200, 1)], 80)
    assert row.startswith("t" * 200)
    assert head.startswith("topic")


LONG = "orders-of-a-long-name-in-production"


def test_long_names_have_a_line_of_their_own_where_the_rest_would_not_fit() -> None:
    row = (LONG, 1_234_567, "64.0 MB", 123_456, 12, 3, 1234.5)
    assert len(lines(STATS, [row], 90)[1]) == 1
    heads, (name, text) = lines(STATS, [row], 70)
    assert name == LONG
    assert text.split() == ["1,234,567", "64.0", "MB", "123,456", "12", "3", "1,234.5"]
    assert heads[0] == "topic"
    assert heads[-1].split() == ["messages", "size", "do", "flight", "dead", "in/s"]
    assert max(map(cell_len, [*heads, name, text])) <= 70


def test_two_long_names_share_it_and_what_can_be_cut_is_cut_to_what_is_left() -> None:
    columns = ("group", "kind", "topic", "to do", "error")
    row = ("a-group-of-a-long-name", "queue", LONG, 12, "no such thing " * 20)
    heads, (names, text) = lines(columns, [row], 58, cut=("error",))
    assert names.split() == [row[0], LONG]
    assert text.split()[:2] == ["queue", "12"]
    assert text.endswith("...")
    assert max(map(cell_len, [*heads, names, text])) <= 58


def test_wide_characters_count_as_two() -> None:
    _, (row,) = lines(("id", "value"), [(1, "訂單" * 50)], 40, cut=("value",))
    assert cell_len(row) <= 40
    assert row.endswith("...")
