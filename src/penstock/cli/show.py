"""Reports of logs as lines of a table and sentences."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from penstock.cli.output import line_width, write_line
from penstock.cli.units import count, duration, moment, size
from penstock.log.report import Finding, FrameReport, LogReport, SegmentReport, Totals

_COLUMNS = (
    "byte",
    "offsets",
    "rows",
    "time (UTC)",
    "codec",
    "stored",
    "raw",
    "priorities",
    "columns",
    "producer",
    "",
)
_SPARED = ("codec", "raw", "producer", "priorities", "columns")
_INDENT = "    "
_RIGHT = {"byte", "offsets", "rows", "stored", "raw"}
_INDEX = {"none yet": "no index yet", "unknown": "not readable"}


def reports(found: list[LogReport], totals: Totals, *, verify: bool) -> None:
    """All that was found, log by log, and the sum."""
    for report in found:
        if verify:
            _verdict(report)
        else:
            _log(report)
    _totals(totals)
    _conclusion(totals)


def _log(report: LogReport) -> None:
    write_line((report.folder, "bold"), f"  {_range(report)}")
    if report.writer:
        write_line(f"  open for writing in {report.writer}")
    lines = {segment.file: list(_lines(segment)) for segment in report.segments}
    cells = [_COLUMNS, *(cells for shown in lines.values() for cells, _ in shown)]
    layout = _Layout.of([max(len(row[i]) for row in cells) for i in range(len(_COLUMNS))])
    header_is_due = True
    for segment in report.segments:
        write_line("  ", (segment.file, "cyan"), f"  {_facts(segment)}")
        if header_is_due and lines[segment.file]:
            write_line((layout.aligned(_COLUMNS), "dim"))
            header_is_due = False
        for row, style in lines[segment.file]:
            write_line((layout.aligned(row), style))
        _unfinished(segment, report.writer)
        _findings([f for f in segment.findings if f.position is None])
    _findings(report.findings)
    write_line()


def _verdict(report: LogReport) -> None:
    mark = ("damaged  ", "bold red") if report.damage else ("whole    ", "green")
    messages = sum(segment.message_count for segment in report.segments)
    counted = f"{count(messages, 'message')} in {count(len(report.segments), 'segment')}"
    write_line(mark, (report.folder, "bold"), f"  {counted}, {_range(report)}")
    for segment in report.segments:
        _unfinished(segment, report.writer)
    _findings(report.all_findings)


def _range(report: LogReport) -> str:
    text = f"offsets {report.start:,} up to {report.end:,}"
    if report.durable < report.end:
        text += f", durable up to {report.durable:,}"
    return text


def _facts(segment: SegmentReport) -> str:
    facts = [
        size(segment.size_bytes),
        count(segment.frame_count, "frame"),
        count(segment.message_count, "message"),
        _INDEX.get(segment.index, f"index {segment.index}"),
    ]
    return ", ".join(facts)


def _lines(segment: SegmentReport) -> Iterator[tuple[tuple[str, ...], str]]:
    """A line for each frame that is shown and for every damaged place, with its style."""
    places: dict[int, FrameReport | Finding] = {
        f.position: f for f in segment.findings if f.position is not None
    }
    places |= {frame.position: frame for frame in segment.frames}
    hidden = segment.frame_count - len(segment.frames)
    shown_to = segment.frames[-1].position if segment.frames else -1
    for position in sorted(places):
        if hidden and position > shown_to:
            yield _hidden(hidden)
            hidden = 0
        place = places[position]
        yield _frame(place) if isinstance(place, FrameReport) else _damaged(place)
    if hidden and segment.frames:
        yield _hidden(hidden)


def _frame(frame: FrameReport) -> tuple[tuple[str, ...], str]:
    time = moment(frame.first_timestamp_us)
    if frame.last_timestamp_us > frame.first_timestamp_us:
        time += f" +{duration(frame.last_timestamp_us - frame.first_timestamp_us)}"
    producer = f"{frame.producer_id}:{frame.producer_epoch} from {frame.base_sequence}"
    cells = (
        f"{frame.position:,}",
        _offsets(frame.base_offset, frame.base_offset + frame.span),
        f"{frame.rows:,}",
        time if frame.rows else "",
        frame.codec,
        f"{frame.stored_bytes:,}",
        f"{frame.raw_bytes:,}",
        ",".join(frame.priorities),
        ",".join(frame.columns),
        producer if frame.producer_id else "",
        f"damaged: {frame.problem}" if frame.problem else "ok",
    )
    return cells, "red" if frame.problem else ""


def _damaged(place: Finding) -> tuple[tuple[str, ...], str]:
    lost = _offsets(place.first_offset or 0, place.next_offset)
    return (f"{place.position:,}", lost, *[""] * 8, f"damaged: {place.reason}"), "red"


def _hidden(hidden: int) -> tuple[tuple[str, ...], str]:
    return ("...", f"{hidden:,} more", *[""] * 9), "dim"


def _offsets(first: int, after: int | None) -> str:
    """The first and the last offset, both included."""
    if after is None:
        return f"{first:,}-?"
    return f"{first:,}-{after - 1:,}" if after - 1 > first else f"{first:,}"


class _Layout(NamedTuple):
    """How wide the columns are, which are shown, and what is between them."""

    widths: list[int]
    shown: list[int]
    gap: str

    @classmethod
    def of(cls, widths: list[int]) -> _Layout:
        """All that is used; on a narrow terminal closer together, and what can be spared goes."""
        shown = [
            i for i, name in enumerate(_COLUMNS) if name != "producer" or widths[i] > len(name)
        ]
        made, room = cls(widths, shown, "  "), line_width()
        if room is None or made.total <= room:
            return made
        made = cls(widths, shown, " ")
        for name in _SPARED:
            if made.total > room:
                made = made._replace(shown=[i for i in made.shown if _COLUMNS[i] != name])
        return made

    @property
    def total(self) -> int:
        between = len(self.gap) * (len(self.shown) - 1)
        return len(_INDENT) + sum(self.widths[i] for i in self.shown) + between

    def aligned(self, cells: tuple[str, ...]) -> str:
        padded = [
            cells[i].rjust(self.widths[i])
            if _COLUMNS[i] in _RIGHT
            else cells[i].ljust(self.widths[i])
            for i in self.shown
        ]
        return _INDENT + self.gap.join(padded).rstrip()


def _unfinished(segment: SegmentReport, writer: str | None) -> None:
    if not segment.unfinished_bytes:
        return
    what = f"{count(segment.unfinished_bytes, 'byte')} behind the durable mark"
    if writer:
        text = f"{what} are being written"
    else:
        text = f"{what} are no whole frame: left by a crash; the next open cuts them"
    write_line("    ", (f"{segment.file}: {text}", "yellow"))


def _findings(findings: list[Finding]) -> None:
    for finding in findings:
        label = ("damage: ", "bold red") if finding.is_damage else ("note: ", "yellow")
        write_line("    ", label, str(finding))


def _totals(totals: Totals) -> None:
    rows = {
        "logs": f"{totals.logs:,}",
        "segments": f"{totals.segments:,}",
        "frames": f"{totals.frames:,}",
        "messages": f"{totals.messages:,}",
    }
    if totals.first_timestamp_us is not None and totals.last_timestamp_us is not None:
        first, last = totals.first_timestamp_us, totals.last_timestamp_us
        span = f" ({duration(last - first)})" if last > first else ""
        rows["time (UTC)"] = f"{moment(first)} to {moment(last)}{span}"
    rows["on disk"] = size(totals.file_bytes)
    if totals.raw_bytes != totals.stored_bytes:
        stored = f"{size(totals.stored_bytes)} for {size(totals.raw_bytes)}"
        rows["compression"] = f"{stored}, a ratio of {totals.compression_ratio:.2f}"
    for name, text in rows.items():
        write_line((name.ljust(13), "dim"), text)


def _conclusion(totals: Totals) -> None:
    if totals.damage:
        text = f"Damage in {count(totals.damage, 'place')}, named above. Readers skip what is lost."
        write_line((text, "bold red"))
    elif totals.unfinished_bytes:
        write_line(("No damage: everything that is durable is whole.", "green"))
    else:
        write_line(("No damage.", "green"))
