"""`penstock schema`: the registry of schemas."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, get_args

import msgspec
import typer

from penstock.cli import tables
from penstock.cli.exits import Exit
from penstock.cli.session import Session, Yes, command
from penstock.cli.units import moment
from penstock.errors import InvalidInput
from penstock.model.schemas import RegisteredSchema
from penstock.schema.definition import (
    CompatibilityLevel,
    Incompatibility,
    RegistryMode,
    SchemaType,
)

commands = typer.Typer()

Subject = Annotated[str, typer.Argument(metavar="SUBJECT", help="As orders-value.")]
SchemaFile = Annotated[str, typer.Argument(metavar="FILE", help="The schema; - is the input.")]
Kind = Annotated[
    str | None,
    typer.Option(
        "--type", help="json, avro, protobuf; by default by the name of the file, or json."
    ),
]
Refers = Annotated[
    list[str] | None,
    typer.Option(
        "--ref", metavar="NAME=SUBJECT:VERSION", help="A schema that it refers to. Repeatable."
    ),
]
Version = Annotated[str, typer.Option("--version", help="A number, or latest.")]
_SUFFIXES: dict[str, SchemaType] = {".avsc": "avro", ".proto": "protobuf", ".json": "json"}

REGISTER = """
[bold]Examples[/bold]

What messages of the topic orders have to look like, and that they are checked for it:

[cyan]  penstock schema register orders-value order.json[/cyan]

[cyan]  penstock topic alter orders schema_check=full[/cyan]

A .proto file that imports another one:

