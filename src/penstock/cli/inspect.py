"""`penstock inspect`: what is in a segment, a log or a data folder."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from penstock.cli import show
from penstock.cli.guard import guarded
from penstock.cli.progress import ByteProgress
from penstock.errors import InvalidInput, LogNotFound
from penstock.log.inspect import find_logs, inspect_log, inspect_segment, segment_bytes
from penstock.log.report import LogReport, Totals
from penstock.log.segment_scan import Options

EXAMPLES = """
[bold]Examples[/bold]

Every log below a folder, with the first frames of each segment:

[cyan]  penstock inspect data/[/cyan]

All frames of one segment:

[cyan]  penstock inspect data/orders/00000000000000000000.log --limit -1[/cyan]

Is everything as it was written? The exit code is 0 if so, and 1 if there is damage:

[cyan]  penstock inspect data/ --verify[/cyan]

How large each frame is, for another program:

[cyan]  penstock inspect data/ --json --limit -1 | jq '.logs[].segments[].frames[].raw_bytes'[/cyan]
"""


@guarded
def inspect(
    path: Annotated[
        Path | None,
        typer.Argument(
            metavar="PATH", help="A segment (.log), a log's folder, or a folder with logs below."
        ),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            "--data",
            metavar="FOLDER",
            help="The same, as other commands call it. By default $PENSTOCK_DATA.",
        ),
    ] = None,
    verify: Annotated[
        bool,
        typer.Option(
            "--verify",
            help="Check everything: checksums, contents, indexes, gaps, marks. Exit 1 on damage.",
        ),
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON document instead of tables.")
    ] = False,
    limit: Annotated[
        int,
        typer.Option(min=-1, help="Frames to list in each segment; 0 for none, -1 for all."),
    ] = 20,
) -> None:
    """What is in a segment, a log or a data folder.

    Frame by frame, damage included.

    It only reads, and takes no lock: a log may be written to at the same time. Bytes behind the
    durable mark that are no whole frame yet are then being written, and not damage.
    """
    shown = 0 if verify and not as_json else limit
    options = Options(deep=verify, frames_max=None if shown < 0 else shown)
    reports = _look(_path(path, data, os.environ), options)
    totals = Totals.of(reports)
    if as_json:
        sys.stdout.write(_json(reports, totals))
    else:
        show.reports(reports, totals, verify=verify)
    if verify and totals.damage:
        raise typer.Exit(1)


def _path(path: Path | None, data: Path | None, environ: Mapping[str, str]) -> Path:
    if path is not None and data is not None:
        raise InvalidInput(f"give {path} or --data, not both")
    folder = path or data or environ.get("PENSTOCK_DATA")
    if not folder:
        raise InvalidInput("say what: PATH is a segment or a folder; or set PENSTOCK_DATA")
    return Path(folder)


def _look(path: Path, options: Options) -> list[LogReport]:
    if not os.path.lexists(path):
        raise LogNotFound(f"there is no file or folder {path}")
    if path.is_file():
        with ByteProgress(path.stat().st_size) as progress:
            return [inspect_segment(path, options, on_bytes=progress.advance)]
    folders = find_logs(path)
    if not folders:
        raise LogNotFound(
            f"there is no log in {path} or below it; a log is a folder with segments such as "
            "00000000000000000000.log"
        )
    with ByteProgress(sum(map(segment_bytes, folders))) as progress:
        reports = []
        for folder in folders:
            progress.name(folder)
            reports.append(inspect_log(folder, options, on_bytes=progress.advance))
        return reports


def _json(reports: list[LogReport], totals: Totals) -> str:
    document = {
        "ok": not totals.damage,
        "totals": {
            **msgspec.to_builtins(totals),
            "compression_ratio": round(totals.compression_ratio, 3),
        },
        "logs": reports,
    }
    return msgspec.json.format(msgspec.json.encode(document), indent=2).decode() + "\n"
