"""The shop on a terminal as a live table, elsewhere as plain lines."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Protocol, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import render
from rich.panel import Panel
from rich.table import Table
from rich.text import Text
from shop import PRIORITIES
from shop_records import Records

COLORS = ("red", "yellow", "cyan", "blue", "bright_black")
NEWS = 9
WIDTH = 98
BAR = 14


class Screen(Protocol):
    def show(self, stage: str, process: str) -> None: ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...


def screen_for(console: Console, records: Records) -> Screen:
    return LiveScreen(console, records) if console.is_terminal else PlainScreen(console, records)


class LiveScreen:
    """Fits a terminal of 100 x 30."""

    def __init__(self, console: Console, records: Records) -> None:
        self._records = records
        self._live = Live(console=console, auto_refresh=False, vertical_overflow="crop")

    def show(self, stage: str, process: str) -> None:
        self._live.update(self._draw(stage, process), refresh=True)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._live.stop()

    def _draw(self, stage: str, process: str) -> RenderableType:
        passed = f"{time.time() - self._records.began:.1f} s"
        title = Table.grid(expand=True)
        title.add_column()
        title.add_column(justify="right")
        title.add_row(f"[bold]Penstock[/]  {stage}", f"[dim]{process}[/]  {passed}")
        upper = Table.grid(padding=(0, 1, 0, 0))
        upper.add_row(self._lanes(), self._topic())
        body = Group(title, upper, self._tills(), self._news())
        frame = Table.grid()
        frame.add_column(width=WIDTH)
        frame.add_row(body)
        return frame

    def _lanes(self) -> Panel:
        records, stats = self._records, self._records.stats
        table = Table(box=None, padding=(0, 1), header_style="dim")
        table.add_column("lane", min_width=10)
        table.add_column("waiting", min_width=BAR)
        for name in ("", "held", "retry", "acked"):
            table.add_column(name, justify="right", min_width=4)
        for lane, name in enumerate(PRIORITIES):
            waiting, held, retrying = (
                stats[column][lane] if stats else 0
                for column in ("waiting", "in_flight", "retrying")
            )
            table.add_row(
                f"[{COLORS[lane]}]{name}[/]",
                _bar(waiting, COLORS[lane]),
                str(waiting) if stats else "",
                str(held or ""),
                f"[yellow]{retrying or ''}[/]",
                f"{records.acked_by_priority[lane]:,}",
            )
        return Panel(table, title="orders by priority", title_align="left", width=58, height=8)

    def _topic(self) -> Panel:
        records, stats = self._records, self._records.stats
        table = Table.grid(padding=(0, 2, 0, 0))
        table.add_column(style="dim")
        table.add_column(justify="right", min_width=6)
        table.add_column(style="dim")
        if stats:
            due_s = max(0.0, (stats["next_due_us"] or 0) / 1e6 - time.time())
            next_due = f"next in {due_s:.1f} s" if stats["delayed"] else ""
            oldest_s = f"oldest {stats['oldest_us'] / 1e6:.1f} s" if stats["oldest_us"] else ""
            audited = records.audited[-1].values() if records.audited else ()
            read = sum(next_ for _, next_ in audited)
            table.add_row("orders taken", f"{len(records.published):,}", "")
            table.add_row("stored", f"{stats['stored']:,}", oldest_s)
            table.add_row("acked", f"{stats['acks_per_second']:.0f}/s", "over 10 s")
            table.add_row("delayed", f"[magenta]{stats['delayed']}[/]", next_due)
            table.add_row("dead letters", f"[red]{stats['dead']}[/]", "")
            table.add_row("auditor", f"{read:,}", f"{max(0, stats['stored'] - read)} behind")
        return Panel(table, title="topic", title_align="left", width=39, height=8)

    def _tills(self) -> Panel:
        table = Table.grid(padding=(0, 2, 0, 0))
        for name, doing in self._records.tills.items():
            table.add_row(f"[dim]{name}[/]", doing)
        return Panel(table, title="group tills", title_align="left", width=WIDTH, height=7)

    def _news(self) -> Panel:
        lines = [render(line) for line in list(self._records.news)[-NEWS:]]
        text = Text("\n", no_wrap=True, overflow="ellipsis").join(lines)
        return Panel(text, title="what happened", title_align="left", width=WIDTH, height=NEWS + 2)


class PlainScreen:
    """What happened, as it happens, and how it stands once a second."""

    def __init__(self, console: Console, records: Records) -> None:
        self._console = console
        self._records = records
        self._told_at = 0.0

    def show(self, stage: str, process: str) -> None:
        records, stats = self._records, self._records.stats
        while records.news:
            self._console.print(render(records.news.popleft()).plain, markup=False)
        if stats and time.time() - self._told_at >= 1:
            self._told_at = time.time()
            self._console.print(
                f"{time.time() - records.began:5.1f} s  {render(stage).plain}: "
                f"{sum(stats['waiting'])} waiting, {sum(stats['in_flight'])} in hand, "
                f"{sum(stats['retrying'])} retrying, {stats['delayed']} delayed, "
                f"{stats['dead']} dead, {sum(records.acked_by_priority)} acked",
                markup=False,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        pass


def _bar(count: int, color: str) -> Text:
    """A cell for every 25 messages, as far as there is room."""
    cells, rest = divmod(count, 25)
    if cells >= BAR:
        return Text("█" * BAR, style=color)
    return Text("█" * cells + (" ▏▎▍▌▋▊▉"[rest * 8 // 25] if rest else ""), style=color)
