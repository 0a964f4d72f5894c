"""For Airflow 3: archives and flows as operators, and a sensor that waits for an archive.

Airflow is in no extra: an operator runs in the one that is there. Beside it, `penstock[spark]`.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec
from airflow.sdk import BaseOperator, BaseSensorOperator

from penstock.errors import InvalidInput
from penstock.spark.archived import archived_until
from penstock.spark.flows import apply_flow
from penstock.spark.lake import LakeFormat
from penstock.spark.pipelines import archive, as_target, session


class ArchiveOperator(BaseOperator):  # type: ignore[misc]
    """Brings topics into a lake, each message once; as `penstock pipeline run archive` does.

    A task that is run again goes on where the tables say. Its result is what was done.
    """

    template_fields: Sequence[str] = ("source", "lake", "topics", "master")

    def __init__(
        self,
        *,
        source: str,
        lake: str,
        topics: Sequence[str],
        lake_format: LakeFormat = "delta",
        storage: dict[str, str] | None = None,
        schema: str = "",
        group: str = "archive",
        skip_lost: bool = False,
        namespace: str = "default",
        api_key: str = "",
        master: str = "",
        conf: dict[str, str] | None = None,
        **airflow: Any,
    ) -> None:
        super().__init__(**airflow)
        self.source = source
        self.lake = lake
        self.topics = list(topics)
        self.lake_format = lake_format
        self.storage = storage
        self.schema = schema
        self.group = group
        self.skip_lost = skip_lost
        self.namespace = namespace
        self.api_key = api_key
        self.master = master
        self.conf = conf

    def execute(self, context: Any) -> dict[str, Any]:
        with session(self.master, self.task_id, self.conf or {}) as spark:
            done = archive(
                spark,
                as_target(self.source, self.namespace, self.api_key),
                self.lake,
                self.topics,
                lake_format=self.lake_format,
                storage=self.storage,
                schema=self.schema,
                group=self.group,
                fail_on_data_loss=not self.skip_lost,
                report=self.log.info,
            )
        return {**msgspec.to_builtins(done), "rows": done.rows}


class FlowOperator(BaseOperator):  # type: ignore[misc]
    """Brings a flow up to the end of its topic, as `penstock pipeline apply` does."""

    template_fields: Sequence[str] = ("flow", "master")

    def __init__(
        self,
        *,
        flow: str | dict[str, Any],
        api_key: str = "",
        master: str = "",
        conf: dict[str, str] | None = None,
        **airflow: Any,
    ) -> None:
        super().__init__(**airflow)
        self.flow = flow
        self.api_key = api_key
        self.master = master
        self.conf = conf

    def execute(self, context: Any) -> dict[str, Any]:
        with session(self.master, self.task_id, self.conf or {}) as spark:
            done = apply_flow(spark, self.flow, api_key=self.api_key, report=self.log.info)
        found: dict[str, Any] = msgspec.to_builtins(done)
        return found


class ArchivedSensor(BaseSensorOperator):  # type: ignore[misc]
    """Waits until all messages that a topic got before `until` are in the lake. Needs no Spark."""

    template_fields: Sequence[str] = ("source", "topic", "until")

    def __init__(
        self,
        *,
        source: str,
        topic: str,
        until: str | datetime = "{{ data_interval_end }}",
        group: str = "archive",
        namespace: str = "default",
        api_key: str = "",
        **airflow: Any,
    ) -> None:
        super().__init__(**airflow)
        self.source = source
        self.topic = topic
        self.until = until
        self.group = group
        self.namespace = namespace
        self.api_key = api_key

    def poke(self, context: Any) -> bool:
        until = _moment(self.until)
        target = as_target(self.source, self.namespace, self.api_key)
        found = archived_until(target, self.topic, self.group)
        self.log.info("%s is archived up to %s, and is to be up to %s", self.topic, found, until)
        return found is not None and found >= until


def _moment(given: str | datetime) -> datetime:
    """A time without a zone is in UTC."""
    if isinstance(given, str):
        try:
            given = datetime.fromisoformat(given)
        except ValueError:
            raise InvalidInput(
                f"until is {given!r}; give a time such as 2026-11-14T00:00:00Z"
            ) from None
    return given if given.tzinfo else given.replace(tzinfo=UTC)
