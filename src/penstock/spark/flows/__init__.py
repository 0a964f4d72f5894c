"""Flows: one declared pipeline from a topic to a table, decoded, checked, and exactly once.

`apply_flow` runs one, `plan_flow` says what that would do, `flow_status` how it stands.
"""

from penstock.spark.flows.definition import Flow, load_flow
from penstock.spark.flows.run import Applied, apply_flow
from penstock.spark.flows.standing import FlowPlan, FlowStatus, as_metrics, flow_status, plan_flow
from penstock.spark.flows.tables import read_current
from penstock.spark.flows.upkeep import Optimized, optimize_flow

__all__ = [
    "Applied",
    "Flow",
    "FlowPlan",
    "FlowStatus",
    "Optimized",
    "apply_flow",
    "as_metrics",
    "flow_status",
    "load_flow",
    "optimize_flow",
    "plan_flow",
    "read_current",
]
