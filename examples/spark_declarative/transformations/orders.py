"""Orders as a table that grows, and the total of each city as one that is kept up to date."""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

spark = SparkSession.active()


@dp.table(name="orders")
def orders() -> DataFrame:
    """Every order once: the pipeline's checkpoint knows the offsets."""
    return (
        spark.readStream.format("penstock")
        .option("path", spark.conf.get("penstock.path"))
        .option("subscribe", "orders")
        .option("startingOffsets", "earliest")
        .load()
        .selectExpr("id", "timestamp", "from_json(string(value), 'city string, amount double') o")
        .selectExpr("id", "timestamp", "o.city", "o.amount")
        .where("amount is not null")
    )


@dp.materialized_view(name="totals")
def totals() -> DataFrame:
    return spark.read.table("orders").groupBy("city").agg(F.sum("amount").alias("total"))
