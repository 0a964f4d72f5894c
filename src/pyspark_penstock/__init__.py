"""The name by which Spark finds the data source: `spark.read.format("penstock")`."""

from penstock.spark.source import PenstockDataSource as DefaultSource

__all__ = ["DefaultSource"]
