"""`penstock export`: the messages of a topic as a file, or in another data folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from penstock.cli import tables
from penstock.cli.completion import topic_names
from penstock.cli.progress import ByteProgress
from penstock.cli.session import Session, connected
from penstock.transfer.exporting import export as export_topic

EXAMPLES = """
[bold]Examples[/bold]

[cyan]  penstock export orders orders.jsonl --data ./data[/cyan]

[cyan]  penstock export orders orders.parquet --url http://localhost:8080[/cyan]

[cyan]  penstock export orders ./another-data-folder --data ./data[/cyan]
"""


def _export(
    session: Session,
    topic: Annotated[
        str, typer.Argument(metavar="TOPIC", autocompletion=topic_names, help="What to export.")
    ],
    target: Annotated[
        Path, typer.Argument(metavar="TARGET", help="A .jsonl or .parquet file, or a data folder.")
    ],
) -> None:
    """Write the messages of a topic to a file or a folder.

    As JSON lines, as Parquet, or as a data folder.

    The positions of groups go along to a data folder. Messages that are delayed stay.
    """
    with ByteProgress(session.ps.stats(topic).size_bytes, "exported") as progress:
        done = export_topic(session.ps, topic, target, progress.advance)
    if session.json:
        tables.document({"messages": done.count, "target": str(target)})
    else:
        tables.say(f"{done.count:,} messages of {topic} are in {target}")


export = connected(_export)
