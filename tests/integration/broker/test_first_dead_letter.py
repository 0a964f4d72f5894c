"""The first dead letter makes its topic. Whoever asks at that moment is told there are none."""

from __future__ import annotations

from pathlib import Path

from tests.integration.broker.world import QuickFiles, World


class Curious(QuickFiles):
    """A disk on which somebody asks for the statistics whenever a folder is made."""

    world: World | None = None
    asked = 0

    def make_folder(self, folder: str) -> None:
        super().make_folder(folder)
        if self.world and ".dlq" in folder:
            self.asked += 1
            assert self.world.ps.stats("orders").dead == 0
            assert list(self.world.ps.dead_letters("orders")) == []


def test_statistics_can_be_asked_for_while_the_dead_letter_topic_is_being_made(
    tmp_path: Path,
) -> None:
    files = Curious()
    world = World(tmp_path / "data", files=files)
    world.ps.create_topic("orders")
    world.ps.publish("orders", b"x")
    (message,) = world.ps.receive("orders", "g")
    files.world = world
    message.reject("why not")
    assert files.asked
    assert world.ps.stats("orders").dead == 1
    world.close_all()
