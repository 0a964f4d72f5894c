"""A journal and its checkpoints on a disk that loses power."""

from __future__ import annotations

from random import Random

from penstock.broker.journal import Journal
from penstock.config import LogConfig
from tests.integration.log.image import open_log
from tests.simulation.disk import SimulatedFiles

FOLDER = "/data/journal"
CONFIG = LogConfig(fsync="interval", free_bytes_min=0)
SEEDS = range(10)


def test_a_checkpoint_is_durable_before_what_it_replaces_goes() -> None:
    files = SimulatedFiles()
    journal = Journal(open_log(FOLDER, CONFIG, files))
    for entry in (b"one", b"two"):
        journal.append(entry)
    journal.log.sync()
    marked = journal.mark(b"all of it")
    journal.log.committer.run_due()  # what is sealed is synced, and only that
    left: list[SimulatedFiles] = []
    files.before_operation = lambda kind, path: left.extend(
        files.crash(Random(seed)) for seed in SEEDS
    )

    journal.drop_before(marked)
    files.before_operation = None
    left += [files.crash(Random(seed)) for seed in SEEDS]

    whole = [b"one", b"two"]
    outcomes = {tuple(Journal(open_log(FOLDER, CONFIG, each)).entries()) for each in left}
    assert outcomes <= {tuple(whole), (*whole, b"all of it"), (b"all of it",)}
    assert (b"all of it",) in outcomes
