"""The operators for Airflow and the assets for Dagster, in an environment that has both.

`make orchestration` makes one; elsewhere these tests are skipped.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import penstock

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="session", autouse=True)
def _home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Airflow has a folder of its own, looked for when it is imported."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AIRFLOW_HOME", str(tmp_path_factory.mktemp("airflow")))
        patch.setenv("AIRFLOW__CORE__LOAD_EXAMPLES", "false")
        yield


@pytest.fixture
def shop(tmp_path: Path) -> str:
    folder = str(tmp_path / "data")
    with penstock.connect(folder) as ps:
        ps.create_topic("orders", partitions=2)
        ps.publish_batch("orders", [json.dumps({"n": n}) for n in range(100)], partition=0)
    return folder


def flow(folder: str, tmp_path: Path) -> dict[str, Any]:
    return {
        "name": "orders-now",
        "source": {"place": folder, "topic": "orders"},
        "decode": {"format": "json", "schema": "n int"},
        "target": {"kind": "current", "table": str(tmp_path / "now"), "key": ["n"]},
    }


def test_airflow_archives_and_waits_for_it(shop: str, tmp_path: Path) -> None:
    pytest.importorskip("airflow")
    from penstock.spark.airflow import ArchivedSensor, ArchiveOperator, FlowOperator

    lake = str(tmp_path / "lake")
    until = datetime.now(UTC)
    sensor = ArchivedSensor(task_id="wait", source=shop, topic="orders", until=until.isoformat())
    assert not sensor.poke({})
    task = ArchiveOperator(task_id="archive", source=shop, lake=lake, topics=["orders"])
    assert task.execute({})["rows"] == 100
    assert json.loads(json.dumps(task.execute({})))["rows"] == 0
    assert _soon(lambda: sensor.poke({}))
    with penstock.connect(shop) as ps:
        ps.publish("orders", "{}", partition=1)
    late = ArchivedSensor(
        task_id="later", source=shop, topic="orders", until=datetime.now(UTC) + timedelta(hours=1)
    )
    assert sensor.poke({})
    assert not late.poke({})
    assert FlowOperator(task_id="flow", flow=flow(shop, tmp_path)).execute({})["messages"] == 101


def _soon(is_so: Any) -> bool:
    deadline = time.monotonic() + 30
    while not is_so() and time.monotonic() < deadline:
        time.sleep(0.2)
    return bool(is_so())


def test_the_dag_of_the_example_is_one() -> None:
    pytest.importorskip("airflow")
    from examples.orchestration import airflow_dag

    assert [task.task_id for task in airflow_dag.shop.topological_sort()] == [
        "archive",
        "archived",
        "customers",
    ]
    assert "until" in airflow_dag.archived.template_fields


def test_dagster_materializes_an_archive_and_a_flow(shop: str, tmp_path: Path) -> None:
    dagster = pytest.importorskip("dagster")
    from penstock.spark.dagster import archive_asset, flow_asset

    orders = archive_asset("orders", source=shop, lake=str(tmp_path / "lake"), topics=["orders"])
    now = flow_asset(flow(shop, tmp_path), deps=[orders])
    for rows in (100, 0):
        done = dagster.materialize([orders, now])
        assert done.success
        found = {
            event.asset_key.to_user_string(): event.materialization.metadata
            for event in done.get_asset_materialization_events()
        }
        assert found["orders"]["dagster/row_count"].value == rows
        assert found["orders_now"]["messages"].value == rows
        assert "orders until" in found["orders"]


def test_the_definitions_of_the_example_load() -> None:
    dagster = pytest.importorskip("dagster")
    from examples.orchestration import dagster_assets

    assert isinstance(dagster_assets.defs, dagster.Definitions)
    dagster.Definitions.validate_loadable(dagster_assets.defs)
