"""Requests made up from the OpenAPI description: no server error, and answers as described."""

from __future__ import annotations

import os
from typing import Any

import hypothesis
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from penstock.broker.broker import Broker
from penstock.model.names import topic_name
from tests.integration.server.running import RunningServer

CHECKED = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]


def try_everything(server: RunningServer, examples: int, seed: int) -> int:
    """Some requests to every operation; how many there were."""
    schema = schemathesis.openapi.from_url(f"{server.url}/openapi.json")
    asked: list[str] = []
    for found in schema.get_all_operations():
        operation = found.ok()
        # In namespaces there are the same handlers, with the same parameters and one more.
        if "{namespace}" not in operation.path:
            limits = settings(
                max_examples=examples,
                deadline=None,
                database=None,
                suppress_health_check=list(HealthCheck),
            )
            hypothesis.seed(seed)(limits(trial(operation, asked)))()
    return len(asked)


def trial(operation: Any, asked: list[str]) -> Any:
    @given(st.data())
    def ask(data: Any) -> None:
        case = data.draw(operation.as_strategy())
        if data.draw(st.booleans()):
            # Mostly names that exist, or nearly everything would end at "no such topic".
            known = {"topic": "orders", "group": "g", "partition": 0}
            for name in (case.path_parameters or {}).keys() & known.keys():
                case.path_parameters[name] = known[name]
        if isinstance(case.body, dict) and "wait" in case.body:
            case.body["wait"] = 0
        answer = case.call(timeout=30)
        case.validate_response(answer, checks=CHECKED)
        asked.append(operation.path)

    return ask


@pytest.fixture
def busy(broker: Broker) -> Broker:
    """Something of everything."""
    from penstock.broker.api import Api
    from penstock.client.client import Client
    from penstock.client.local_link import LocalLink

    broker.create_topic(topic_name("orders"), {"partitions": 2})
    ps = Client(LocalLink(Api(broker)), "default")
    ps.publish_batch("orders", [b"%d" % n for n in range(50)])
    ps.publish("orders", b"\xff", key=b"\xfe", headers={"h": b"\xfd"}, partition=0)
    ps.publish("orders", b"late", delay="1h")
    for message in ps.receive("orders", "g", 20, visibility="1h"):
        message.reject("no good")
    with ps.stream("orders", "g") as stream:
        stream.next(0)
    return broker


def test_no_request_that_fits_the_description_breaks_the_server(busy: Broker) -> None:
    with RunningServer(busy) as server:
        assert try_everything(server, examples=4, seed=7) > 100


@pytest.mark.torture
def test_no_request_breaks_the_server_however_many(busy: Broker) -> None:
    seed = int.from_bytes(os.urandom(4), "big")
    print("seed", seed)
    with RunningServer(busy) as server:
        print(try_everything(server, examples=300, seed=seed), "requests")
