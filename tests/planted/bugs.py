"""All bugs that are planted, each a small change to the source that somebody could make.

A bug names the tests that have to notice it. When the text that it replaces is no longer in the
source, the bug has to be written again: it fails loudly rather than prove nothing.
"""

from __future__ import annotations

from tests.planted.broker_bugs import BROKER_BUGS
from tests.planted.client_bugs import CLIENT_BUGS
from tests.planted.delivery_bugs import DELIVERY_BUGS
from tests.planted.group_bugs import GROUP_BUGS
from tests.planted.latency_bugs import LATENCY_BUGS
from tests.planted.log_bugs import LOG_BUGS
from tests.planted.spark_bugs import SPARK_BUGS

BUGS = [
    *LOG_BUGS,
    *DELIVERY_BUGS,
    *GROUP_BUGS,
    *BROKER_BUGS,
    *LATENCY_BUGS,
    *CLIENT_BUGS,
    *SPARK_BUGS,
]
