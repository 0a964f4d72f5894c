"""`@app.schedule`: functions that are called at each fire, in a test and at work."""

from __future__ import annotations

import pytest

import penstock
from penstock.errors import InvalidInput
from tests.integration.worker.conftest import Place, Working, until


def test_a_scheduled_function_is_called_at_each_fire_of_the_manual_clock() -> None:
    app = penstock.App()
    called: list[str] = []

    @app.schedule("nightly", cron="30 2 * * *", timezone="Europe/Berlin")
    async def report() -> None:
        called.append("report")

    @app.schedule("Poll", every="20m")
    def poll(delivery: penstock.Delivery) -> None:
        moment = delivery.headers["penstock-scheduled-for"]
        assert moment is not None
        called.append(moment.decode()[11:16])

    with app.test() as bench:  # whose clock begins at 22:13:20 UTC, an hour later in Berlin
        assert bench.run() == []
        handled = bench.run(within="1h")
        assert [each.verdict for each in handled] == ["acked"] * 3
        assert bench.ps.stats("schedules.Poll").messages == 3
        assert called == ["22:33", "22:53", "23:13"]
        bench.pass_time("3h")
        bench.run()
        assert called.count("report") == 1
        assert [each.name for each in bench.ps.schedules()] == ["Poll", "nightly"]


def test_a_scheduled_function_that_fails_is_tried_again() -> None:
    app = penstock.App()

    @app.schedule("flaky", every="1h", retries=1, backoff=("1s", 1.0, "1s"), overlap="skip")
    def flaky() -> None:
        raise RuntimeError("not today")

    with app.test() as bench:
        bench.pass_time("1h")
        assert [each.verdict for each in bench.run(within="1m")] == ["retried", "given_up"]
        assert [each.reason for each in bench.dead_letters("schedules.flaky")] == ["max_retries"]
        assert bench.ps.describe_schedule("flaky").group == "flaky"


def test_names_and_timings_are_checked() -> None:
    app = penstock.App()
    app.schedule("a", every="1h")(lambda: None)
    with pytest.raises(InvalidInput, match="already"):
        app.schedule("a", every="2h")
    with pytest.raises(InvalidInput, match="schedule name"):
        app.schedule("no name", every="2h")
    app.schedule("b", cron="no line")(lambda: None)
    with pytest.raises(InvalidInput, match="cron"):
        app.test()


def test_an_app_at_work_makes_its_schedules_and_handles_their_fires(place: Place) -> None:
    app = place.app()
    called: list[str] = []

    @app.schedule("tick", every="50ms", topic="ticks")
    async def tick() -> None:
        called.append("tick")

    with Working(app):
        until(lambda: len(called) >= 3)
    with place.connect() as ps:
        described = ps.describe_schedule("tick")
        assert (described.topic, described.every) == ("ticks", "50ms")
        assert described.fired >= 3
        ps.pause_schedule("tick")
    with Working(app), place.connect() as ps:
        until(lambda: ps.describe_schedule("tick").paused)  # to start again does not resume
