"""API keys: who may come in, and what for.

A key is made of 256 random bits. It is shown once, when it is made; what is kept is its SHA-256, in
`keys.json` of the data folder, which only its owner may read. The file is replaced as a whole and
synced, so a crash leaves the old keys or the new ones. A server notices by the next request when
another process, such as `penstock key`, has changed them.

Deny by default: as long as no key was ever made there is no `keys.json`, and `empty` is true. From
the first key on a key is needed, also after the last one was revoked or if the file is lost under
a running server; a file that cannot be read lets nobody in. That keys existed is noted in
`keys.json.lock`, so that a server does not start without the file once it was there.
"""

from __future__ import annotations

import base64
import fcntl
import hashlib
import hmac
import os
import re
import secrets
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Literal, NamedTuple, TypeAlias, get_args

import msgspec

from penstock.errors import InvalidInput, KeyExists, KeyNotFound, KeysUnreadable
from penstock.log.files import DiskFiles
from penstock.model.names import topic_name

Role = Literal["admin", "producer", "consumer", "readonly"]
Right = Literal["describe", "look", "publish", "consume", "manage"]
"""`describe`: names, settings, figures. `look`: messages, without taking them. `publish`: also
delays, and to cancel them. `consume`: receive and settle, streams, positions. `manage`: topics,
groups, dead letters, purging; keys too, for a key of all namespaces."""

RIGHTS: dict[Role, frozenset[Right]] = {
    "admin": frozenset(get_args(Right)),
    "producer": frozenset({"describe", "publish"}),
    "consumer": frozenset({"describe", "look", "consume"}),
    "readonly": frozenset({"describe", "look"}),
}

