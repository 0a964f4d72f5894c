"""`penstock cluster`: the nodes and shards of a cluster, and a whole one on this machine."""

from __future__ import annotations

import time
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from penstock.cli import tables
from penstock.cli.guard import guarded
from penstock.cli.http import call
from penstock.cli.output import note
from penstock.cli.session import Session, Where, command
from penstock.cli.signals import Signals
from penstock.cli.units import size
from penstock.errors import (
    InvalidInput,
    MissingExtra,
    NotOwner,
    PenstockError,
    ShardLost,
    Unavailable,
)
from penstock.model.cluster import ClusterStatus, ShardVerified

if TYPE_CHECKING:
    from penstock.cluster.local_nodes import LocalCluster

commands = typer.Typer()

Node = Annotated[str, typer.Argument(metavar="NODE", help="The name of a node.")]
Shard = Annotated[int, typer.Argument(metavar="SHARD", help="The number of a shard.")]

_OWNER_S = 20.0
"""So long a shard may be without an owner, or on its way to another one."""

STATUS = """
[bold]Examples[/bold]

[cyan]  penstock cluster status --url http://localhost:8080[/cyan]

Before a machine is serviced, and after:

[cyan]  penstock cluster drain p2[/cyan]

[cyan]  penstock cluster drain p2 --off[/cyan]
"""

UP = """
[bold]Examples[/bold]

[cyan]  penstock cluster up[/cyan]

In another terminal:

[cyan]  penstock topic create orders --url http://127.0.0.1:8080[/cyan]
"""


@command(commands, examples=STATUS, in_namespace=False)
def status(session: Session) -> None:
    """The nodes, who owns which shards, and who stands by."""
    found = _status(session)
    if session.json:
        tables.document(msgspec.to_builtins(found, str_keys=True))
        return
    _show(found)


@command(commands, in_namespace=False)
def drain(
    session: Session,
    node: Node,
    off: Annotated[bool, typer.Option("--off", help="Let it have shards again.")] = False,
) -> None:
    """Let a node hand its shards over, and take none until told otherwise."""
    _ask(session, "POST", "/v1/cluster/drain", {"node": node, "on": not off})
    note(f"{node} may have shards again." if off else f"{node} hands over what it has.")


@command(commands, in_namespace=False)
def move(session: Session, shard: Shard, node: Node) -> None:
    """Let a shard be at a node for as long as that is there; '-': wherever it belongs."""
    body = {"shard": shard, "node": None if node == "-" else node}
    _ask(session, "POST", "/v1/cluster/move", body)
    note(f"shard {shard} goes to {node}." if node != "-" else f"shard {shard} is pinned no more.")


@command(commands, in_namespace=False)
def replace(session: Session, node: Node) -> None:
    """Forget a node that does not come back; its shards go to others at once."""
    _ask(session, "POST", "/v1/cluster/replace", {"node": node})
    note(f"{node} is forgotten. A new node may join under any name.")


@command(commands, in_namespace=False)
def verify(
    session: Session,
    shard: Annotated[
        int | None, typer.Argument(metavar="SHARD", help="By default all of them.")
    ] = None,
) -> None:
    """Read the stream of each shard from its first record, and compare the owner's files with it.

    Files that are damaged are fetched again. Ends with 1 if something was wrong.
    """
    known = [each.shard for each in _status(session).shards]
    if shard is not None and shard not in known:
        raise InvalidInput(f"there is no shard {shard}; they go up to {max(known)}")
    rows = [_verify(session, each) for each in known if shard in (None, each)]
    if session.json:
        tables.document([msgspec.to_builtins(row) for row in rows])
    else:
        tables.table(
            ("shard", "records", "void", "frames", "wrong", ""),
            [
                (r.shard, r.records, r.void, r.frames, len(r.damaged), "; ".join(r.damaged[:2]))
                for r in rows
            ],
        )
    if any(row.damaged for row in rows):
        raise typer.Exit(1)


def _verify(session: Session, shard: int) -> ShardVerified:
    """By its owner, also if that is just becoming another one."""
    deadline = time.monotonic() + _OWNER_S
    while True:
        try:
            (owner,) = [each for each in _status(session).shards if each.shard == shard]
            if owner.url is None:
                raise Unavailable(f"shard {shard} has no owner at this moment")
            body = {"shard": shard}
            answer = _ask(session, "POST", "/v1/cluster/verify", body, owner.url)
            return msgspec.convert(answer, ShardVerified)
        except (NotOwner, ShardLost, Unavailable):
            if time.monotonic() > deadline:
                raise
            time.sleep(0.5)


