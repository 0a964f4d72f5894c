"""A broker behind HTTP: `penstock serve`, or an ASGI application for a server of your own."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.server.application import Application


def app(data: str | os.PathLike[str] | Broker, **settings: Any) -> Application:
    """An ASGI application that serves a data folder, or a broker that is open already.

    `settings` are those of the server (`body_bytes_max`, `allowed_hosts` ...); the ones about
    listening are up to the ASGI server. Mount it under any prefix in an application of your own,
    and give that its `lifespan`, so that polls are answered and the folder is left clean at the
    end; or call `close`:

        queue = penstock.server.app("./data")
        app = FastAPI(lifespan=queue.lifespan)
        app.mount("/queue", queue)
    """
    # Whoever only makes keys needs no web framework.
    from penstock.server.application import open_application  # noqa: PLC0415

    return open_application(data, **settings)
