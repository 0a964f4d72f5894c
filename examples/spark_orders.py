"""A pipeline of your own in plain PySpark: orders in, totals a city out, as messages.

    python examples/spark_orders.py [--data FOLDER]

Makes some orders, then runs a stream over them until they are done: JSON is decoded, what is no
order goes to a topic of its own, and the totals so far are published after every batch.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import tempfile

from pyspark.sql import DataFrame, SparkSession

import penstock
from penstock.spark.pipelines import session

ORDER = "city string, amount double"
CITIES = ("Aachen", "Bergen", "Cádiz", "Dublin")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", help="a data folder; by default one that is removed again")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="penstock-") as scratch:
        data = os.path.abspath(options.data or os.path.join(scratch, "data"))
        place_orders(data, 2000)
        with session("local[2]") as spark:
            run_totals(spark, data)
        show(data)


def place_orders(data: str, count: int) -> None:
    dice = random.Random(7)
    with penstock.connect(data) as ps:
        for topic in ("orders", "totals", "not-orders"):
            ps.create_topic(topic, exist_ok=True)
        orders = [
            "one apple, please"
            if number % 500 == 499
            else json.dumps({"city": dice.choice(CITIES), "amount": dice.randint(1, 100)})
            for number in range(count)
        ]
        ps.publish_batch("orders", orders)


def run_totals(spark: SparkSession, data: str) -> None:
    """Everything that is new since the last run, in batches of 1000."""
    orders = (
        spark.readStream.format("penstock")
        .options(path=data, subscribe="orders", startingOffsets="earliest", group="totals")
        .option("maxOffsetsPerTrigger", 1000)
        .load()
        .selectExpr("value", f"from_json(string(value), '{ORDER}') as o")
    )
    totals = (
        orders.where("o.amount is not null")
        .groupBy("o.city")
        .agg({"o.amount": "sum", "*": "count"})
        .toDF("city", "orders", "total")
        .selectExpr("city as key", "to_json(struct(city, orders, total)) as value")
    )
    start(totals, data, "totals", "complete")
    start(orders.where("o.amount is null").select("value"), data, "not-orders", "append")


def start(frame: DataFrame, data: str, topic: str, mode: str) -> None:
    query = (
        frame.writeStream.format("penstock")
        .options(path=data, topic=topic)
        .option("checkpointLocation", os.path.join(data, "spark", f"checkpoint-{topic}"))
        .outputMode(mode)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def show(data: str) -> None:
    with penstock.connect(data) as ps:
        totals = ps.peek("totals", limit=1000)
        last = {message.key: json.loads(message.value or b"{}") for message in totals}
        for total in sorted(last.values(), key=lambda t: t["city"]):
            print(f"{total['city']:<8} {total['orders']:>5} orders {total['total']:>10,.0f}")
        print(f"{ps.stats('not-orders').messages} messages were no orders")
        lag = sum(ps.describe_stream_group("totals").lag.values())
        print(f"the group 'totals' has {lag} messages to do")


if __name__ == "__main__":
    main()
