"""`penstock key`: the API keys of a server.

With --data they are changed in the folder, which a running server notices; with --url by the
server, for which a key of the role admin is needed.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

import msgspec
import typer

from penstock.cli import tables
from penstock.cli.http import call
from penstock.cli.output import note
from penstock.cli.session import Session, command
from penstock.cli.units import moment
from penstock.server.keys import Key, KeyStore, sqs_secret

commands = typer.Typer()


class Role(StrEnum):
    """What a key is good for."""

    admin = "admin"
    producer = "producer"
    consumer = "consumer"
    readonly = "readonly"


CREATE = """
[bold]Examples[/bold]

The first key: from now on the server wants one.

[cyan]  penstock key create ops --role admin --data ./data[/cyan]

A key that can only publish, and only in one namespace:

[cyan]  penstock key create shop --role producer --namespace shop[/cyan]

For a script:

[cyan]  export PENSTOCK_API_KEY=$(penstock key create ci --role consumer)[/cyan]
"""


@command(commands, examples=CREATE, makes_folder=True, in_namespace=False)
def create(
    session: Session,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Whose key it is.")],
    role: Annotated[
        Role,
        typer.Option(
            help="admin: everything. producer: publish. consumer: receive, settle, look. "
            "readonly: look."
        ),
    ],
    namespace: Annotated[
        str | None, typer.Option("--namespace", "-n", help="Only in this one; else in all.")
    ] = None,
) -> None:
    """Make a key. It is shown once, now; only its SHA-256 is stored."""
    if session.where.url is not None:
        body = {"name": name, "role": role.value, "namespace": namespace}
        made = call(session.where, "POST", "/v1/keys", body)
        key, token, secret = msgspec.convert(made, Key), made["token"], made.get("sqs_secret", "")
    else:
        key, token = KeyStore.open(session.where.target).create(name, role.value, namespace)
        secret = sqs_secret(key)
    if session.json:
        tables.document({**_fields(key), "token": token, "sqs_secret": secret})
        return
    tables.say(token)
    note(f"This is key {key.id} ({key.name}, {key.role}). Keep it now: it is never shown again.")
    note(f"For the SQS API: access key id {key.id}, secret access key {secret}")


@command(commands, "list", in_namespace=False)
def list_(session: Session) -> None:
    """List the keys that are good; never the keys themselves."""
    if session.where.url is not None:
        found = msgspec.convert(call(session.where, "GET", "/v1/keys")["keys"], list[Key])
    else:
        found = KeyStore.open(session.where.target).list()
    if session.json:
        tables.document({"keys": [_fields(key) for key in found]})
        return
    tables.table(
        ("id", "name", "role", "namespace", "made (UTC)"),
        [
            (key.id, key.name, key.role, key.namespace or "all", moment(key.created_at_us))
            for key in found
        ],
    )


@command(commands, in_namespace=False)
def revoke(
    session: Session,
    key: Annotated[str, typer.Argument(metavar="KEY", help="The id or the name of the key.")],
) -> None:
    """Make a key good for nothing, from the next request on."""
    if session.where.url is not None:
        gone = msgspec.convert(call(session.where, "DELETE", f"/v1/keys/{key}"), Key)
    else:
        gone = KeyStore.open(session.where.target).revoke(key)
    if session.json:
        tables.document({**_fields(gone), "revoked": True})
    else:
        tables.say(f"key {gone.id} ({gone.name}) is revoked")


def _fields(key: Key) -> dict[str, Any]:
    fields: dict[str, Any] = msgspec.to_builtins(key)
    return {name: value for name, value in fields.items() if name != "sha256"}
