"""The frames of a segment fit a terminal, whatever is in them."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.cli import show
from penstock.log.inspect import inspect_log
from penstock.log.local import LocalLog
from penstock.log.report import Totals
from penstock.record.batch import Batch


@pytest.mark.parametrize("width", [60, 80, None])
def test_frames_fit_the_terminal_and_what_can_be_spared_goes_first(
    width: int | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with LocalLog.open(tmp_path / "log") as log:
        for size in (1, 20, 3000):
            rows = [b"x" * size] * 100
            headers = [{"source": "shop"}] * 100
            priorities = ["high", "low"] * 50
            log.append(Batch.build(rows, keys=rows, headers=headers, priority=priorities))
    monkeypatch.setattr(show, "line_width", lambda: width)
    found = [inspect_log(tmp_path / "log")]
    show.reports(found, Totals.of(found), verify=False)
    lines = capsys.readouterr().out.splitlines()
    head = next(line for line in lines if "offsets" in line and "byte" in line)
    frames = [line for line in lines if line.endswith(" ok")]
    assert len(frames) == 3
    assert head.split()[:3] == ["byte", "offsets", "rows"]
    assert ("codec" in head) == (width is None)
    if width is not None:
        assert max(map(len, [head, *frames])) <= width
