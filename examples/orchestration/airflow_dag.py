"""A DAG for Airflow 3: every hour into the lake, then what builds on the hour.

Put it into the folder of your DAGs; `pip install 'penstock[spark]'` beside Airflow.
"""

from __future__ import annotations

from datetime import datetime

from airflow.sdk import DAG

from penstock.spark.airflow import ArchivedSensor, ArchiveOperator, FlowOperator

BROKER = "http://localhost:8080"

with DAG("shop", schedule="@hourly", start_date=datetime(2026, 1, 1), catchup=False) as shop:  # noqa: DTZ001 - Airflow's own zone
    archive = ArchiveOperator(
        task_id="archive", source=BROKER, lake="s3://shop/lake", topics=["orders"]
    )
    # Who else waits for the hour may do so in a DAG of their own.
    archived = ArchivedSensor(
        task_id="archived",
        source=BROKER,
        topic="orders",
        until="{{ data_interval_end }}",
        mode="reschedule",
    )
    customers = FlowOperator(task_id="customers", flow="/etc/shop/customers.yaml")
    archive >> archived >> customers
