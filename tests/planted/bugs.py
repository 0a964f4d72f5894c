"""All bugs that are planted, each a small change to the source that somebody could make.

A bug names the tests that have to notice it. When the text that it replaces is no longer in the
source, the bug has to be written again: it fails loudly rather than prove nothing.
"""

from __future__ import annotations

from tests.planted.broker_bugs import BROKER_BUGS
from tests.planted.client_bugs import CLIENT_BUGS
from tests.planted.cluster_bugs import CLUSTER_BUGS
from tests.planted.coming_over_bugs import COMING_OVER_BUGS
from tests.planted.dashboard_bugs import DASHBOARD_BUGS
from tests.planted.delivery_bugs import DELIVERY_BUGS
from tests.planted.group_bugs import GROUP_BUGS
from tests.planted.kafka_bugs import KAFKA_BUGS
from tests.planted.latency_bugs import LATENCY_BUGS
from tests.planted.log_bugs import LOG_BUGS
from tests.planted.push_bugs import PUSH_BUGS
from tests.planted.schedule_bugs import SCHEDULE_BUGS
from tests.planted.schema_bugs import SCHEMA_BUGS
from tests.planted.spark_bugs import SPARK_BUGS
from tests.planted.statistics_bugs import STATISTICS_BUGS
from tests.planted.tenant_bugs import TENANT_BUGS
from tests.planted.trace_bugs import TRACE_BUGS
from tests.planted.transaction_bugs import TRANSACTION_BUGS
from tests.planted.worker_bugs import WORKER_BUGS

BUGS = [
    *LOG_BUGS,
    *DASHBOARD_BUGS,
    *DELIVERY_BUGS,
    *GROUP_BUGS,
    *BROKER_BUGS,
    *CLUSTER_BUGS,
    *KAFKA_BUGS,
    *LATENCY_BUGS,
    *SCHEDULE_BUGS,
    *SCHEMA_BUGS,
    *CLIENT_BUGS,
    *PUSH_BUGS,
    *SPARK_BUGS,
    *COMING_OVER_BUGS,
    *STATISTICS_BUGS,
    *TENANT_BUGS,
    *TRACE_BUGS,
    *TRANSACTION_BUGS,
    *WORKER_BUGS,
]
