"""The suites by name, in the order in which they run.

A suite is a module with a one-line docstring and `run(bench: Bench) -> None`; add it here.
"""

from __future__ import annotations

from bench.suites import (
    broker_backlog,
    broker_cost,
    broker_delays,
    broker_lanes,
    broker_publish,
    broker_receive,
    broker_topics,
    folder,
    log_append,
    log_commit,
    log_cost,
    log_growth,
    log_read,
    server,
    spark_growth,
    spark_read,
    worker,
)

SUITES = {
    "log-append": log_append,
    "log-read": log_read,
    "log-commit": log_commit,
    "log-cost": log_cost,
    "log-growth": log_growth,
    "broker-publish": broker_publish,
    "broker-receive": broker_receive,
    "broker-backlog": broker_backlog,
    "broker-lanes": broker_lanes,
    "broker-delays": broker_delays,
    "broker-cost": broker_cost,
    "broker-topics": broker_topics,
    "worker": worker,
    "server": server,
    "folder": folder,
    "spark-read": spark_read,
    "spark-growth": spark_growth,
}
