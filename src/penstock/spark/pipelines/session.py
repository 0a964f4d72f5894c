"""A Spark session for the pipelines: local as it is, or on any cluster by its master URL."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import SparkSession as Session

from penstock.errors import JavaMissing

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@contextmanager
def session(master: str = "", name: str = "penstock") -> Iterator[SparkSession]:
    """A session that is stopped at the end; `master` is by default all cores of this machine."""
    if shutil.which("java") is None and not os.environ.get("JAVA_HOME"):
        raise JavaMissing
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # or workers take any python3
    local = not master or master.startswith("local")
    builder = Session.builder.master(master or "local[*]").appName(name)
    if local:
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        quiet = (
            f"-Dlog4j2.configurationFile={Path(__file__).with_name('log4j2.properties').as_uri()}"
        )
        builder = (
            builder.config("spark.ui.enabled", "false")
            .config("spark.driver.extraJavaOptions", quiet)
            .config("spark.driver.bindAddress", "127.0.0.1")
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.sql.shuffle.partitions", str(os.cpu_count() or 2))
        )
    spark = builder.config("spark.ui.showConsoleProgress", "false").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    try:
        yield spark
    finally:
        # Its JVM may have got the same signal as this process, and be gone.
        with suppress(OSError, import_module("py4j.protocol").Py4JError):
            spark.stop()
