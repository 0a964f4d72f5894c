"""`penstock serve`: run the server."""

from __future__ import annotations

import logging
import os
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from penstock.cli.config import ConfigFile, Set, config_file
from penstock.cli.guard import guarded
from penstock.configuration import load
from penstock.errors import MissingExtra

EXAMPLES = """
[bold]Examples[/bold]

On this machine only:

[cyan]  penstock serve --data ./data[/cyan]

For others, who need a key:

[cyan]  penstock key create ops --role admin --data ./data[/cyan]

[cyan]  penstock serve --data ./data --host 0.0.0.0 --tls-cert cert.pem --tls-key key.pem[/cyan]

As one node of a cluster, whose messages NATS JetStream keeps:

[cyan]  penstock serve --data ./cache --cluster nats://a,nats://b,nats://c --advertise http://me:8080[/cyan]

With a file, and one setting changed; `penstock config show` prints what that makes:

[cyan]  penstock serve --config penstock.yaml --set rate_per_key=100[/cyan]
"""


@guarded
def serve(
    data: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="The data folder, made if it is not there: ./data."),
    ] = None,
    host: Annotated[str | None, typer.Option(help="Where to listen: 127.0.0.1.")] = None,
    port: Annotated[
        int | None, typer.Option(help="Where to listen: 8080; 0 for any that is free.")
    ] = None,
    config: ConfigFile = None,
    tls_cert: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A certificate chain (PEM), for HTTPS.")
    ] = None,
    tls_key: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The key of the certificate.")
    ] = None,
    kafka: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Speak the Kafka protocol there, too."),
    ] = None,
    auto_create: Annotated[
        bool | None,
        typer.Option("--auto-create", help="Make topics when they are first used."),
    ] = None,
    allow_public_without_keys: Annotated[
        bool | None,
        typer.Option(
            "--allow-public-without-keys",
            help="Let everybody in who can reach an address that is not only this machine's.",
        ),
    ] = None,
    cluster: Annotated[
        str | None,
        typer.Option(metavar="URLS", help="NATS servers that keep the messages of several nodes."),
    ] = None,
    advertise: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Where the other nodes of the cluster reach this one."),
    ] = None,
    node_id: Annotated[
        str | None, typer.Option(metavar="NAME", help="Of this node: the machine's.")
    ] = None,
    log_level: Annotated[
        str | None, typer.Option(help="debug, info, warning or error: info.")
    ] = None,
    set_: Set = None,
) -> None:
    """Run the server.

    Until Ctrl-C or SIGTERM, which leave a clean folder.

    Settings come from a file, then the environment (PENSTOCK_PORT), then flags; the last wins.
    """
    given: dict[str, Any] = {
        "data": None if data is None else str(data),
        "host": host,
        "port": port,
        "tls_cert": None if tls_cert is None else str(tls_cert),
        "tls_key": None if tls_key is None else str(tls_key),
        "kafka": kafka,
        "auto_create": auto_create,
        "allow_public_without_keys": allow_public_without_keys,
        "cluster": cluster,
        "advertise": advertise,
        "node_id": node_id,
        "log_level": log_level,
    }
    flags = {name: value for name, value in given.items() if value is not None}
    loaded = load(config_file(config), os.environ, {**flags, "--set": set_ or []})
    _log_as_json(loaded.config.log_level)
    try:
        from penstock.server.run import serve as run  # noqa: PLC0415 - says what to install
    except ModuleNotFoundError as exc:
        if (exc.name or "").partition(".")[0] == "penstock":
            raise
        raise MissingExtra("server", "the server") from None
    run(loaded.config)


class _JsonLines(logging.Formatter):
    """A line of the log, as JSON, like those of the requests."""

    def format(self, record: logging.LogRecord) -> str:
        fields = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            fields["error"] = self.formatException(record.exc_info)
        return msgspec.json.encode(fields).decode()


def _log_as_json(level: str) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonLines())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    logging.getLogger("uvicorn").setLevel("DEBUG" if level == "debug" else "WARNING")
