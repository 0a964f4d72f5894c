"""`penstock backup`: a copy of a data folder, also while it is in use."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from penstock.backup.store import BackupMade, BackupStore
from penstock.cli import tables
from penstock.cli.guard import guarded
from penstock.cli.output import note
from penstock.cli.progress import ByteProgress
from penstock.cli.units import size
from penstock.errors import InvalidInput

EXAMPLES = """
[bold]Examples[/bold]

Back up a folder that a server works on, every night, and keep thirty:

[cyan]  penstock backup /mnt/backups --data ./data --keep 30[/cyan]

Read every byte of the latest one:

[cyan]  penstock backup /mnt/backups --verify[/cyan]
"""

Folder = Annotated[Path, typer.Argument(metavar="FOLDER", help="Where the backups are.")]
Json = Annotated[bool, typer.Option("--json", help="JSON instead of text, for programs.")]


@guarded
def backup(
    folder: Folder,
    data: Annotated[
        Path | None,
        typer.Option("--data", envvar="PENSTOCK_DATA", help="The data folder, in use or not."),
    ] = None,
    keep: Annotated[
        int | None, typer.Option(min=1, help="Remove all but so many, the latest.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="With --verify: which, not the latest.")] = None,
    verify: Annotated[bool, typer.Option("--verify", help="Check one instead.")] = False,
    list_: Annotated[bool, typer.Option("--list", help="Only list those that are there.")] = False,
    as_json: Json = False,
) -> None:
    """Copy a data folder, also while it is in use.

    What was written since the last backup is copied; the rest is there already.
    """
    store = BackupStore(folder)
    if list_:
        _list(store, as_json)
        return
    if verify:
        name, found = store.load(name)
        total = sum(file.size_bytes for file in found.files)
        with ByteProgress(total) as progress:
            tell("whole", store.verify(name, progress.advance), as_json)
        return
    if data is None:
        raise InvalidInput("say which folder: --data FOLDER, or set PENSTOCK_DATA")
    total = sum(path.stat().st_size for path in data.rglob("*.log")) if data.is_dir() else 0
    with ByteProgress(total, "backed up") as progress:
        made = store.make(data, progress.advance)
    tell("backed up", made, as_json)
    if keep is not None and (gone := store.keep(keep)):
        note(f"removed {len(gone)} older: {', '.join(gone[-3:])}")


def tell(verb: str, made: BackupMade, as_json: bool) -> None:
    if as_json:
        tables.document(msgspec.to_builtins(made))
        return
    copied = f", {size(made.copied_bytes)} of it new" if verb == "backed up" else ""
    tables.say(f"{made.name}: {verb}, {made.files:,} files, {size(made.size_bytes)}{copied}")


def _list(store: BackupStore, as_json: bool) -> None:
    found = [(name, store.load(name)[1]) for name in store.names()]
    rows = [(name, len(x.files), sum(file.size_bytes for file in x.files)) for name, x in found]
    if as_json:
        fields = ("name", "files", "size_bytes")
        tables.document({"backups": [dict(zip(fields, row, strict=True)) for row in rows]})
        return
    tables.table(("backup", "files", "size"), [(n, f"{f:,}", size(b)) for n, f, b in rows])
