"""A Spark cluster of its own: a master and a worker, whose executors can be killed."""

from __future__ import annotations

import random
import socket
import time
from pathlib import Path
from typing import Self

import pyspark

from tests.spark.victims import Victim

SPARK_HOME = Path(pyspark.__file__).parent
_PATIENCE_S = 120.0
_QUICK_START = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
_CALM_S = 3600  # a machine that is busy with other things must not look like a dead executor


class SparkCluster:
    """Two executors of a core each, all on 127.0.0.1; `environment` is for its drivers.

    It outlives the drivers: one that is killed leaves its executors to the worker, as on any
    cluster, and the next one gets new ones.
    """

    def __init__(self, folder: Path) -> None:
        settings = folder / "conf"
        settings.mkdir(parents=True)
        (settings / "spark-defaults.conf").write_text(
            "spark.executor.cores 1\nspark.executor.memory 700m\nspark.ui.enabled false\n"
            f"spark.executor.extraJavaOptions {_QUICK_START}\n"
            f"spark.driver.extraJavaOptions {_QUICK_START}\n"
            f"spark.network.timeout {_CALM_S}s\n"
        )
        self.environment = {
            "SPARK_HOME": str(SPARK_HOME),
            "SPARK_CONF_DIR": str(settings),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": f"{_QUICK_START} -Dspark.worker.timeout={_CALM_S}",
        }
        self._folder = folder
        self._port = free_port()
        self.url = f"spark://127.0.0.1:{self._port}"

    def __enter__(self) -> Self:
        place = ("--host", "127.0.0.1", "--port")
        self._master = self._daemon("master.Master", *place, str(self._port), "--webui-port", "0")
        self._wait_for_the_master()
        work = ("--cores", "2", "--memory", "2g", "--work-dir", str(self._folder / "work"))
        self._worker = self._daemon(
            "worker.Worker", *place, "0", "--webui-port", "0", *work, self.url
        )
        return self

    def __exit__(self, *exc: object) -> None:
        self._worker.kill()
        self._master.kill()

    def kill_an_executor(self, dice: random.Random) -> bool:
        """Kill the JVM of an executor, which takes its Python workers along; if there is one."""
        return self._worker.kill_one(dice, "CoarseGrainedExecutorBackend")

    def kill_a_worker(self, dice: random.Random) -> bool:
        """Kill one of the processes in which executors run Python; if there is one."""
        return self._worker.kill_one(dice, "pyspark.daemon")

    def _daemon(self, name: str, *words: str) -> Victim:
        return Victim(
            str(SPARK_HOME / "bin" / "spark-class"),
            f"org.apache.spark.deploy.{name}",
            *words,
            environment=self.environment,
            log=self._folder / "daemons.log",
        )

    def _wait_for_the_master(self) -> None:
        deadline = time.monotonic() + _PATIENCE_S
        while True:
            try:
                socket.create_connection(("127.0.0.1", self._port), timeout=5).close()
                return
            except OSError:
                assert time.monotonic() < deadline, "the master of the cluster did not start"
                time.sleep(0.1)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
        return port
