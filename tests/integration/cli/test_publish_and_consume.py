"""Messages in and out, in every form, on a folder and on a server."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.integration.cli.shell import Shell


@pytest.fixture
def orders(sh: Shell) -> Shell:
    sh("topic", "create", "orders")
    return sh


def consume(sh: Shell, *args: str, group: str = "g") -> list[str]:
    return sh("consume", "orders", "-g", group, *args).lines


def test_one_message_with_everything(orders: Shell) -> None:
    how = ["--key", "c-17", "--priority", "high", "--header", "v=1", "--header", "w=a=b"]
    done = orders("publish", "orders", "12 apples", *how, "--ttl", "1h")
    assert done.text.endswith("is at offset 0 of orders/0\n")
    (seen,) = orders("consume", "orders", "-g", "g", "--json").json_lines
    assert seen["value"] == "12 apples"
    assert seen["key"] == "c-17"
    assert seen["priority"] == "high"
    assert seen["headers"] == {"v": "1", "w": "a=b"}
    assert seen["delivery_count"] == 1
    assert seen["expires_at_us"] == pytest.approx(seen["timestamp_us"] + 3_600_000_000, abs=10**7)


def test_what_is_acked_does_not_come_again_and_nothing_is_exit_1(orders: Shell) -> None:
    orders("publish", "orders", "a", "b")
    assert consume(orders, "--max", "1") == ["a"]
    assert consume(orders) == ["b"]
    assert orders("consume", "orders", "-g", "g", code=1).out == b""
    assert consume(orders, group="another") == ["a", "b"]


def test_the_lines_of_a_pipe_are_messages(orders: Shell) -> None:
    done = orders("publish", "orders", stdin="eins\r\n\nzwölf\nlast".encode())
    assert done.text.startswith("3 messages published")
    assert consume(orders) == ["eins", "zwölf", "last"]


def test_a_file_of_many_lines_comes_out_as_it_went_in(orders: Shell) -> None:
    path = orders.cwd / "lines.txt"
    lines = [f"line {n} {'x' * (n % 90)}" for n in range(25_000)]
    path.write_text("\n".join(lines) + "\n")
    done = orders("publish", "orders", "--file", path, "--batch", "7000", "--json")
    assert done.json == {"topic": "orders", "published": 25_000, "message": None}
    assert consume(orders, "--batch", "10000") == lines


def test_json_lines_go_round_and_bytes_that_are_no_text_survive(orders: Shell) -> None:
    messages = [
        {"value": "plain"},
        {"value_base64": "/wD+", "key": "k", "priority": "low"},
        {"value": "", "headers": {"a": "b", "raw": {"base64": "/w=="}, "none": None}},
    ]
    piped = b"\n".join(json.dumps(m).encode() for m in messages)
    orders("publish", "orders", "--format", "jsonl", stdin=piped)
    seen = orders("consume", "orders", "-g", "one", "--json")
    orders("publish", "orders", "--format", "jsonl", stdin=seen.out)
    again = orders("consume", "orders", "-g", "one", "--json").json_lines
    for first, second in zip(seen.json_lines, again, strict=True):
        assert content(first) == content(second)
    by_priority = sorted(seen.json_lines, key=lambda m: m["offset"])
    assert by_priority[1]["value_base64"] == "/wD+"
    assert by_priority[2]["headers"]["raw"] == {"base64": "/w=="}


def content(message: dict[str, Any]) -> dict[str, Any]:
    names = ("value", "value_base64", "key", "headers", "priority")
    return {name: message.get(name) for name in names}


def test_json_lines_may_be_delayed_or_deduplicated_each(orders: Shell) -> None:
    messages = [
        {"value": "now"},
        {"value": "later", "delay": "1h"},
        {"value": "once", "dedup_id": "x"},
        {"value": "twice?", "dedup_id": "x"},
    ]
    piped = b"\n".join(json.dumps(m).encode() for m in messages)
    orders("publish", "orders", "--format", "jsonl", stdin=piped)
    assert consume(orders) == ["now", "once"]
    assert orders("delayed", "stats", "orders", "--json").json["stats"]["pending"] == 1


@pytest.mark.parametrize("suffix", ["parquet", "arrows", "jsonl", "json", "txt"])
def test_files_come_out_whole_and_go_in_again(orders: Shell, suffix: str) -> None:
    orders("publish", "orders", *[f"v{n}" for n in range(50)], "--key", "k")
    path = orders.cwd / f"out.{suffix}"
    done = orders("consume", "orders", "-g", "archive", "--out", path, "--batch", "20")
    assert "50 messages" in done.err
    assert done.out == b""
    assert not path.with_name(path.name + ".part").exists()
    orders("consume", "orders", "-g", "archive", code=1)

    orders("publish", "orders", "--file", path)
    again = orders("consume", "orders", "-g", "archive", "--json").json_lines
    assert [m["value"] for m in again] == [f"v{n}" for n in range(50)]
    if suffix != "txt":
        assert {m["key"] for m in again} == {"k"}


def test_what_was_consumed_into_a_json_file_is_published_as_it_was(orders: Shell) -> None:
    messages = [
        {"value": '{"a": 1}', "key": "k", "headers": {"h": "1"}, "priority": "high"},
        {"value_base64": "/wD+"},
        {"value": None, "key": "gone"},
    ]
    piped = b"\n".join(json.dumps(m).encode() for m in messages)
    orders("publish", "orders", "--format", "jsonl", stdin=piped)
    path = orders.cwd / "y.json"
    orders("consume", "orders", "-g", "g", "--out", path)
    first = [json.loads(line) for line in path.read_text().splitlines()]

    array, below = orders.cwd / "array.json", orders.cwd / "below.json"
    array.write_text(json.dumps(first))
    below.write_text("\n".join(json.dumps(m, indent=2) for m in first))
    for file in (path, array, below):
        orders("publish", "orders", "--file", file)
        again = orders("consume", "orders", "-g", "g", "--json").json_lines
        assert [content(m) for m in again] == [content(m) for m in first]


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ('[{"a": 1}, "text", 7]', ['{"a": 1}', "text", "7"]),
        ('[\n  {\n    "a": 1\n  },\n  [2, 3],\n  null\n]\n', ['{"a":1}', "[2, 3]", "null"]),
        ('{\n  "a": 1.50\n}\n', ['{"a":1.50}']),
        ('{"a": 1}\n{"a": 2}\n', ['{"a": 1}', '{"a": 2}']),
        ('{\n"a": 1}\n{\n"a": 2}\n', ['{"a":1}', '{"a":2}']),
        ('[{"value": 7}, {"value": "x", "b": 1}]', ['{"value": 7}', '{"value": "x", "b": 1}']),
        ('{"offset": 3}', ['{"offset": 3}']),
        ('{"a": 1}\n  \n{"a": 2}\n \n', ['{"a": 1}', '{"a": 2}']),
        ('\ufeff{"a": 1}\n', ['{"a": 1}']),
        ("\ufeff[1, 2]", ["1", "2"]),
    ],
)
def test_what_is_in_a_json_file_decides(orders: Shell, text: str, values: list[str] | None) -> None:
    path = orders.cwd / "x.json"
    path.write_text(text)
    orders("publish", "orders", "--file", path)
    assert consume(orders) == values


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"value": "x"}', "message 1: this can be a message, or a value"),
        ('[{"value": "x", "key": "k"}]', "message 1: this can be a message, or a value"),
        ("[1]\n[2]", "--format lines"),
        ("{", "--format whole"),
        ("[" * 100_000, "--format whole"),
        ('{"a":' * 100_000, "--format whole"),
    ],
)
def test_what_is_not_clear_in_a_json_file_is_asked(orders: Shell, text: str, says: str) -> None:
    path = orders.cwd / "x.json"
    path.write_text(text)
    done = orders("publish", "orders", "--file", path, code=2)
    assert says in done.err
    assert "--format" in done.err
    orders("consume", "orders", "-g", "g", code=1)


def test_a_line_of_a_json_file_that_is_none_is_named(orders: Shell) -> None:
    path = orders.cwd / "x.json"
    path.write_text('{"a": 1}\nnone\n')
    assert "message 2 is not JSON" in orders("publish", "orders", "--file", path, code=2).err


def test_the_format_says_whether_json_is_a_message_or_a_value(orders: Shell) -> None:
    path = orders.cwd / "x.json"
    path.write_text('[\n  {"value": "x", "key": "k"}\n]')
    orders("publish", "orders", "--file", path, "--format", "json")
    orders("publish", "orders", "--file", path, "--format", "jsonl")
    first, second = orders("consume", "orders", "-g", "g", "--json").json_lines
    assert (first["value"], first.get("key")) == ('{"value": "x", "key": "k"}', None)
    assert (second["value"], second["key"]) == ("x", "k")


def test_messages_and_values_are_not_mixed(orders: Shell) -> None:
    orders("publish", "orders", "a")
    path = orders.cwd / "x.json"
    orders("consume", "orders", "-g", "g", "--out", path)
    path.write_text(path.read_text() + '{"a": 1}\n')
    assert "message 2: some are" in orders("publish", "orders", "--file", path, code=2).err


def test_a_table_is_sent_in_parts_that_the_server_takes(tmp_path: Path) -> None:
    shell = Shell(cwd=tmp_path)
    how = ["--data", "data", "--port", "0", "--set", "body_bytes_max=10000000"]
    server = shell.start("serve", *how)
    assert server.stderr is not None
    url = json.loads(server.stderr.readline())["message"].removeprefix("listening on ")
    text = ["x" * 1_000_000] * 15
    for name, table in {"value": pa.table({"value": text}), "a": pa.table({"a": text})}.items():
        path = tmp_path / f"{name}.parquet"
        pq.write_table(table, path)
        shell("topic", "create", name, "--url", url)
        shell("publish", name, "--file", path, "--url", url)
        found = shell("consume", name, "-g", "g", "--url", url).lines
        assert len(found) == 15
        assert {len(line) for line in found} == {1_000_000 + (8 if name == "a" else 0)}
    server.send_signal(signal.SIGTERM)
    server.communicate(timeout=30)


def test_a_folder_gets_a_file_for_every_so_many_messages(orders: Shell) -> None:
    orders("publish", "orders", *[str(n) for n in range(25)])
    lake = orders.cwd / "new" / "lake"  # made, because of the slash
    how = ["--out", f"{lake}/", "--format", "parquet", "--per-file", "10", "--batch", "10"]
    orders("consume", "orders", "-g", "archive", *how)
    files = sorted(lake.iterdir())
    assert [pq.read_table(file).num_rows for file in files] == [10, 10, 5]
    values = [v for file in files for v in pq.read_table(file).column("value").to_pylist()]
    assert values == [str(n).encode() for n in range(25)]


def test_the_rows_of_any_table_become_json_objects(orders: Shell) -> None:
    path = orders.cwd / "rows.parquet"
    pq.write_table(pa.table({"customer": [7, None], "what": ["apples", "pears"]}), path)
    orders("publish", "orders", "--file", path, "--key-column", "customer")
    seen = orders("consume", "orders", "-g", "g", "--json").json_lines
    assert [json.loads(m["value"]) for m in seen] == [
        {"customer": 7, "what": "apples"},
        {"customer": None, "what": "pears"},
    ]
    assert [m.get("key") for m in seen] == ["7", None]


def test_an_arrow_stream_through_a_pipe(orders: Shell) -> None:
    orders("publish", "orders", "a", "b")
    stream = orders("consume", "orders", "-g", "g", "--format", "arrow").out
    table = pa.ipc.open_stream(stream).read_all()
    assert table.column("value").to_pylist() == [b"a", b"b"]
    orders("publish", "orders", "--format", "arrow", stdin=stream)
    assert consume(orders) == ["a", "b"]


def test_a_whole_file_can_be_one_message(orders: Shell) -> None:
    path = orders.cwd / "picture.bin"
    path.write_bytes(bytes(range(256)))
    orders("publish", "orders", "--file", path, "--format", "whole")
    table = pa.ipc.open_stream(
        orders("consume", "orders", "-g", "g", "--format", "arrow").out
    ).read_all()
    assert table.column("value").to_pylist() == [bytes(range(256))]


def test_a_stream_reads_in_order_and_goes_on_where_it_was(orders: Shell) -> None:
    orders("publish", "orders", *"abcde")
    how = ["--stream", "--wait", "100ms"]
    assert consume(orders, *how, "--max", "2", group="audit") == ["a", "b"]
    assert consume(orders, *how, group="audit") == ["c", "d", "e"]
    assert consume(orders, *how, "--from", "3", group="late") == ["d", "e"]
    (first, *_) = orders("consume", "orders", "-g", "s", *how, "--json").json_lines
    assert (first["value"], first["offset"], first["partition"]) == ("a", 0, 0)
    assert consume(orders) == ["a", "b", "c", "d", "e"]  # a queue misses nothing for it


def test_a_duplicate_is_named(orders: Shell) -> None:
    orders("publish", "orders", "a", "--dedup-id", "x")
    again = orders("publish", "orders", "a", "--dedup-id", "x")
    assert "was there already, at offset 0" in again.text
    assert consume(orders) == ["a"]


def test_a_delayed_message_with_an_id_is_published_once(orders: Shell) -> None:
    how = ["--delay", "1h", "--dedup-id", "x", "--dedup-window", "2h"]
    first = orders("publish", "orders", "a", *how).text.split()[0]
    again = orders("publish", "orders", "a", *how)
    assert f"{first} was there already, and will be delivered at" in again.text
    now = orders("publish", "orders", "a", "--dedup-id", "x")
    assert f"{first} was there already, delayed to orders/0" in now.text
    lines = b'{"value": "b", "dedup_id": "y"}\n{"value": "c", "dedup_id": "x"}'
    for _ in range(2):
        orders("publish", "orders", "--format", "jsonl", "--delay", "1h", stdin=lines)
    assert orders("delayed", "stats", "orders", "--json").json["stats"]["pending"] == 2
    assert orders("delayed", "cancel", "orders", first).code == 0


def test_peek_takes_nothing(orders: Shell) -> None:
    orders("publish", "orders", "a\x1b[31m", "b", "c", "--key", "k")
    shown = orders("peek", "orders", "--limit", "2")
    assert "a\\x1b[31m" in shown.text  # what others wrote does not steer the terminal
    assert [line.split()[-1] for line in shown.lines[1:]] == ["a\\x1b[31m", "b"]
    assert [m["value"] for m in orders("peek", "orders", "--at", "2", "--json").json_lines] == ["c"]
    assert orders("peek", "orders", "--at", "-1h", "--limit", "1", "--json").json_lines
    assert len(consume(orders)) == 3


def test_peek_shows_all_partitions_with_the_place_of_each_message(sh: Shell) -> None:
    sh("topic", "create", "wide", "partitions=3")
    for partition in "201":
        sh("publish", "wide", f"in-{partition}", "--partition", partition)
    found = sh("peek", "wide", "--json").json_lines
    assert [(m["partition"], m["value"]) for m in found] == [(2, "in-2"), (0, "in-0"), (1, "in-1")]
    assert [line.split()[0] for line in sh("peek", "wide").lines[1:]] == ["2", "0", "1"]
    assert [m["value"] for m in sh("peek", "wide", "--partition", "0", "--json").json_lines] == [
        "in-0"
    ]


@pytest.mark.parametrize(
    ("args", "stdin", "code", "says"),
    [
        (["publish", "nowhere", "x"], b"", 3, "there is no topic"),
        (["publish", "orders", "x", "--priority", "urgent"], b"", 2, "critical (0), high (1)"),
        (["publish", "orders", "x", "--delay", "soon"], b"", 2, "a duration is a string"),
        (["publish", "orders", "x", "--delay", "91d"], b"", 2, "90 days"),
        (["publish", "orders", "x", "--deliver-at", "soon"], b"", 2, "2030-01-31T12:00:00Z"),
        (["publish", "orders", "x", "--header", "novalue"], b"", 2, "is not NAME=VALUE"),
        (["publish", "orders", "x", "--partition", "7"], b"", 3, "has partitions 0 to 0"),
        (["publish", "orders", "x", "--file", "y"], b"", 2, "not both"),
        (["publish", "orders", "--file", "nowhere.txt"], b"", 3, "nowhere.txt"),
        (["publish", "orders", "--file", "."], b"", 2, "is a folder; give a file"),
        (["publish", "orders", "a", "b", "--dedup-id", "x"], b"", 2, "is for one message"),
        (["publish", "orders", "--format", "jsonl"], b"[1]", 2, "message 1: an object is wanted"),
        (["publish", "orders", "--format", "jsonl"], b"{", 2, "message 1: "),
        (["publish", "orders", "--format", "jsonl"], b'{"value": "x", "kei": 1}', 2, "kei"),
        (["publish", "orders", "--format", "arrow"], b"no arrow", 2, "not a file of arrow"),
        (["publish", "orders", "--format", "parquet"], b"none", 2, "not a file of parquet"),
        (["consume", "orders"], b"", 2, "--group"),
        (["consume", "nowhere", "-g", "g"], b"", 3, "there is no topic"),
        (["consume", "orders", "-g", "g", "--format", "parquet"], b"", 2, "add --out"),
        (["consume", "orders", "-g", "g", "-f", "--out", "x.txt"], b"", 2, "many files"),
        (["consume", "orders", "-g", "g", "--wait", "never"], b"", 2, "a duration is"),
        (["peek", "orders", "--at", "noon"], b"", 2, "earliest, latest, an offset, a time"),
    ],
)
def test_what_is_wrong_is_one_sentence_and_a_code(
    orders: Shell, args: list[str], stdin: bytes, code: int, says: str
) -> None:
    done = orders(*args, stdin=stdin, code=code)
    assert says in done.err
    assert orders("topic", "list", "--json").json["topics"][0]["messages"] == 0


def test_an_existing_file_is_not_written_over(orders: Shell) -> None:
    (orders.cwd / "out.txt").write_text("mine")
    orders("publish", "orders", "a")
    done = orders("consume", "orders", "-g", "g", "--out", "out.txt", code=4)
    assert "exists already" in done.err
    assert (orders.cwd / "out.txt").read_text() == "mine"
    assert consume(orders) == ["a"]  # it was given back


def test_an_error_in_the_middle_says_how_far_it_came(orders: Shell) -> None:
    good = b'{"value": "x"}\n' * 30
    how = ["--format", "jsonl", "--batch", "10"]
    done = orders("publish", "orders", *how, stdin=good + b"broken", code=2)
    assert "30 messages were published before that" in done.err
    assert "message 31" in done.err


def test_a_message_that_is_too_long_is_refused(sh: Shell, tmp_path: Path) -> None:
    sh("topic", "create", "orders", "message_bytes_max=100")
    done = sh("publish", "orders", "x" * 101, code=2)
    assert "[message_too_large]" in done.err
