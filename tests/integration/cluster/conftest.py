from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from penstock.cluster.local_nats import find_nats_server
from penstock.cluster.local_nodes import LocalCluster
from penstock.errors import MissingExtra


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    yield from running(tmp_path_factory.mktemp("cluster"))


def running(folder: Path, protocols: Sequence[str] = ()) -> Iterator[LocalCluster]:
    try:
        find_nats_server()
    except MissingExtra as exc:
        pytest.skip(str(exc))
    yield from kept_running(LocalCluster(folder, protocols=protocols))


def kept_running(cluster: LocalCluster) -> Iterator[LocalCluster]:
    try:
        cluster.start_all()
        yield cluster
    finally:
        cluster.stop()