FILE = "keys.json"
_CAN_ASK = os.access in os.supports_effective_ids and os.access in os.supports_follow_symlinks
_TOKEN = re.compile(r"psk_([0-9a-f]{12})_[A-Za-z0-9_-]{43}")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class Key(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a key; never the key itself. Fields may be added, never renamed."""

    id: str
    name: str
    role: Role
    namespace: str | None = None
    """None: every namespace."""
    created_at_us: int = 0
    sha256: str = ""

    def may(self, right: Right, namespace: str | None) -> bool:
        """Whether it is good for this, in a namespace; None: for what belongs to none."""
        return right in RIGHTS[self.role] and self.namespace in (None, namespace)


class KeyFile(msgspec.Struct, frozen=True, kw_only=True):
    version: int = 1
    keys: list[Key] = []


class NewKey(NamedTuple):
    """A key, and the token to show once."""

    key: Key
    token: str


_Stamp: TypeAlias = tuple[int, int, int]


class KeyStore:
    """The keys of a data folder. Any thread and any process may use it at the same time."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self._folder = os.path.abspath(os.fspath(folder))
        self._path = os.path.join(self._folder, FILE)
        self._lock = threading.Lock()
        self._stamp: _Stamp | None = None
        self._keys: dict[str, Key] = {}
        self._needed = False
        self._missing = False  # there was no file, and never had been one

    @classmethod
    def open(cls, data_folder: str | os.PathLike[str]) -> KeyStore:
        """The keys of a folder; KeysUnreadable if its file is damaged."""
        store = cls(data_folder)
        store._refresh()
        return store

    def check_not_lost(self) -> None:
        """Raise InvalidInput if there were keys and their file is gone; called at start."""
        if not self.empty:
            fd = self._open_lock()
            _note_keys(fd)
            os.close(fd)
            return
        with suppress(FileNotFoundError):
            if os.path.getsize(self._path + ".lock"):
                raise InvalidInput(
                    f"{self._path} is gone, and there were keys in it. Restore it from a copy, "
                    "make a new key with `penstock key create` or, if everybody may come in, "
                    f"remove {self._path}.lock"
                )

    @property
    def empty(self) -> bool:
        """Whether no key was ever made here, so that none can be asked for."""
        self._refresh()
        return not self._needed

    def authenticate(self, token: str) -> Key | None:
        """Whose token this is; None if it is nobody's, or no longer."""
        found = _TOKEN.fullmatch(token) if token.isascii() else None
        keys = self._refresh()
        key = keys.get(found[1]) if found else None
        # The same work for a wrong id as for a wrong secret, so that time tells nothing.
        known = key.sha256 if key is not None else "0" * 64
        right = hmac.compare_digest(_sha256(token), known)
        return key if right else None

    def by_id(self, id_: str) -> Key | None:
        """The key of an id, for who proves to have it in another way."""
        return self._refresh().get(id_)

    def knows(self, key: Key) -> bool:
        """Whether it is still good, and as it was."""
        return self._refresh().get(key.id) == key

    def create(self, name: str, role: Role, namespace: str | None = None) -> NewKey:
        """Make a key. The token is in the result and nowhere else."""
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise InvalidInput(
                f"key name {name!r:.100} is not allowed; it is made of letters, digits, '.', '_', "
                "'-'; 64 at most, the first a letter or digit"
            )
        if role not in get_args(Role):
            raise InvalidInput(f"role is {role!r}; allowed: {', '.join(get_args(Role))}")
        if namespace is not None:
            topic_name("any", namespace)
        id_ = secrets.token_hex(6)
        token = f"psk_{id_}_{secrets.token_urlsafe(32)}"
        key = Key(
            id=id_,
            name=name,
            role=role,
            namespace=namespace,
            created_at_us=time.time_ns() // 1000,
            sha256=_sha256(token),
        )
        with self._changing() as keys:
            if any(other.name == name for other in keys.values()):
                raise KeyExists(name)
            keys[id_] = key
        return NewKey(key, token)

    def list(self) -> list[Key]:
        """All keys that are good, oldest first."""
        return sorted(self._refresh().values(), key=lambda key: (key.created_at_us, key.id))

    def revoke(self, id_: str) -> Key:
        """Make a key good for nothing, at once, by its id or its name."""
        with self._changing() as keys:
            for key in keys.values():
                if id_ in (key.id, key.name):
                    return keys.pop(key.id)
            raise KeyNotFound(id_)

    @contextmanager
    def _changing(self) -> Iterator[dict[str, Key]]:
        """The present keys, to be changed; they are stored at the end, unless there is an error."""
        DiskFiles().make_folder(self._folder)
        fd = self._open_lock()
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)  # two processes must not undo each other's change
            keys = dict(self._refresh())
            yield keys
            self._write(KeyFile(keys=list(keys.values())))
            _note_keys(fd)
            self._refresh()
        finally:
            os.close(fd)

    def _open_lock(self) -> int:
        return os.open(self._path + ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def _write(self, file: KeyFile) -> None:
        """As `write_durably`, in a file that nobody else may read."""
        data = msgspec.json.format(msgspec.json.encode(file), indent=2) + b"\n"
        new = self._path + ".tmp"
        fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "wb") as out:
            out.write(data)
            out.flush()
            os.fsync(out.fileno())
        os.replace(new, self._path)
        DiskFiles().sync_folder(self._folder)

    def _refresh(self) -> dict[str, Key]:
        """The keys as they are on disk now; the file is read only when it was replaced."""
        if self._missing and not _may_be_there(self._path):
            return self._keys
        try:
            status = os.stat(self._path)
        except OSError as exc:
            if not isinstance(exc, FileNotFoundError) or os.path.islink(self._path):
                # There may be keys: it is not known whom to let in.
                raise KeysUnreadable(self._path, exc) from exc
            with self._lock:
                self._stamp, self._keys = None, {}
                self._missing = not self._needed
                return self._keys
        stamp = status.st_ino, status.st_mtime_ns, status.st_size
        with self._lock:
            if stamp != self._stamp:
                self._needed, self._missing = True, False
                self._stamp, self._keys = None, {}
                self._keys = _read(self._path)
                self._stamp = stamp
            return self._keys


def sqs_secret(key: Key) -> str:
    """The secret access key that signs requests to the SQS API.

    Whoever checks a signature has to know the secret, so it is derived from what is stored: who can
    read `keys.json` can sign such requests, and nothing else.
    """
    digest = hmac.new(bytes.fromhex(key.sha256), b"sqs", hashlib.sha256).digest()
    return base64.b64encode(digest).decode()


def _may_be_there(path: str) -> bool:
    """Whether there is anything of that name, to be looked at.

    Asked with every request to a server without keys, where `os.stat` would take more than twice as
    long, most of it for its exception.
    """
    return not _CAN_ASK or os.access(path, os.F_OK, effective_ids=True, follow_symlinks=False)


def _note_keys(lock: int) -> None:
    """Note in the lock file that keys exist."""
    if not os.fstat(lock).st_size:
        os.write(lock, b"keys were made here\n")
        os.fsync(lock)


def _read(path: str) -> dict[str, Key]:
    try:
        file = msgspec.json.decode(DiskFiles().read(path), type=KeyFile)
    except FileNotFoundError:
        return {}
    except (OSError, msgspec.MsgspecError) as exc:
        raise KeysUnreadable(path, exc) from exc
    if file.version != 1:
        raise KeysUnreadable(path, f"version {file.version}; this Penstock knows version 1")
    return {key.id: key for key in file.keys}


def _sha256(token: str) -> str:
    return hashlib.sha256(token.encode(errors="replace")).hexdigest()
