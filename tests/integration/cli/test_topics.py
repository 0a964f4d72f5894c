"""`penstock topic`: from creation to deletion, on a folder and on a server."""

from __future__ import annotations

import json

import pytest

from tests.integration.cli.shell import Shell, run


def test_a_topic_from_creation_to_deletion(sh: Shell) -> None:
    made = sh("topic", "create", "orders", "partitions=2", "backoff=1s,3,2m", "ttl=1h", "--json")
    assert made.json["settings"]["partitions"] == 2
    assert made.json["settings"]["backoff"] == [1000, 3.0, 120_000]
    assert made.json["settings"]["ttl_ms"] == 3_600_000

    sh("publish", "orders", "a", "b", "c")
    listed = sh("topic", "list")
    assert listed.lines[0].split()[:3] == ["topic", "partitions", "messages"]
    assert [line.split()[1:3] for line in listed.lines[1:]] == [["2", "3"]]
    assert sh("topic", "list", "--json").json["topics"][0]["messages"] == 3

    altered = sh("topic", "alter", "orders", "partitions=3", "ttl=null", "max_retries=null")
    assert ["partitions", "3"] in [line.split() for line in altered.lines]
    assert ["ttl", "null"] in [line.split() for line in altered.lines]
    assert ["max_retries", "null"] in [line.split() for line in altered.lines]

    described = sh("topic", "describe", "orders", "--json").json
    assert len(described["stats"]["partitions"]) == 3
    described_lines = sh("topic", "describe", "orders").lines
    assert ["backoff", "1s,3,2m"] in [line.split() for line in described_lines]

    assert sh("topic", "purge", "orders", "--yes").lines == ["3 purged"]
    sh("topic", "delete", "orders", "--yes")
    assert sh("topic", "list", "--json").json == {"topics": []}


def test_what_describe_prints_can_be_given_again(sh: Shell) -> None:
    sh("topic", "create", "one", "visibility=90s", "in_flight_max=7", "weights=9,7,5,3,1")
    shown = [line.split(None, 1) for line in sh("topic", "describe", "one").lines]
    settings = [f"{name}={value}" for name, value in shown[: shown.index([])]]
    sh("topic", "create", "two", *settings)
    first, second = (sh("topic", "describe", t, "--json").json for t in ("one", "two"))
    assert first["settings"] == second["settings"]


def test_purging_for_one_group_leaves_the_others_theirs(sh: Shell) -> None:
    sh("topic", "create", "orders")
    sh("publish", "orders", "a", "b")
    for group in ("one", "two"):
        sh("group", "reset", group, "orders", "--to", "earliest", "--kind", "queue")
    assert sh("topic", "purge", "orders", "--group", "one", "-y", "--json").json["purged"] == 2
    sh("consume", "orders", "-g", "one", code=1)
    assert sh("consume", "orders", "-g", "two").lines == ["a", "b"]


@pytest.mark.parametrize(
    ("args", "code", "says"),
    [
        (["topic", "describe", "nowhere"], 3, "nowhere'; `penstock topic create` makes one"),
        (["topic", "describe", "ordrs"], 3, "ordrs'; did you mean '"),
        (["topic", "create", "orders"], 4, "`penstock topic alter` changes its settings"),
        (["topic", "create", ".orders"], 2, "topic name '.orders' is not allowed"),
        (["topic", "create", "x", "partitions"], 2, "give NAME=VALUE"),
        (["topic", "create", "x", "partitons=2"], 2, "did you mean 'partitions'?"),
        (["topic", "create", "x", "ttl=1h", "ttl=2h"], 2, "ttl is given twice"),
        (["topic", "create", "x", "visibility=soon"], 2, "a duration is a string such as"),
        (["topic", "alter", "orders", "partitions=1"], 2, "they can be added"),
        (["topic", "alter", "orders"], 2, "say what to change"),
        (["topic", "delete", "orders"], 2, "add --yes if so"),
        (["topic", "purge", "orders"], 2, "add --yes if so"),
        (["topic", "delete", "nowhere", "--yes"], 3, "there is no topic"),
        (["topic", "dance"], 2, "No such command 'dance'"),
    ],
)
def test_what_is_wrong_is_one_sentence_and_a_code(
    sh: Shell, args: list[str], code: int, says: str
) -> None:
    sh("topic", "create", "orders", "partitions=2")
    done = sh(*args, code=code)
    assert says in done.err
    assert done.out == b""


def test_errors_are_json_too_when_json_is_wanted(sh: Shell) -> None:
    sh("topic", "create", "orders")
    done = sh("topic", "describe", "nowhere", "--json", code=3)
    error = json.loads(done.err)["error"]
    assert error["code"] == "topic_not_found"
    assert error["retriable"] is False
    assert error["exit_code"] == 3


def test_a_folder_that_is_not_there_is_not_made_by_looking(folder: Shell) -> None:
    done = folder("topic", "list", code=3)
    assert "there is no data folder" in done.err
    assert not (folder.cwd / "data").exists()
    (folder.cwd / "data").mkdir()
    (folder.cwd / "data" / "notes.txt").write_text("mine")
    assert "there is no data folder" in folder("stats", code=3).err
    assert [each.name for each in (folder.cwd / "data").iterdir()] == ["notes.txt"]
    folder("topic", "create", "orders")
    assert (folder.cwd / "data").is_dir()


def test_namespaces_keep_topics_apart(folder: Shell) -> None:
    folder("topic", "create", "orders", "-n", "shop")
    assert folder("topic", "list", "--json").json["topics"] == []
    in_shop = run("topic", "list", "--json", *folder.where, PENSTOCK_NAMESPACE="shop")
    assert [topic["topic"] for topic in in_shop.json["topics"]] == ["shop/orders"]
