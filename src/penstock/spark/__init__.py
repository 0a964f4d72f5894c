"""Penstock on Spark: the data source `penstock`, and ready pipelines in `penstock.spark.pipelines`.

Spark finds the data source by the package `pyspark_penstock`; nothing has to be registered.
"""
