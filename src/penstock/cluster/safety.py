"""Whether NATS keeps what it confirms: told by its monitoring port, or declared.

By default a NATS server syncs its store every two minutes: what it confirmed before is gone if all
servers lose power. With `sync_interval: always` it is not.
"""

from __future__ import annotations

from http.client import HTTPException
from urllib.request import urlopen

import msgspec

from penstock.errors import ClusterUnsafe

HOW_TO = (
    "Set it on every server:\n\n    jetstream {\n        store_dir: /data\n"
    "        sync_interval: always\n    }\n\nand restart them one after the other."
)


class _Settings(msgspec.Struct):
    sync_always: bool = False


class _JetStreamInfo(msgspec.Struct):
    config: _Settings | None = None
    disabled: bool = False


def check_nats(monitors: tuple[str, ...], *, declared: bool) -> None:
    """Raise ClusterUnsafe unless every server that can be asked syncs, or somebody says so."""
    for url in monitors:
        try:
            with urlopen(f"{url.rstrip('/')}/jsz?config=1", timeout=5) as answer:
                info = msgspec.json.decode(answer.read(1 << 20), type=_JetStreamInfo)
        except (OSError, HTTPException, ValueError, msgspec.MsgspecError) as exc:
            raise ClusterUnsafe(
                f"cluster_monitors: {url} is not the monitoring address of a NATS server that "
                f"answers (its http_port, 8222 mostly): {exc}"
            ) from exc
        if info.disabled:
            raise ClusterUnsafe(f"the NATS server at {url} has no JetStream; switch it on")
        if info.config is None or not info.config.sync_always:
            raise ClusterUnsafe(
                f"the NATS server at {url} does not sync what it confirms: a power cut of all "
                f"servers would lose it. {HOW_TO}"
            )
    if not monitors and not declared:
        raise ClusterUnsafe(
            "whether NATS syncs what it confirms cannot be seen from here. Give the monitoring "
            "addresses of its servers (cluster_monitors: http://a:8222,http://b:8222), or say "
            f"that they do (cluster_nats_syncs: true). {HOW_TO}"
        )
