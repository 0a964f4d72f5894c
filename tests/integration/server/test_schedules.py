"""Schedules over HTTP, as any client sees them."""

from __future__ import annotations

import re

import pytest

from tests.integration.server.asking import Http


@pytest.fixture
def jobs(http: Http) -> Http:
    assert http.ask("PUT", "/v1/topics/jobs").status == 201
    return http


def test_a_schedule_goes_round(jobs: Http) -> None:
    asked = {
        "topic": "jobs",
        "value": {"report": 1},
        "key_base64": "/w==",
        "headers": {"a": "1"},
        "priority": "high",
        "cron": "30 2 * * *",
        "timezone": "Europe/Berlin",
        "jitter": "1m",
    }
    made = jobs.ask("PUT", "/v1/schedules/nightly", asked)
    assert made.status == 200
    assert made.json["value"] == '{"report":1}'
    assert made.json["headers"] == {"a": "1", "content-type": "application/json"}
    assert (made.json["key_base64"], made.json["jitter"]) == ("/w==", "1m")
    assert len(made.json["next_us"]) == 10
    assert jobs.get("/v1/schedules/nightly").json == made.json
    listed = jobs.get("/v1/schedules").json
    assert [each["name"] for each in listed["schedules"]] == ["nightly"]
    fire = jobs.post("/v1/schedules/nightly/trigger").json
    (message,) = jobs.post("/v1/topics/jobs/groups/g/receive").json["messages"]
    assert (message["id"], message["value"]) == (fire["id"], '{"report":1}')
    assert jobs.post("/v1/schedules/nightly/pause").json["paused"] is True
    assert jobs.ask("DELETE", "/v1/schedules/nightly").json == {"found": True}
    assert jobs.ask("DELETE", "/v1/schedules/nightly").json == {"found": False}


def test_pages_and_namespaces(jobs: Http) -> None:
    for name in ("a", "b", "c"):
        jobs.ask("PUT", f"/v1/schedules/{name}", {"topic": "jobs", "every": 3600})
    page = jobs.get("/v1/schedules?limit=2").json
    assert ([each["name"] for each in page["schedules"]], page["next"]) == (["a", "b"], "b")
    page = jobs.get("/v1/schedules?limit=2&after=b").json
    assert ([each["name"] for each in page["schedules"]], page["next"]) == (["c"], None)
    assert jobs.get("/v1/namespaces/shop/schedules").json["schedules"] == []


@pytest.mark.parametrize(
    ("method", "path", "body", "code"),
    [
        ("GET", "/v1/schedules/none", None, "schedule_not_found"),
        ("POST", "/v1/schedules/none/trigger", {}, "schedule_not_found"),
        ("PUT", "/v1/schedules/x", {"topic": "jobs"}, "invalid_input"),
        ("PUT", "/v1/schedules/x", {"topic": "jobs", "cron": "0 0 30 2 *"}, "invalid_input"),
        ("PUT", "/v1/schedules/x", {"topic": "jobs", "every": "1h", "no": 1}, "invalid_input"),
        ("PUT", "/v1/schedules/x", {"topic": "none", "every": "1h"}, "topic_not_found"),
        ("PUT", "/v1/schedules/%20", {"topic": "jobs", "every": "1h"}, "invalid_input"),
        (
            "PUT",
            "/v1/schedules/x",
            {"topic": "jobs", "every": "1h", "value_base64": "?"},
            "invalid_input",
        ),
    ],
)
def test_what_is_wrong_has_a_code(
    method: str, path: str, body: object, code: str, jobs: Http
) -> None:
    assert jobs.ask(method, path, body).code == code


def test_fires_are_counted_for_prometheus(jobs: Http) -> None:
    jobs.ask("PUT", "/v1/schedules/s", {"topic": "jobs", "every": "1h", "paused": True})
    jobs.post("/v1/schedules/s/trigger")
    text = jobs.get("/metrics").body.decode()
    found = dict(re.findall(r"^(penstock_schedule\w*) (\S+)$", text, re.MULTILINE))
    assert found == {
        "penstock_schedules": "1.0",
        "penstock_schedules_paused": "1.0",
        "penstock_schedule_fires_total": "1.0",
        "penstock_schedule_fires_late_total": "0.0",
        "penstock_schedule_fires_failed_total": "0.0",
        "penstock_schedule_fires_skipped_total": "0.0",
    }


def test_a_value_that_is_nested_too_deep_is_refused(jobs: Http) -> None:
    for deep in (b"[" * 100_000, b"[" * 2_000 + b"]" * 2_000):
        body = b'{"topic":"jobs","every":"1h","value":' + deep + b"}"
        assert jobs.ask("PUT", "/v1/schedules/deep", body).code == "invalid_input"
