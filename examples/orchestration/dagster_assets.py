"""Assets for Dagster: `dagster dev -f dagster_assets.py`, with `penstock[spark]` beside it."""

from __future__ import annotations

import dagster

from penstock.spark.dagster import archive_asset, flow_asset

BROKER = "http://localhost:8080"

orders = archive_asset("orders", source=BROKER, lake="s3://shop/lake", topics=["orders"])
customers = flow_asset(
    {
        "name": "customers",
        "source": {"place": BROKER, "topic": "customers"},
        "decode": {"format": "json", "schema": "id bigint not null, city string"},
        "target": {"kind": "current", "table": "s3://shop/customers", "key": ["id"]},
        "state": "/var/lib/shop/flows",
    },
    deps=[orders],
)
defs = dagster.Definitions(
    assets=[orders, customers],
    schedules=[
        dagster.ScheduleDefinition(
            name="hourly",
            target=dagster.AssetSelection.all(),
            cron_schedule="@hourly",
        )
    ],
)
