"""A Spark session for the pipelines: local as it is, or on any cluster by its master URL."""

from __future__ import annotations

import logging
import os
import re
import signal
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import MappingProxyType

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkRuntimeError
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

from penstock.errors import InvalidInput, JavaMissing, SparkFailed
from penstock.spark.environment import prepare
from penstock.spark.pipelines.failures import unwrapped

_MASTERS = re.compile(
    r"local|local\[(\*|[1-9][0-9]*)(,[0-9]+)?\]|local-cluster\[[0-9 ]+,[0-9 ]+,[0-9 ]+\]"
    r"|spark://[^:/]+:[0-9]+(,[^:/]+:[0-9]+)*|k8s://.+|yarn"
)
_CONNECT_S = 5.0


@contextmanager
def session(
    master: str = "", name: str = "penstock", conf: Mapping[str, str] = MappingProxyType({})
) -> Iterator[SparkSession]:
    """A session that is stopped at the end; `master` is by default all cores of this machine.

    `conf`: more settings of Spark, which come before those that are made here. What Spark raises
    inside comes out as an error of Penstock's own.
    """
    if master and not _MASTERS.fullmatch(master):
        raise InvalidInput(
            f"the master is {master!r}; it is local[4], spark://host:7077, k8s://... or yarn"
        )
    _check_master(master)
    prepare()
    with unwrapped(), _without_words_of_pyspark(), _without_words_of_py4j(), _own_ctrl_c():
        spark = _started(_settings(master or "local[*]", name, conf))
        try:
            yield spark
        finally:
            # Its JVM may have got the same signal as this process, and be gone.
            with suppress(OSError, Py4JError):
                spark.stop()


def _check_master(master: str) -> None:
    """Say at once what Spark would find out after minutes."""
    if master == "yarn" and not {"HADOOP_CONF_DIR", "YARN_CONF_DIR"} & os.environ.keys():
        raise InvalidInput("the master yarn needs HADOOP_CONF_DIR or YARN_CONF_DIR to be set")
    if not master.startswith("spark://"):
        return
    failed = ""
    for place in master.removeprefix("spark://").split(","):
        host, _, port = place.rpartition(":")
        try:
            socket.create_connection((host, int(port)), _CONNECT_S).close()
        except (OSError, OverflowError) as exc:
            failed = f"{place}: {exc}"
        else:
            return
    raise SparkFailed(f"no Spark master answers at {master} ({failed}): start it, or give another")


def _settings(master: str, name: str, conf: Mapping[str, str]) -> SparkConf:
    quiet = Path(__file__).with_name("log4j2.properties").as_uri()
    settings = SparkConf().setMaster(master).setAppName(name)
    settings.set("spark.ui.showConsoleProgress", "false")
    # Defaults: what a user's own settings say of Java comes behind them, and counts.
    settings.set("spark.driver.defaultJavaOptions", f"-Dlog4j2.configurationFile={quiet}")
    if master.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        settings.set("spark.ui.enabled", "false")
        settings.set("spark.driver.bindAddress", "127.0.0.1")
        settings.set("spark.driver.host", "127.0.0.1")
        settings.set("spark.sql.shuffle.partitions", str(os.cpu_count() or 2))
    return settings.setAll(list(conf.items()))


def _started(settings: SparkConf) -> SparkSession:
    try:
        with _signals_wait():
            SparkContext._ensure_initialized(conf=settings)
    except PySparkRuntimeError as exc:
        if exc.getCondition() != "JAVA_GATEWAY_EXITED":
            raise
        raise JavaMissing(
            "Java ended before Spark began, and has said why. Spark needs Java 17 or newer; see "
            "`java -version`, and JAVA_HOME if it is set."
        ) from exc
    spark = SparkSession.builder.config(conf=settings).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


@contextmanager
def _signals_wait() -> Iterator[None]:
    """Ctrl-C and SIGTERM come at the end of this, while Java starts.

    An interrupt in the middle would have PySpark remove the file by which the two find each other;
    Java then stays for ever, and with it whoever waits for the end of what this process prints.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # where no signal comes
        return
    came: list[int] = []
    former = {
        number: signal.signal(number, lambda number, _: came.append(number))
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)
    for each in came:
        signal.raise_signal(each)


@contextmanager
def _own_ctrl_c() -> Iterator[None]:
    """PySpark takes SIGINT for itself, to cancel jobs, and does not give it back at the end."""
    former = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        present = signal.getsignal(signal.SIGINT)
        is_of_spark = getattr(present, "__module__", "") == SparkContext.__module__
        if is_of_spark and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, former)


@contextmanager
def _without_words_of_pyspark() -> Iterator[None]:
    """What it logs, as JSON with all of Java's stack, of an error in a query: it raises it too."""
    loggers = [
        PySparkLogger.getLogger(f"{kind}QueryContextLogger") for kind in ("SQL", "DataFrame")
    ]
    former = [each.disabled for each in loggers]
    for each in loggers:
        each.disabled = True
    try:
        yield
    finally:
        for each, was in zip(loggers, former, strict=True):
            each.disabled = was


@contextmanager
def _without_words_of_py4j() -> Iterator[None]:
    """What it logs, with a traceback, when a call is cut short: Ctrl-C, or Java that is gone.

    Both come out of the call as an exception too. It logs to the root, so that is where to listen.
    """

    def is_of_others(record: logging.LogRecord) -> bool:
        return os.path.basename(os.path.dirname(record.pathname)) != "py4j"

    root = logging.getLogger()
    root.addFilter(is_of_others)
    try:
        yield
    finally:
        root.removeFilter(is_of_others)
