"""API keys on real folders: what is stored, who is let in, and what other processes change."""

from __future__ import annotations

import json
import multiprocessing
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.errors import InvalidInput, KeyExists, KeyNotFound, KeysUnreadable
from penstock.server.keys import RIGHTS, KeyStore, Role


@pytest.fixture
def store(tmp_path: Path) -> KeyStore:
    return KeyStore.open(tmp_path / "data")


def test_a_new_key_lets_its_owner_in_and_nobody_else(store: KeyStore) -> None:
    key, token = store.create("billing", "consumer", "shop")
    other, _ = store.create("other", "admin")

    assert store.authenticate(token) == key
    assert (key.name, key.role, key.namespace) == ("billing", "consumer", "shop")
    changed = token[:-1] + ("A" if token[-1] != "A" else "B")
    under_another_id = token.replace(key.id, other.id)
    for wrong in ("", "psk_", token[:-1], token + "x", changed, under_another_id, "Ü", "\ud800"):
        assert store.authenticate(wrong) is None, wrong


def test_a_token_has_256_random_bits_and_is_stored_nowhere(store: KeyStore, tmp_path: Path) -> None:
    tokens = {store.create(f"k{n}", "readonly").token for n in range(20)}
    secrets = {token.split("_", 2)[2] for token in tokens}
    assert len(secrets) == 20
    assert {len(secret) for secret in secrets} == {43}  # 32 bytes as base64

    stored = b"".join(path.read_bytes() for path in (tmp_path / "data").iterdir())
    assert not any(secret.encode() in stored for secret in secrets)
    assert all(len(key["sha256"]) == 64 for key in read(tmp_path / "data")["keys"])


def test_only_the_owner_may_read_the_file(store: KeyStore, tmp_path: Path) -> None:
    store.create("billing", "consumer")
    for path in (tmp_path / "data").iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path


def test_a_revoked_key_is_refused_at_once_and_the_others_stay(store: KeyStore) -> None:
    first, first_token = store.create("first", "producer")
    _, second_token = store.create("second", "producer")
    assert store.revoke(first.id) == first
    assert store.authenticate(first_token) is None
    assert store.authenticate(second_token) is not None
    assert [key.name for key in store.list()] == ["second"]
    store.revoke("second")
    assert store.authenticate(second_token) is None
    with pytest.raises(KeyNotFound, match="first"):
        store.revoke("first")


def test_revoking_the_last_key_opens_no_door(store: KeyStore, tmp_path: Path) -> None:
    assert store.empty
    key, _ = store.create("only", "admin")
    assert not store.empty
    store.revoke(key.id)
    assert store.list() == []
    assert not store.empty
    assert not KeyStore.open(tmp_path / "data").empty


def test_losing_the_file_under_a_running_server_opens_no_door(
    store: KeyStore, tmp_path: Path
) -> None:
    _, token = store.create("only", "admin")
    (tmp_path / "data" / "keys.json").unlink()
    assert store.authenticate(token) is None
    assert not store.empty


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.write_text("{"),
        lambda path: path.write_text('{"version": 1, "keys": [{"id": "x"}]}'),
        lambda path: path.write_text('{"version": 2, "keys": []}'),
        lambda path: path.write_bytes(path.read_bytes()[:-20]),
    ],
)
def test_a_damaged_file_lets_nobody_in(
    store: KeyStore, tmp_path: Path, damage: Callable[[Path], object]
) -> None:
    _, token = store.create("only", "admin")
    damage(tmp_path / "data" / "keys.json")
    with pytest.raises(KeysUnreadable, match=r"keys\.json cannot be read"):
        store.authenticate(token)
    with pytest.raises(KeysUnreadable):
        store.authenticate(token)  # also the second time
    with pytest.raises(KeysUnreadable):
        store.create("another", "admin")
    with pytest.raises(KeysUnreadable):
        KeyStore.open(tmp_path / "data")


