"""`penstock schedule` on a folder and on a server."""

from __future__ import annotations

from tests.integration.cli.shell import Shell


def test_a_schedule_is_put_listed_triggered_paused_and_deleted(sh: Shell) -> None:
    sh("topic", "create", "jobs")
    shown = sh(
        *("schedule", "put", "nightly", "--topic", "jobs", "--value", "report", "--key", "k"),
        *("--cron", "30 2 * * *", "--timezone", "Europe/Berlin", "--header", "a=1"),
    ).lines
    assert shown[2].split(maxsplit=1) == ["when", "30 2 * * *"]
    head = next(number for number, line in enumerate(shown) if line.startswith("next (UTC)"))
    assert len(shown[head + 1 :]) == 10
    assert " 02:30:00 +0" in shown[head + 1]
    fire = sh("schedule", "trigger", "nightly", "--json").json["fire"]
    assert (fire["number"], fire["kind"]) == (1, "triggered")
    assert b"report" in sh("consume", "jobs", "-g", "g", "--max", "1").out
    assert sh("schedule", "pause", "nightly", "--json").json["paused"]
    row = sh("schedule", "list").lines[1].split()
    assert (row[0], row[-1]) == ("nightly", "paused")
    assert not sh("schedule", "resume", "nightly", "--json").json.get("paused", False)
    described = sh("schedule", "describe", "nightly").lines
    assert described[-1].split()[-1] == fire["id"]
    sh("schedule", "delete", "nightly", "--yes")
    sh("schedule", "delete", "nightly", "--yes", code=1)
    assert "`penstock schedule list` shows" in sh("schedule", "describe", "nightly", code=3).err


def test_a_backfill_and_what_is_typed_wrongly(folder: Shell) -> None:
    folder("topic", "create", "jobs")
    folder("schedule", "put", "hourly", "--topic", "jobs", "--cron", "@hourly")
    done = folder(
        *("schedule", "backfill", "hourly", "2024-05-01T00:00:00Z", "2024-05-01T05:00:00Z"),
        *("--yes", "--json"),
    )
    assert done.json["fired"] == 6
    folder("schedule", "put", "bad", "--topic", "jobs", "--every", "1h", "--overlap", "no", code=2)
    folder("schedule", "put", "bad", "--topic", "jobs", "--cron", "* *", code=2)
    folder("schedule", "put", "bad", "--topic", "nowhere", "--every", "1h", code=3)
