"""How the tests are spread over processes."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest

# Clients trace for programs that use OpenTelemetry. Once the tests of spans have loaded it, the
# process does; the others are not to be traced for that.
os.environ["OTEL_SDK_DISABLED"] = "true"

# A shell starts what it runs in the background with Ctrl-C ignored, and children inherit that. The
# tests interrupt theirs.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

_TOGETHER = ("tests/spark", "tests/e2e", "tests/integration/cluster")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """All tests that share a Spark session, a browser or a cluster to one process: another JVM,
    another Chromium or six more servers would take longer."""
    from xdist.scheduler import LoadScopeScheduling

    class SharersTogether(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            shared = (room for room in _TOGETHER if nodeid.startswith(f"{room}/"))
            return next(shared, nodeid)

    return SharersTogether(config, log)