[cyan]  penstock schema register orders-value order.proto --ref customer.proto=customer:1[/cyan]
"""


@command(commands, examples=REGISTER)
def register(
    session: Session, subject: Subject, file: SchemaFile, kind: Kind = None, refs: Refers = None
) -> None:
    """Make a schema the next version of a subject, unless it is a version already."""
    found = session.ps.schemas.register(subject, _read(file), _kind(kind, file), _references(refs))
    if session.json:
        tables.document(found)
    else:
        tables.say(f"{found.subject} version {found.version} is schema {found.id}")


@command(commands)
def check(
    session: Session,
    subject: Subject,
    file: SchemaFile,
    kind: Kind = None,
    refs: Refers = None,
    version: Annotated[
        str | None, typer.Option(help="Compare with this one only: a number, or latest.")
    ] = None,
) -> None:
    """Say whether a schema could be the next version of a subject. Ends with 1 if it could not."""
    found = session.ps.schemas.check(
        subject, _read(file), _kind(kind, file), _references(refs), version=version
    )
    if session.json:
        tables.document(found)
    elif found.compatible:
        tables.say(f"it is {found.level} compatible with {subject}")
    else:
        tables.say(f"it is not {found.level} compatible with {subject}:")
        _problems(found.problems)
    if not found.compatible:
        raise typer.Exit(Exit.NO)


@command(commands, "list")
def list_(
    session: Session,
    prefix: Annotated[str, typer.Option(help="Only subjects that begin so.")] = "",
    deleted: Annotated[
        bool, typer.Option("--deleted", help="Also those that are deleted.")
    ] = False,
) -> None:
    """List the subjects of a namespace, with their newest versions.

    With --json, an object a line.
    """
    found = session.ps.schemas.subjects(prefix, deleted=deleted)
    if session.json:
        for each in found:
            tables.line(each)
        return
    tables.table(
        ("subject", "type", "version", "id", "since (UTC)", "compatibility", "mode"),
        [
            (
                each.subject,
                each.versions[-1].type,
                each.versions[-1].version,
                each.versions[-1].id,
                moment(each.versions[-1].created_us),
                each.compatibility,
                each.mode,
            )
            for each in found
        ],
        cut=("subject",),
    )


@command(commands)
def show(
    session: Session,
    subject: Annotated[
        str, typer.Argument(metavar="SUBJECT", help="As orders-value; or the id of a schema.")
    ],
    version: Version = "latest",
) -> None:
    """Print a schema: a version of a subject, or one by the id that messages begin with."""
    found: Any
    if subject.isdigit():
        found = session.ps.schemas.get_by_id(int(subject))
    else:
        found = session.ps.schemas.get(subject, version)
    if session.json:
        tables.document(found)
    else:
        sys.stdout.write("\n".join(_lines(found)) + "\n")


@command(commands)
def versions(session: Session, subject: Subject) -> None:
    """List the versions of a subject."""
    found = session.ps.schemas.describe(subject)
    if session.json:
        tables.document(found)
        return
    tables.table(
        ("version", "id", "type", "since (UTC)"),
        [(each.version, each.id, each.type, moment(each.created_us)) for each in found.versions],
    )


@command(commands)
def diff(
    session: Session,
    subject: Subject,
    old: Annotated[str, typer.Argument(metavar="OLD", help="A version.")],
    new: Annotated[str, typer.Argument(metavar="NEW", help="A version.")] = "latest",
) -> None:
    """Show what changed from one version of a subject to another. Ends with 1 if anything did."""
    before, after = session.ps.schemas.get(subject, old), session.ps.schemas.get(subject, new)
    lines = list(
        difflib.unified_diff(
            _lines(before),
            _lines(after),
            f"{subject} version {before.version}",
            f"{subject} version {after.version}",
            lineterm="",
        )
    )
    if session.json:
        tables.document(
            {"subject": subject, "old": before.version, "new": after.version, "diff": lines}
        )
    else:
        sys.stdout.write("".join(f"{line}\n" for line in lines))
    if lines:
        raise typer.Exit(Exit.NO)


@command(commands)
def delete(
    session: Session,
    subject: Subject,
    version: Annotated[str | None, typer.Option(help="Only this one.")] = None,
    permanent: Annotated[
        bool, typer.Option("--permanent", help="For ever, what was deleted before.")
    ] = False,
    yes: Yes = False,
) -> None:
    """Delete a subject, or a version of it. Messages can still be read by the ids."""
    what = subject if version is None else f"version {version} of {subject}"
    session.confirm(f"Delete {what}{' for ever' if permanent else ''}?", yes)
    gone = session.ps.schemas.delete(subject, version, permanent=permanent)
    if session.json:
        tables.document({"subject": subject, "deleted": gone, "permanent": permanent})
    else:
        tables.say(f"deleted of {subject}: version {', '.join(map(str, gone))}")


@command(commands)
def compatibility(
    session: Session,
    level: Annotated[
        str | None, typer.Argument(metavar="LEVEL", help="To set it; default: that of the rest.")
    ] = None,
    subject: Annotated[str | None, typer.Option(help="Of this subject only.")] = None,
) -> None:
    """Show or set which data new versions have to be able to read: none, backward, forward, full,
    or one of these with _transitive."""
    if level is not None:
        known = None if level == "default" else _one_of("level", level, CompatibilityLevel)
        found = session.ps.schemas.set_compatibility(known, subject)
    else:
        found = session.ps.schemas.settings(subject)
    if session.json:
        tables.document(found)
    else:
        tables.say(f"{subject or 'all other subjects'}: {found.compatibility}")


@command(commands)
def mode(
    session: Session,
    mode: Annotated[
        str | None, typer.Argument(metavar="MODE", help="To set it; default: that of the rest.")
    ] = None,
    subject: Annotated[str | None, typer.Option(help="Of this subject only.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Import beside what is there.")] = False,
) -> None:
    """Show or set what may be done: readwrite, readonly or import."""
    if mode is not None:
        known = None if mode == "default" else _one_of("mode", mode, RegistryMode)
        found = session.ps.schemas.set_mode(known, subject, force=force)
    else:
        found = session.ps.schemas.settings(subject)
    if session.json:
        tables.document(found)
    else:
        tables.say(f"{subject or 'all other subjects'}: {found.mode}")


def _read(file: str) -> str:
    try:
        return sys.stdin.read() if file == "-" else Path(file).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        raise InvalidInput(f"{file} cannot be read: {exc}") from None


def _kind(given: str | None, file: str) -> SchemaType:
    if given is not None:
        found: SchemaType = _one_of("type", given, SchemaType)
        return found
    return _SUFFIXES.get(Path(file).suffix, "json")


def _references(given: Sequence[str] | None) -> list[tuple[str, str, int]]:
    found = []
    for text in given or ():
        name, equals, rest = text.rpartition("=")
        subject, colon, version = rest.rpartition(":")
        if not equals or not colon or not version.isdigit():
            raise InvalidInput(f"--ref is {text!r:.100}; write it as NAME=SUBJECT:VERSION")
        found.append((name, subject, int(version)))
    return found


def _lines(found: RegisteredSchema) -> list[str]:
    if found.type == "protobuf":
        return found.schema.rstrip("\n").split("\n")
    decoded = msgspec.json.decode(found.schema) if found.schema[:1] in '{["' else found.schema
    return msgspec.json.format(msgspec.json.encode(decoded)).decode().split("\n")


def _problems(problems: Sequence[Incompatibility]) -> None:
    tables.table(
        ("version", "where", "rule", "why"),
        [(each.version, each.path, each.rule, each.message) for each in problems],
        cut=("why",),
    )


def _one_of(name: str, text: str, kind: Any) -> Any:
    if text not in get_args(kind):
        raise InvalidInput(f"{name} is {text!r:.100}; allowed: {', '.join(get_args(kind))}")
    return text
