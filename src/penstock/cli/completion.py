"""What a shell offers for a word that is not finished: the names of topics."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import typer

import penstock
from penstock.cli.session import Where, find_where
from penstock.errors import PenstockError
from penstock.model.catalog import read_catalog

_PATIENCE = "1s"  # nobody waits longer for the tab key


def topic_names(ctx: typer.Context, incomplete: str) -> list[str]:
    """Topics whose names begin so; none where that cannot be found out at once."""
    given = ctx.params
    data, tls_ca = given.get("data"), given.get("tls_ca")
    with suppress(PenstockError, OSError):
        where = find_where(
            Path(data) if data else None,  # options are not converted yet
            given.get("url"),
            given.get("api_key"),
            given.get("namespace"),
            Path(tls_ca) if tls_ca else None,
            os.environ,
        )
        names = _of_folder(where) if where.url is None else _of_server(where, where.url)
        return sorted(name for name in names if name.startswith(incomplete))
    return []


def _of_folder(where: Where) -> list[str]:
    """From its catalog, without a broker: the data folder may be in use."""
    topics = read_catalog(where.target).topics
    return [name.topic for name in topics if name.namespace == where.namespace]


def _of_server(where: Where, url: str) -> list[str]:
    with penstock.connect(
        url,
        namespace=where.namespace,
        api_key=where.api_key,
        tls_ca=where.tls_ca,
        timeout=_PATIENCE,
        retry_for=0,
    ) as ps:
        return ps.topics()
