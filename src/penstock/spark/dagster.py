"""For Dagster: archives and flows as assets, with what they did as metadata.

Dagster is in no extra: an asset is of the one that is there. Beside it, `penstock[spark]`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from dagster import AssetsDefinition, MaterializeResult, asset

from penstock.spark.archived import archived_until
from penstock.spark.flows import apply_flow, flow_status, load_flow
from penstock.spark.lake import LakeFormat
from penstock.spark.pipelines import archive, as_target, session


def archive_asset(
    name: str,
    *,
    source: str,
    lake: str,
    topics: Sequence[str],
    lake_format: LakeFormat = "delta",
    storage: Mapping[str, str] | None = None,
    schema: str = "",
    group: str = "archive",
    skip_lost: bool = False,
    namespace: str = "default",
    api_key: str = "",
    master: str = "",
    conf: Mapping[str, str] | None = None,
    **dagster: Any,
) -> AssetsDefinition:
    """The tables of topics in a lake. To materialize it brings in what has come since, each message
    once. `dagster`: what its `asset` takes besides, such as `deps` and `group_name`."""

    def archived() -> MaterializeResult:
        target = as_target(source, namespace, api_key)
        with session(master, name, conf or {}) as spark:
            done = archive(
                spark,
                target,
                lake,
                topics,
                lake_format=lake_format,
                storage=storage,
                schema=schema,
                group=group,
                fail_on_data_loss=not skip_lost,
            )
        moments = {each: archived_until(target, each, group) for each in topics}
        until = {f"{each} until": str(moment) for each, moment in moments.items() if moment}
        return MaterializeResult(
            metadata={**msgspec.to_builtins(done), "dagster/row_count": done.rows, **until}
        )

    return asset(name=name, kinds={"spark", lake_format}, **dagster)(archived)


def flow_asset(
    flow: str | Mapping[str, Any],
    *,
    api_key: str = "",
    master: str = "",
    conf: Mapping[str, str] | None = None,
    **dagster: Any,
) -> AssetsDefinition:
    """The target of a flow, which names the asset. To materialize it brings the flow up to the end
    of its topic."""
    declared = load_flow(flow)

    def applied() -> MaterializeResult:
        with session(master, declared.name, conf or {}) as spark:
            done = apply_flow(spark, declared, api_key=api_key)
        stands = flow_status(declared, api_key=api_key)
        return MaterializeResult(
            metadata={
                **msgspec.to_builtins(done),
                "dagster/row_count": done.rows,
                "lag": stands.lag,
            }
        )

    name = declared.name.replace("-", "_").replace(".", "_")
    return asset(name=name, kinds={"spark"}, **dagster)(applied)
