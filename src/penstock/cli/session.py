"""Where a command works: on a data folder, or on a server.

`@command(app)` gives a function the options that all such commands share, and a `Session` as its
first argument: the connection, and whether JSON is wanted.
"""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Annotated, Any, NamedTuple, Self

import typer

import penstock
from penstock.cli.guard import guarded
from penstock.client.client import Client
from penstock.errors import InvalidInput, LogNotFound

_PANEL = "Where"

Data = Annotated[
    Path | None,
    typer.Option(
        "--data",
        metavar="FOLDER",
        help="Work on this data folder, also while other processes do. By default $PENSTOCK_DATA.",
        rich_help_panel=_PANEL,
    ),
]
Url = Annotated[
    str | None,
    typer.Option(
        "--url",
        metavar="URL",
        help="Work on this server, such as http://localhost:8080. By default $PENSTOCK_URL.",
        rich_help_panel=_PANEL,
    ),
]
ApiKey = Annotated[
    str | None,
    typer.Option(
        "--api-key",
        metavar="KEY",
        help="For a server that wants one. Better kept in $PENSTOCK_API_KEY, which no other "
        "process sees.",
        rich_help_panel=_PANEL,
    ),
]
TlsCa = Annotated[
    Path | None,
    typer.Option(
        "--tls-ca",
        metavar="FILE",
        help="The certificate (PEM) of an authority of your own that signed the server's. "
        "By default $PENSTOCK_TLS_CA.",
        rich_help_panel=_PANEL,
    ),
]
Namespace = Annotated[
    str | None,
    typer.Option(
        "--namespace",
        "-n",
        metavar="NAME",
        help="The namespace of the topics. By default $PENSTOCK_NAMESPACE, or 'default'.",
        rich_help_panel=_PANEL,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="JSON instead of tables, for programs.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


class Where(NamedTuple):
    """A folder or a URL."""

    folder: Path | None
    url: str | None
    api_key: str | None
    namespace: str
    tls_ca: str | None = None

    @property
    def target(self) -> str:
        return self.url or str(self.folder)


def find_where(
    data: Path | None,
    url: str | None,
    api_key: str | None,
    namespace: str | None,
    tls_ca: Path | None,
    environ: Mapping[str, str],
) -> Where:
    """What the options say or, where they say nothing, the environment."""
    if data is not None and url is not None:
        raise InvalidInput("give --data or --url, not both")
    if data is None and url is None:
        folder = environ.get("PENSTOCK_DATA")
        data, url = Path(folder) if folder else None, environ.get("PENSTOCK_URL") or None
        if data is not None and url is not None:
            raise InvalidInput(
                "PENSTOCK_DATA and PENSTOCK_URL are both set; give --data or --url to say which"
            )
    if data is not None and data.is_file():
        raise InvalidInput(f"{data} is a file; --data takes the path of a folder")
    if url is not None and "://" not in url:
        raise InvalidInput(f"{url!r} is not a URL; did you mean http://{url}?")
    if data is None and url is None:
        raise InvalidInput(
            "say where: --data FOLDER or --url URL, or set PENSTOCK_DATA or PENSTOCK_URL"
        )
    return Where(
        data,
        url,
        api_key or environ.get("PENSTOCK_API_KEY") or None,
        namespace or environ.get("PENSTOCK_NAMESPACE") or "default",
        str(tls_ca) if tls_ca is not None else environ.get("PENSTOCK_TLS_CA") or None,
    )


class Session:
    """A command at work. `ps` connects when it is first used."""

    def __init__(self, where: Where, *, as_json: bool, makes_folder: bool = False) -> None:
        self.where = where
        self.json = as_json
        self._makes_folder = makes_folder

    @cached_property
    def ps(self) -> Client:
        where = self.where
        if where.url is not None:
            return penstock.connect(
                where.url,
                namespace=where.namespace,
                api_key=where.api_key,
                tls_ca=where.tls_ca,
            )
        if not self._makes_folder and not _is_data_folder(where.target):
            raise LogNotFound(
                f"there is no data folder {where.folder}; `penstock topic create` makes one"
            )
        return penstock.connect(where.target, namespace=where.namespace)

    def confirm(self, question: str, yes: bool) -> None:
        """Ask before what cannot be undone; where nobody can be asked, --yes has to be given."""
        if yes:
            return
        if self.json or not sys.stdin.isatty():
            raise InvalidInput(f"{question} There is no terminal to answer on: add --yes if so")
        typer.confirm(question, abort=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if "ps" in self.__dict__:
            self.ps.close()


def _is_data_folder(path: str) -> bool:
    """Folders of the first version have no VERSION."""
    return any(os.path.exists(os.path.join(path, each)) for each in ("VERSION", "catalog"))


Function = Callable[..., None]


def command(
    app: typer.Typer,
    name: str | None = None,
    *,
    examples: str = "",
    makes_folder: bool = False,
    in_namespace: bool = True,
) -> Callable[[Function], Function]:
    """Make a command of a function that takes a Session and its own options."""

    def register(function: Function) -> Function:
        run = connected(function, makes_folder=makes_folder, in_namespace=in_namespace)
        app.command(name, epilog=examples)(run)
        return function

    return register


def connected(
    function: Function, *, makes_folder: bool = False, in_namespace: bool = True
) -> Function:
    """The function as typer sees it: with the shared options instead of the session."""
    own = list(inspect.signature(function, eval_str=True).parameters.values())[1:]
    shared = [
        option("data", Data, None),
        option("url", Url, None),
        option("api_key", ApiKey, None),
        option("tls_ca", TlsCa, None),
        *([option("namespace", Namespace, None)] if in_namespace else []),
        option("as_json", Json, False),
    ]

    def run(**options: Any) -> None:
        given = {p.name: options.pop(p.name) for p in shared}
        as_json = given.pop("as_json")
        where = find_where(**{"namespace": None, **given}, environ=os.environ)
        with Session(where, as_json=as_json, makes_folder=makes_folder) as session:
            function(session, **options)

    return guarded(with_options(run, function, [*own, *shared]))


def with_options(
    run: Function, function: Callable[..., Any], parameters: Sequence[inspect.Parameter]
) -> Function:
    """What typer is to see of `run`: the parameters, and the words and the name of a function."""
    named = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in parameters]
    run.__signature__ = inspect.Signature(named)  # type: ignore[attr-defined]
    run.__annotations__ = {p.name: p.annotation for p in named}
    run.__doc__ = function.__doc__
    run.__name__ = function.__name__
    return run


def option(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation
    )
