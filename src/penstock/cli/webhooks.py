"""`penstock webhook`: messages of a topic that a server posts to a URL."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from penstock.cli import tables
from penstock.cli.completion import topic_names
from penstock.cli.session import Session, Yes, command
from penstock.cli.units import moment
from penstock.errors import InvalidInput
from penstock.model.webhooks import Webhook

commands = typer.Typer()

EXAMPLES = """
[bold]Examples[/bold]

[cyan]  penstock webhook create orders https://example.com/hook --type order.made[/cyan]

[cyan]  penstock webhook test orders[/cyan]

[cyan]  penstock webhook attempts orders[/cyan]
"""

Topic = Annotated[
    str, typer.Argument(metavar="TOPIC", autocompletion=topic_names, help="The name of the topic.")
]
Name = Annotated[str, typer.Argument(metavar="NAME", help="The name of the webhook.")]


@command(commands, examples=EXAMPLES)
def create(
    session: Session,
    topic: Topic,
    to: Annotated[str, typer.Argument(metavar="URL", help="Where to, such as https://host/path.")],
    name: Annotated[str | None, typer.Option(help="By default that of the topic.")] = None,
    secret: Annotated[
        str | None, typer.Option(help="whsec_ and base64; by default one is made.")
    ] = None,
    type_: Annotated[
        list[str] | None, typer.Option("--type", help="Only messages with this header 'type'.")
    ] = None,
    key_prefix: Annotated[str | None, typer.Option(help="Only messages with such a key.")] = None,
    header: Annotated[
        list[str] | None, typer.Option(metavar="NAME:VALUE", help="Sent with each request.")
    ] = None,
    raw: Annotated[bool, typer.Option("--raw", help="The value itself, without envelope.")] = False,
    batch: Annotated[int | None, typer.Option(help="So many messages in one request.")] = None,
    retries: Annotated[str, typer.Option(help="topic, or standard: ten within 3 days.")] = "topic",
    concurrency: Annotated[int, typer.Option(help="Requests at the same time.")] = 8,
    rate: Annotated[float | None, typer.Option(help="Requests a second.")] = None,
    timeout: Annotated[str, typer.Option(metavar="TIME", help="For an answer.")] = "15s",
    private: Annotated[
        bool, typer.Option("--private", help="The URL may lead to a private address.")
    ] = False,
    paused: Annotated[bool, typer.Option("--paused", help="Post nothing yet.")] = False,
) -> None:
    """Make a webhook, or change the one of that name.

    Prints the secret, this once; the receiver checks signatures with it (Standard Webhooks).
    """
    given: dict[str, Any] = {
        "types": type_,
        "key_prefix": key_prefix,
        "headers": _headers(header),
        "payload": "raw" if raw else "envelope",
        "batch": batch,
        "retries": retries,
        "concurrency": concurrency,
        "rate": rate,
        "timeout": timeout,
        "private": private,
        "paused": paused,
    }
    options: Any = {key: value for key, value in given.items() if value is not None}
    made = session.ps.create_webhook(topic, to, name=name, secret=secret, **options)
    if session.json:
        tables.document(made)
        return
    tables.say(f"webhook {made.webhook.name} posts {topic} to {to}")
    if made.secret:
        tables.say(f"Its secret, which is never shown again: {made.secret}")


@command(commands, "list")
def list_(session: Session) -> None:
    """The webhooks of a namespace, and how they stand."""
    found = session.ps.webhooks()
    if session.json:
        for each in found:
            tables.line(each)
        return
    tables.table(
        ("name", "topic", "url", "state", "taken", "failed"),
        [
            (
                each.name,
                each.settings.topic,
                each.settings.url,
                _state(each),
                each.delivered,
                each.failed,
            )
            for each in found
        ],
        cut=("url", "state"),
    )


@command(commands)
def attempts(session: Session, name: Name) -> None:
    """The last requests to the receiver, and what it answered, newest first."""
    found = session.ps.webhook_attempts(name)
    if session.json:
        for each in found:
            tables.line(each)
        return
    tables.table(
        ("at (UTC)", "message", "attempt", "status", "ms", "error"),
        [
            (
                moment(each.at_us),
                "test" if each.test else each.message_id,
                each.attempt,
                each.status,
                each.took_ms,
                each.error,
            )
            for each in found
        ],
        cut=("error",),
    )


@command(commands)
def test(session: Session, name: Name) -> None:
    """Have an example posted; `attempts` tells what came of it."""
    session.ps.test_webhook(name)
    tables.say("a test is on its way; `penstock webhook attempts` shows what came of it")


@command(commands)
def pause(session: Session, name: Name) -> None:
    """Post nothing until it is resumed."""
    _show(session, session.ps.pause_webhook(name))


@command(commands)
def resume(session: Session, name: Name) -> None:
    """Go on, also after it was disabled because its receiver failed for days."""
    _show(session, session.ps.resume_webhook(name))


@command(commands)
def rotate(session: Session, name: Name) -> None:
    """Make a new secret. For a day requests are signed with the old one as well."""
    made = session.ps.rotate_webhook(name)
    if session.json:
        tables.document(made)
    else:
        tables.say(f"The new secret, which is never shown again: {made.secret}")


@command(commands)
def replay(
    session: Session,
    name: Name,
    since: Annotated[
        str, typer.Option(metavar="WHERE", help="earliest, an offset, or a time as RFC 3339.")
    ],
) -> None:
    """Post again everything from a position on."""
    found = session.ps.webhook(name)
    position: Any = int(since) if since.isdigit() else since
    session.ps.seek(found.settings.topic, found.group, position)
    tables.say(f"webhook {name} begins again at {since}")


@command(commands)
def delete(session: Session, name: Name, yes: Yes = False) -> None:
    """Delete a webhook and its position; its dead letters stay."""
    session.confirm(f"Delete webhook {name}?", yes)
    session.ps.delete_webhook(name)
    tables.say(f"webhook {name} is deleted")


def _headers(given: list[str] | None) -> dict[str, str]:
    headers = {}
    for each in given or ():
        name, colon, value = each.partition(":")
        if not colon:
            raise InvalidInput(f"--header {each!r}: give NAME:VALUE")
        headers[name.strip()] = value.strip()
    return headers


def _state(webhook: Webhook) -> str:
    if webhook.disabled:
        return f"disabled: {webhook.disabled}"
    if webhook.settings.paused:
        return "paused"
    return "failing" if webhook.failing_since_us is not None else "ok"


def _show(session: Session, webhook: Webhook) -> None:
    if session.json:
        tables.document(webhook)
    else:
        tables.say(f"webhook {webhook.name} is {_state(webhook)}")
