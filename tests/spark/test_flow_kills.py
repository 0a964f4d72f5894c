"""Flows whose process is killed at each commit point, with rows that come and a topic made anew."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import penstock
from tests.spark.doomed_flow import POINTS
from tests.spark.test_flows import current, customers, declared  # noqa: F401 - a fixture
from tests.spark.victims import ROOT

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.torture, pytest.mark.timeout(3600)]


@pytest.mark.parametrize("lake_format", ["delta", "iceberg"])
@pytest.mark.parametrize("seed", range(2))
def test_each_key_has_its_last_value_wherever_the_flow_is_killed(
    spark: SparkSession,
    customers: str,  # noqa: F811
    tmp_path: Path,
    seed: int,
    lake_format: str,
) -> None:
    from penstock.spark.flows import apply_flow

    chance = random.Random(seed)
    flow = declared(customers, tmp_path)
    flow["source"]["skip_lost"] = True
    flow["target"]["format"] = lake_format
    (tmp_path / "flow.json").write_text(json.dumps(flow))
    last: dict[int, tuple[int, int, str]] = {}
    bad: list[str] = []
    number = 0
    points = list(POINTS)
    chance.shuffle(points)
    for point in points:
        with penstock.connect(customers) as ps:
            if point == points[2]:  # by then all of the former one is in the table
                apply_flow(spark, flow)
                ps.delete_topic("customers")
                ps.create_topic("customers", partitions=1)
            if point == points[3]:
                ps.alter_topic("customers", partitions=3)
            for _ in range(50):
                key, at = chance.randrange(20), chance.randrange(100)
                row: dict[str, Any] = {"id": key, "city": f"city {number}", "at": at}
                if chance.random() < 0.1:
                    row["city"] = None
                    bad.append(json.dumps(row))
                elif key not in last or (at, number) >= last[key][:2]:
                    last[key] = (at, number, row["city"])
                ps.publish("customers", json.dumps(row), key=str(key))
                number += 1
        killed = subprocess.run(
            [sys.executable, "-m", "tests.spark.doomed_flow", str(tmp_path / "flow.json"), point],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
            timeout=900,
        )
        assert killed.returncode == -signal.SIGKILL, (point, seed, killed.stderr[-2000:])
    apply_flow(spark, flow)
    found = current(spark, tmp_path / "lake" / "customers")
    assert found == {key: each[2] for key, each in last.items()}, seed
    with penstock.connect(customers) as ps:
        letters = Counter(letter.value.decode() for letter in ps.dead_letters("customers").list())
    assert letters == Counter(bad), seed
