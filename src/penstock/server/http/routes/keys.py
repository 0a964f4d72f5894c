"""API keys, for whoever may manage everything."""

from __future__ import annotations

import msgspec

from penstock.server.http.endpoints import HttpRequest, Table
from penstock.server.keys import Key, Role, sqs_secret

table = Table("keys")


class KeyView(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    id: str
    name: str
    role: Role
    namespace: str | None
    created_at_us: int
    token: str | None = None
    """The key itself: shown once, when it is made."""
    sqs_secret: str | None = None
    """The secret access key for the SQS API, whose access key id is `id`: shown once, too."""


class Keys(msgspec.Struct, frozen=True, kw_only=True):
    keys: list[KeyView]


class MakeKey(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: str
    role: Role
    namespace: str | None = None
    """By default it is good for every namespace."""


@table.add("GET", "/v1/keys", right="manage", result=Keys, in_namespaces=False)
async def list_keys(call: HttpRequest) -> Keys:
    """All keys that are good; never the keys themselves."""
    return Keys(keys=[_view(key) for key in await call.door.aside(call.door.keys.list)])


@table.add(
    "POST",
    "/v1/keys",
    right="manage",
    body=MakeKey,
    result=KeyView,
    status=201,
    in_namespaces=False,
)
async def make_key(call: HttpRequest) -> KeyView:
    """Make a key. From the first one on, every request needs one."""
    body: MakeKey = call.body
    made = await call.door.aside(call.door.keys.create, body.name, body.role, body.namespace)
    return _view(made.key, made.token)


@table.add("DELETE", "/v1/keys/{id}", right="manage", result=KeyView, in_namespaces=False)
async def revoke_key(call: HttpRequest) -> KeyView:
    """Make a key good for nothing, at once, by its id or its name."""
    return _view(await call.door.aside(call.door.keys.revoke, call.parameters["id"]))


def _view(key: Key, token: str | None = None) -> KeyView:
    return KeyView(
        id=key.id,
        name=key.name,
        role=key.role,
        namespace=key.namespace,
        created_at_us=key.created_at_us,
        token=token,
        sqs_secret=None if token is None else sqs_secret(key),
    )