@pytest.mark.parametrize("target", ["keys.json", "not-mounted/keys.json"])  # the first: a loop
def test_where_it_is_not_known_whether_there_are_keys_nobody_is_let_in(
    tmp_path: Path, target: str
) -> None:
    store = KeyStore.open(tmp_path)
    assert store.empty
    (tmp_path / "keys.json").symlink_to(target)
    with pytest.raises(KeysUnreadable):
        store.authenticate("psk_x_y")
    with pytest.raises(KeysUnreadable, match=r"keys\.json cannot be read"):
        KeyStore.open(tmp_path)
    with pytest.raises(KeysUnreadable):
        KeyStore(tmp_path).create("another", "admin")
    assert (tmp_path / "keys.json").is_symlink()


def test_what_another_process_changed_counts_from_the_next_request_on(
    store: KeyStore, tmp_path: Path
) -> None:
    elsewhere = KeyStore.open(tmp_path / "data")
    key, token = elsewhere.create("late", "producer")
    assert store.authenticate(token) == key
    elsewhere.revoke(key.id)
    assert store.authenticate(token) is None


def test_processes_that_make_keys_at_the_same_time_undo_nothing(tmp_path: Path) -> None:
    spawn = multiprocessing.get_context("spawn")
    makers = [spawn.Process(target=make_keys, args=(str(tmp_path), n)) for n in range(3)]
    for maker in makers:
        maker.start()
    for maker in makers:
        maker.join(60)
        assert maker.exitcode == 0
    names = {key.name for key in KeyStore.open(tmp_path).list()}
    assert names == {f"{n}-{i}" for n in range(3) for i in range(10)}


def make_keys(folder: str, maker: int) -> None:
    store = KeyStore.open(folder)
    for i in range(10):
        store.create(f"{maker}-{i}", "producer")


def test_a_failed_write_leaves_the_keys_as_they_were(
    store: KeyStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, token = store.create("first", "admin")

    def no_disk(fd: int) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", no_disk)
        with pytest.raises(OSError, match="Input/output"):
            store.create("second", "admin")
    assert KeyStore.open(tmp_path / "data").list() == [key]
    assert store.authenticate(token) == key
    store.create("second", "admin")


@pytest.mark.parametrize("name", ["", " ", "a b", "-a", "x" * 65, "ä", "a/b", 7])
def test_a_bad_name_is_refused(store: KeyStore, name: str) -> None:
    with pytest.raises(InvalidInput, match="key name"):
        store.create(name, "admin")


def test_wrong_roles_namespaces_and_names_twice_are_refused(store: KeyStore) -> None:
    with pytest.raises(InvalidInput, match="allowed: admin, producer, consumer, readonly"):
        store.create("k", "root")  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="namespace name"):
        store.create("k", "admin", "No Space")
    store.create("k", "admin")
    with pytest.raises(KeyExists, match="there is an API key 'k' already"):
        store.create("k", "readonly")
    assert store.empty is False
    assert len(store.list()) == 1


@pytest.mark.parametrize(
    ("role", "may", "may_not"),
    [
        ("admin", {"describe", "look", "publish", "consume", "manage"}, set()),
        ("producer", {"describe", "publish"}, {"look", "consume", "manage"}),
        ("consumer", {"describe", "look", "consume"}, {"publish", "manage"}),
        ("readonly", {"describe", "look"}, {"publish", "consume", "manage"}),
    ],
)
def test_a_role_is_good_for_what_it_says(
    store: KeyStore, role: Role, may: set[str], may_not: set[str]
) -> None:
    key, _ = store.create("k", role)
    assert RIGHTS[role] == may
    assert all(key.may(right, "any") and key.may(right, None) for right in may)  # type: ignore[arg-type]
    assert not any(key.may(right, "any") for right in may_not)  # type: ignore[arg-type]


def test_a_key_of_a_namespace_is_good_for_nothing_else(store: KeyStore) -> None:
    key, _ = store.create("k", "admin", "shop")
    assert key.may("manage", "shop")
    assert not key.may("describe", "default")
    assert not key.may("manage", None)


def read(folder: Path) -> dict[str, list[dict[str, str]]]:
    found: dict[str, list[dict[str, str]]] = json.loads((folder / "keys.json").read_text())
    return found
