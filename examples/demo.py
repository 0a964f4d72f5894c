"""An embedded queue at work, in about twenty seconds: `make demo`.

A shop (`shop.py`) sells orders with priorities, retries, delays and dead letters. In the middle of
it all its process is killed, with the broker inside, and another one goes on in the same folder.
Every number is counted while you watch, and compared at the end. `--keep some/folder` leaves the
data there to be looked at; `--quick` sells a quarter of the orders.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from shop import QUICK, Plan
from shop_records import Records
from shop_screen import Screen, screen_for

import penstock

SHOP = Path(__file__).with_name("shop.py")
SENT_AGAIN = 20


class Demo:
    def __init__(self, folder: Path, console: Console, quick: bool) -> None:
        self.folder = folder
        self.console = console
        self.options = ["--quick"] if quick else []
        self.kill_after_s = 2.0 if quick else 6.0
        self.records = Records(QUICK if quick else Plan())

    def run(self) -> bool:
        """The whole story; whether everything was as it has to be."""
        with screen_for(self.console, self.records) as screen:
            self.first_life(screen)
            self.show_for(screen, 1.5, "[bold red]killed[/]", "no process")
            self.second_life(screen)
        return self.summary()

    def first_life(self, screen: Screen) -> None:
        with self.shop() as shop:
            while not self.ripe():
                self.check(shop)
                stage = "selling" if self.records.life else "opening"
                self.show_for(screen, 0.1, stage, f"process {shop.pid}")
            shop.send_signal(signal.SIGKILL)
        self.records.killed()

    def second_life(self, screen: Screen) -> None:
        resume_at = max(self.records.published) + 1 - SENT_AGAIN
        with self.shop("--resume-at", str(resume_at)) as shop:
            while not self.records.closed:
                self.check(shop)
                stage = "triage" if self.records.letters else "selling, after the kill"
                if self.records.life < 2:
                    stage = "opening again"
                self.show_for(screen, 0.1, stage, f"process {shop.pid}")
            shop.wait()
        screen.show("[bold green]closed[/]", "no process")

    def ripe(self) -> bool:
        """There is something to lose: orders in hand, waiting and to come, and dead letters."""
        stats, open_s = self.records.stats, time.time() - self.records.opened_at
        if not stats or open_s < self.kill_after_s:
            return False
        held, waiting = sum(stats["in_flight"]), sum(stats["waiting"])
        return all((held, waiting, stats["delayed"], stats["dead"])) or open_s > 20

    def summary(self) -> bool:
        with penstock.connect(self.folder) as ps:
            stats = ps.stats("orders")
        ends = {p.partition: p.end for p in stats.partitions}
        left = stats.depth + stats.in_flight + stats.delayed + stats.dead
        good = True
        self.console.print(
            "\n[bold]Summary[/], counted from what the shop told and what is on disk"
        )
        for check in self.records.checks(stats.messages, ends, left):
            good &= check.good
            mark = "[green]yes[/]" if check.good else "[bold red]NO [/]"
            self.console.print(f"   {mark}  {check.what:<32} [dim]{check.figures}[/]")
        return good

    @contextmanager
    def shop(self, *options: str) -> Iterator[subprocess.Popen[str]]:
        """The shop's process; what it tells is noted, to the last whole line."""
        command = [sys.executable, str(SHOP), str(self.folder), *self.options, *options]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as shop:
            reader = threading.Thread(target=self.listen, args=(shop,))
            reader.start()
            try:
                yield shop
            finally:
                shop.kill()
                reader.join()

    def listen(self, shop: subprocess.Popen[str]) -> None:
        assert shop.stdout is not None
        for line in shop.stdout:
            if line.endswith("\n"):  # not one that the kill has cut
                self.records.note(line)

    def check(self, shop: subprocess.Popen[str]) -> None:
        code = shop.poll()
        if code is not None and not self.records.closed:
            sys.exit(f"the shop ended by itself, with exit code {code}")

    def show_for(self, screen: Screen, seconds: float, stage: str, process: str) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            screen.show(stage, process)
            time.sleep(0.1)


NEXT = """
[bold]Where to look next[/]
   examples/shop.py           the program that you have seen; it is an ordinary one
   docs/start.md              the first ten minutes with a queue of your own
   docs/concepts.md           what the words mean, and what is promised
   examples/log_demo.py       the log underneath: group commit, kill -9, a flipped bit
   make bench, make torture   figures beside other queues; crashes by the thousand"""


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    options.add_argument("--keep", type=Path, help="leave the data in this folder")
    options.add_argument("--quick", action="store_true", help="a quarter of the orders")
    given = options.parse_args()
    console = Console(highlight=False, soft_wrap=True)
    began = time.monotonic()
    try:
        with folder_for(given.keep) as folder:
            good = Demo(folder, console, given.quick).run()
    except KeyboardInterrupt:
        sys.exit(130)
    console.print(NEXT)
    if given.keep:
        console.print(
            f"   {os.path.relpath(os.path.dirname(sys.executable))}/penstock inspect {given.keep}"
            "   what lies in the data folder",
            markup=False,
        )
    console.print(f"\n[green]Done in {time.monotonic() - began:.1f} s.[/]")
    sys.exit(0 if good else "Something was not as it has to be: see the lines with NO.")


@contextmanager
def folder_for(keep: Path | None) -> Iterator[Path]:
    if keep:
        if keep.exists() and any(os.scandir(keep)):
            sys.exit(f"{keep} is not empty; give --keep a new folder")
        yield keep
        return
    with tempfile.TemporaryDirectory(prefix="penstock-demo-") as folder:
        yield Path(folder)


if __name__ == "__main__":
    main()
