"""`penstock dashboard`: look at a data folder in a browser."""

from __future__ import annotations

import os
import sys
import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from penstock.cli import tables
from penstock.cli.guard import guarded
from penstock.client.folder.opening import FolderConfig, open_folder
from penstock.config import ServerConfig
from penstock.errors import LogNotFound, MissingExtra
from penstock.model.catalog import CATALOG_LOG

EXAMPLES = """
[bold]Examples[/bold]

Of a folder, also while another process works on it:

[cyan]  penstock dashboard ./data[/cyan]

On a port of your choice, without opening a browser:

[cyan]  penstock dashboard ./data --port 9000 --no-open[/cyan]

A server has its dashboard at its own address:

[cyan]  penstock serve --data ./data[/cyan]
"""


@guarded
def dashboard(
    data: Annotated[
        Path | None,
        typer.Argument(metavar="FOLDER", help="The data folder. By default $PENSTOCK_DATA."),
    ] = None,
    port: Annotated[
        int, typer.Option(help="Where to listen on this machine; 0 for any that is free.")
    ] = 0,
    open_: Annotated[
        bool | None,
        typer.Option("--open/--no-open", help="Open a browser. By default on a terminal."),
    ] = None,
) -> None:
    """Look at a data folder in a browser.

    Until Ctrl-C. Other processes may use the folder meanwhile. A server needs none of this: its
    dashboard is at its own address.
    """
    folder = str(data or os.environ.get("PENSTOCK_DATA") or "./data")
    if not os.path.isdir(os.path.join(folder, CATALOG_LOG)):
        raise LogNotFound(f"there is no data folder {folder}; name one: penstock dashboard FOLDER")
    try:
        from penstock.server.run import serve_link  # noqa: PLC0415 - says what to install
    except ModuleNotFoundError as exc:
        if (exc.name or "").partition(".")[0] == "penstock":
            raise
        raise MissingExtra("server", "the dashboard") from None
    wanted = sys.stdout.isatty() if open_ is None else open_

    def ready(url: str) -> None:
        tables.say(f"{url}/")
        sys.stdout.flush()
        if wanted:
            webbrowser.open(f"{url}/")

    link = open_folder(folder, FolderConfig())
    try:
        serve_link(link, ServerConfig(data=folder, port=port), ready)
    finally:
        link.close()
