"""`penstock worker`: run the handlers of a worker app."""

from __future__ import annotations

import itertools
import logging
import os
import sys
import traceback
from importlib import import_module
from pathlib import Path
from typing import Annotated

import typer

from penstock.cli.guard import guarded
from penstock.cli.reload import Reloader
from penstock.cli.session import ApiKey, Data, Namespace, TlsCa, Url, find_where
from penstock.errors import InvalidInput
from penstock.worker.app import App

EXAMPLES = """
[bold]Examples[/bold]

The app `app` of the module `billing`, in this folder or installed:

[cyan]  penstock worker billing:app[/cyan]

On another server than the app names:

[cyan]  penstock worker shop.workers:app --url http://localhost:8080[/cyan]

Let go of what is not finished 10 seconds after SIGTERM:

[cyan]  penstock worker billing:app --grace 10s[/cyan]

While you write it:

[cyan]  penstock worker billing:app --reload[/cyan]
"""


@guarded
def worker(
    app: Annotated[str, typer.Argument(metavar="MODULE:APP", help="A module, and the App in it.")],
    grace: Annotated[
        str,
        typer.Option(metavar="TIME", help="How long handlers may go on after SIGTERM or Ctrl-C."),
    ] = "30s",
    reload: Annotated[
        bool,
        typer.Option("--reload", help="Start again when a Python file below this folder changes."),
    ] = False,
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error.")] = "info",
    data: Data = None,
    url: Url = None,
    api_key: ApiKey = None,
    tls_ca: TlsCa = None,
    namespace: Namespace = None,
) -> None:
    """Run the handlers of a worker app.

    Until SIGTERM or Ctrl-C: then it receives no more, finishes what is under way, and gives back
    the rest. A second signal does not wait.
    """
    level = log_level.upper()
    if level not in ("DEBUG", "INFO", "WARNING", "ERROR"):
        raise InvalidInput(f"log-level is {log_level!r}; allowed: debug, info, warning, error")
    logging.basicConfig(
        level=level, format="%(asctime)s %(levelname)-7s %(name)s: %(message)s", stream=sys.stderr
    )
    if reload:
        arguments = [each for each in sys.argv[1:] if each != "--reload"]
        raise typer.Exit(Reloader(arguments, Path.cwd()).run())
    found = load_app(app)
    if data or url or found.target is None:
        found.target = find_where(data, url, api_key, namespace, tls_ca, os.environ).target
    if namespace is not None or found.namespace == "default":
        found.namespace = namespace or os.environ.get("PENSTOCK_NAMESPACE") or "default"
    if "://" in os.fspath(found.target):
        found.api_key = api_key or found.api_key
        found.tls_ca = tls_ca or found.tls_ca or os.environ.get("PENSTOCK_TLS_CA")
    else:  # a folder, perhaps instead of the server that the app names
        found.api_key = found.tls_ca = None
    found.run(grace=grace)


def load_app(path: str) -> App:
    """The app that `module:name` names."""
    module_name, colon, name = path.partition(":")
    if not colon or not name or not module_name:
        raise InvalidInput(f"{path!r:.100} is no app; give MODULE:APP, such as billing:app")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # as `python -m` would
    try:
        module = import_module(module_name)
    except Exception as exc:  # noqa: BLE001 - whatever a module of somebody's own raises
        if isinstance(exc, ModuleNotFoundError) and _is_of(exc.name, module_name):
            where = f"in {Path.cwd()} or installed"
            raise InvalidInput(f"there is no module {module_name!r}, {where}") from None
        failed = InvalidInput(f"{module_name} cannot be imported: {type(exc).__name__}: {exc}")
        failed.add_note(_seen_from_the_module(exc))
        raise failed from None
    found = getattr(module, name, None)
    if not isinstance(found, App):
        apps = [key for key, value in vars(module).items() if isinstance(value, App)]
        hint = f"; there is {', '.join(apps)}" if apps else ""
        raise InvalidInput(f"{name!r} of {module_name} is no penstock.App{hint}")
    return found


def _is_of(missing: str | None, module_name: str) -> bool:
    """Whether it is the module itself, or a package of it, that is missing, and none it needs."""
    return missing is not None and f"{module_name}.".startswith(f"{missing}.")


def _seen_from_the_module(exc: Exception) -> str:
    """The traceback, without what imported the module."""
    told = traceback.TracebackException.from_exception(exc)
    frames = itertools.dropwhile(lambda each: each.filename == __file__, told.stack)
    own = itertools.dropwhile(lambda each: "importlib" in each.filename, frames)
    told.stack = traceback.StackSummary.from_list(list(own))
    return "".join(told.format()).rstrip()
