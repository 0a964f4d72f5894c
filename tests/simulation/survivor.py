"""What a crash left is opened, held against what was promised, and used again."""

from __future__ import annotations

from random import Random

from penstock.clock import ManualClock
from penstock.config import LogConfig
from penstock.log.commit import ManualCommitter
from penstock.log.local import LocalLog
from tests.simulation.disk import SimulatedFiles
from tests.simulation.life import FOLDER, batch_of
from tests.simulation.model import LogModel, Sent

_RECOVERY_OPERATIONS = 12  # about what a recovery does to the disk, to crash again within it


def check_survivor(
    files: SimulatedFiles,
    model: LogModel,
    config: LogConfig,
    rng: Random,
    *,
    promised_end: int,
    crashes_more: int = 1,
) -> None:
    """Open the disk that a crash left and check all that is promised there.

    The recovery itself is crashed as well, at one boundary, and so is the log that it brought
    back after it was appended to: `crashes_more` says how deep that goes.
    """
    model = model.copy()
    second = _SecondCrash(files, rng) if crashes_more else None
    clock = ManualClock()
    committer = ManualCommitter(clock)
    log = LocalLog.open(FOLDER, config, files=files, clock=clock, committer=committer)
    files.before_operation = None
    found = model.check(log, promised_end)
    if second and second.left:
        check_survivor(
            second.left,
            model,
            config,
            rng,
            promised_end=model.durable_end if second.power_cut else promised_end,
            crashes_more=crashes_more - 1,
        )
    model.reopened(log, found)
    if crashes_more:
        # What the log shows now is all durable: it has recovered.
        check_survivor(
            files.crash(rng),
            model,
            config,
            rng,
            promised_end=model.durable_end,
            crashes_more=0,
        )
    _go_on(log, model, clock)


def _go_on(log: LocalLog, model: LogModel, clock: ManualClock) -> None:
    """A log that came back takes messages and gives them."""
    now_us = clock.wall_ns() // 1000
    rows = [Sent(b"after %d" % log.end, None, (), 2, now_us, None)]
    model.before_append(log.end, rows)
    appended = log.append(batch_of(rows, now_us))
    model.appended(appended.next_offset)
    log.sync()
    model.check(log, model.written_end)
    log.close()


class _SecondCrash:
    """Takes a copy of the disk somewhere within a recovery, as another crash would leave it."""

    def __init__(self, files: SimulatedFiles, rng: Random) -> None:
        self.left: SimulatedFiles | None = None
        self.power_cut = rng.random() < 0.7
        self._files = files
        self._rng = rng
        self._wait = rng.randrange(_RECOVERY_OPERATIONS)
        files.before_operation = self._boundary

    def _boundary(self, kind: str, path: str) -> None:
        if self._wait == 0:
            self.left = self._files.crash(self._rng) if self.power_cut else self._files.kill()
        self._wait -= 1
