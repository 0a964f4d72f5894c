"""Penstock on Spark: the data source `penstock`, and ready pipelines in `penstock.spark.pipelines`.

Spark finds the data source by the package `pyspark_penstock`; nothing has to be registered.
`prepare()`, before a session is built, has Spark use this Python and a Java that is there.
"""

from penstock.spark.environment import prepare

__all__ = ["prepare"]
