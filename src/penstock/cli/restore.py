"""`penstock restore`: a data folder as a backup holds it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from penstock.backup.restore import restore as restore_backup
from penstock.backup.store import BackupStore
from penstock.cli.backup import Folder, Json, tell
from penstock.cli.guard import guarded
from penstock.cli.progress import ByteProgress

EXAMPLES = """
[bold]Examples[/bold]

The latest backup, as a folder that a server can work on:

[cyan]  penstock restore /mnt/backups --data ./data[/cyan]

An earlier one:

[cyan]  penstock restore /mnt/backups --data ./data-of-monday --name 20300131T020000.000Z[/cyan]
"""


@guarded
def restore(
    folder: Folder,
    data: Annotated[
        Path,
        typer.Option(
            "--data", envvar="PENSTOCK_DATA", help="A folder that is not there, or empty."
        ),
    ],
    name: Annotated[str | None, typer.Option(help="Which backup; by default the latest.")] = None,
    as_json: Json = False,
) -> None:
    """Make a data folder of a backup.

    Every byte is checked; it appears when all of it is there."""
    store = BackupStore(folder)
    name, found = store.load(name)
    with ByteProgress(sum(file.size_bytes for file in found.files), "restored") as progress:
        made = restore_backup(store, data, name, progress.advance)
    tell("restored", made, as_json)