@commands.command(epilog=UP)
@guarded
def up(
    root: Annotated[
        Path, typer.Option("--root", metavar="FOLDER", help="Where all of it is kept.")
    ] = Path("penstock-cluster"),
    nodes: Annotated[int, typer.Option(min=1, max=9, help="How many nodes.")] = 3,
    port: Annotated[int, typer.Option(help="Of the first node; the others follow.")] = 8080,
) -> None:
    """Run three NATS servers and some nodes on this machine, until Ctrl-C; for trying out."""
    try:
        from penstock.cluster.local_nodes import LocalCluster  # noqa: PLC0415 - it needs an extra
    except ModuleNotFoundError as exc:
        if (exc.name or "").partition(".")[0] == "penstock":
            raise
        raise MissingExtra("cluster", "a cluster") from None
    cluster = LocalCluster(root, nodes, first_port=port)
    # The processes are in groups of their own: whatever ends this one has to end them.
    with Signals(closed_terminal=True) as signals:
        try:
            note("starting three NATS servers and the nodes ...")
            cluster.start_all()
            note(f"connect to any of {', '.join(cluster.urls)}")
            _watch(cluster)
        except KeyboardInterrupt:
            note("stopping ...")
        finally:
            with suppress(KeyboardInterrupt), signals.held_off():
                cluster.stop()


def _watch(cluster: LocalCluster) -> None:
    """Live on a terminal; lines elsewhere, when something changes."""
    # Here, as it takes long to load, and only this needs it.
    from rich.console import Console  # noqa: PLC0415
    from rich.live import Live  # noqa: PLC0415

    console = Console()
    if not console.is_terminal:
        shown = ""
        while True:
            text = "\n".join(_lines(_first_answer(cluster)))
            if text != shown:
                tables.say(text)
                shown = text
            time.sleep(1)
    with Live(console=console, auto_refresh=False) as live:
        while True:
            now = datetime.now(UTC).strftime("%H:%M:%S UTC")
            live.update("\n".join([now, *_lines(_first_answer(cluster))]), refresh=True)
            time.sleep(1)


def _first_answer(cluster: LocalCluster) -> ClusterStatus | None:
    for url in cluster.urls:
        try:
            return msgspec.convert(
                call(_where(url), "GET", "/v1/cluster"), ClusterStatus, strict=False
            )
        except PenstockError:
            continue
    return None


def _lines(found: ClusterStatus | None) -> list[str]:
    if found is None:
        return ["no node answers"]
    rows = _node_rows(found)
    head, *body = tables.lines(_NODE_COLUMNS, rows, None)
    return [*head, *(line for (line,) in body)]


_NODE_COLUMNS = ("node", "state", "shards", "stands by for", "url")


def _node_rows(found: ClusterStatus) -> list[tuple[Any, ...]]:
    return [
        (
            each.node,
            "gone" if not each.alive else "draining" if each.draining else "alive",
            _numbers(each.owns),
            _numbers(each.follows),
            each.url,
        )
        for each in found.nodes
    ]


def _show(found: ClusterStatus) -> None:
    tables.table(_NODE_COLUMNS, _node_rows(found), cut=("url",))
    ownerless = [each.shard for each in found.shards if each.owner is None]
    if ownerless:
        note(f"without an owner at this moment: {_numbers(ownerless)}")
    pinned = [f"{each.shard} at {each.pinned}" for each in found.shards if each.pinned]
    if pinned:
        note(f"pinned: {', '.join(pinned)}")
    if found.owned:
        tables.say("")
        tables.table(
            (f"shard of {found.node}", "term", "record", "under way", "stored", "at most"),
            [
                (
                    each.shard,
                    each.term,
                    each.committed_seq,
                    each.under_way,
                    size(each.stream_bytes),
                    size(each.stream_bytes_max),
                )
                for each in found.owned
            ],
        )


def _numbers(numbers: list[int]) -> str:
    return " ".join(map(str, sorted(numbers))) or "-"


def _status(session: Session) -> ClusterStatus:
    return msgspec.convert(_ask(session, "GET", "/v1/cluster"), ClusterStatus, strict=False)


def _ask(
    session: Session, method: str, path: str, body: object = None, url: str | None = None
) -> Any:
    where = session.where
    if where.url is None:
        raise InvalidInput("a cluster is asked through one of its nodes: give --url")
    return call(where if url is None else where._replace(url=url), method, path, body)


def _where(url: str) -> Where:
    return Where(None, url, None, "default")
