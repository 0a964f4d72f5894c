"""What Prometheus is told of traces, and of namespaces and their quotas."""

from __future__ import annotations

import re
from typing import Any

import pytest

import penstock
from penstock.broker.broker import Broker
from penstock.errors import QuotaExceeded
from penstock.server import metrics
from tests.integration.server.asking import Http
from tests.integration.server.running import RunningServer


def told(http: Http, prefix: str) -> dict[str, float]:
    text = http.get("/metrics").body.decode()
    return {
        name: float(value)
        for name, value in re.findall(rf"^penstock_({prefix}\S*) (\S+)$", text, re.MULTILINE)
    }


def test_events_of_traces_are_counted(
    ps: Any, http: Http, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    zero = {"trace_events_noted_total": 0.0, "trace_events_dropped_total": 0.0}
    assert told(http, "trace_events") == zero
    ps.create_topic("orders", trace_sample=1.0)
    ps.publish("orders", b"x")
    broker.tracer.flush()
    found = told(http, "trace_events")
    assert found["trace_events_noted_total"] >= 1
    assert found["trace_events_dropped_total"] == 0
    monkeypatch.setattr("penstock.broker.tracer.BUFFER_ROWS_MAX", 0)
    ps.publish("orders", b"y")
    after = told(http, "trace_events")
    assert after["trace_events_noted_total"] == found["trace_events_noted_total"]
    assert after["trace_events_dropped_total"] >= 1


def test_what_a_namespace_uses_stands_beside_its_quotas(
    server: RunningServer, ps: Any, http: Http
) -> None:
    ps.create_topic("unlimited")
    assert told(http, "quota") == {}
    ps.set_quotas("shop", topics=2, storage_bytes=1 << 30, message_bytes=100, policy="refuse")
    with penstock.connect(server.url, namespace="shop") as shop:
        shop.create_topic("a")
        shop.create_topic("b")
        with pytest.raises(QuotaExceeded):
            shop.create_topic("c")
    found = told(http, "quota")
    assert found.pop('quota_used{namespace="shop",quota="storage_bytes"}') >= 0
    assert found == {
        'quota_limit{namespace="shop",quota="topics"}': 2,
        'quota_used{namespace="shop",quota="topics"}': 2,
        'quota_limit{namespace="shop",quota="storage_bytes"}': 1 << 30,
        'quota_delayed_answers_total{namespace="shop"}': 0,
        'quota_refused_total{namespace="shop"}': 1,
    }


def test_no_more_namespaces_are_told_of_than_fit(
    ps: Any, http: Http, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics, "NAMESPACES_MAX", 2)
    for name in ("c", "a", "b"):
        ps.set_quotas(name, topics=1)
    assert set(told(http, "quota_limit")) == {
        f'quota_limit{{namespace="{name}",quota="topics"}}' for name in ("a", "b")
    }
