"""What a look into a log's files brought, as plain structs: to be shown, counted, or JSON."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from penstock.record.frame import FrameHeader


class Finding(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Something that is not as a clean close leaves it."""

    file: str
    reason: str
    is_damage: bool = True
    """False for what the next open puts in order without a loss."""

    position: int | None = None
    first_offset: int | None = None
    next_offset: int | None = None

    def __str__(self) -> str:
        where = self.file if self.position is None else f"{self.file} at byte {self.position:,}"
        if self.first_offset is None:
            return f"{where}: {self.reason}"
        upto = f" up to {self.next_offset:,}" if self.next_offset is not None else " and beyond"
        return f"{where}: offsets {self.first_offset:,}{upto} are lost: {self.reason}"


class FrameReport(msgspec.Struct, kw_only=True):
    """One frame, as its header describes it."""

    position: int
    base_offset: int
    span: int
    rows: int
    first_timestamp_us: int
    last_timestamp_us: int
    codec: str
    frame_bytes: int
    stored_bytes: int
    raw_bytes: int
    priorities: list[str]
    columns: list[str]
    producer_id: int
    producer_epoch: int
    base_sequence: int
    term: int
    ulid: str
    crc: int
    problem: str | None = None


class SegmentReport(msgspec.Struct, kw_only=True):
    """One segment file."""

    file: str
    base_offset: int
    next_offset: int
    generation: int
    size_bytes: int
    is_last: bool
    index: str = ""
    """`ok`, `none yet` (made when the segment is sealed), `missing`, `damaged` or `wrong`."""

    frame_count: int = 0
    message_count: int = 0
    """Without those that were trimmed."""

    stored_bytes: int = 0
    """Bodies as they lie in the file; without headers, padding and damage."""

    raw_bytes: int = 0
    first_timestamp_us: int | None = None
    last_timestamp_us: int | None = None
    unfinished_bytes: int = 0
    """At the end, behind what is durable, and no whole frame."""

    frames: list[FrameReport] = []
    findings: list[Finding] = []

    @property
    def torn(self) -> Finding | None:
        """Damage after which no frame follows, as long as nobody knows how much is lost by it."""
        for finding in self.findings:
            if finding.first_offset is not None and finding.next_offset is None:
                return finding
        return None

    def count(self, header: FrameHeader, messages: int) -> None:
        """Take note of a whole frame."""
        self.frame_count += 1
        self.message_count += messages
        self.stored_bytes += header.stored_bytes
        self.raw_bytes += header.raw_bytes
        self.next_offset = header.next_offset
        if header.row_count:
            first, last = header.first_timestamp, header.last_timestamp
            self.first_timestamp_us = _least(self.first_timestamp_us, first)
            self.last_timestamp_us = max(self.last_timestamp_us or last, last)


class LogReport(msgspec.Struct, kw_only=True):
    """One log: its marks, its segments, and what is wrong between them."""

    folder: str
    start: int = 0
    end: int = 0
    durable: int = 0
    """What is known to be durable: by the mark, and by the indexes of sealed segments."""

    start_mark: int | None = None
    durable_mark: int | None = None
    writer: str | None = None
    """The process that has the log open, as far as can be seen from here."""

    segments: list[SegmentReport] = []
    findings: list[Finding] = []

    @property
    def all_findings(self) -> list[Finding]:
        within = [finding for segment in self.segments for finding in segment.findings]
        return within + self.findings

    @property
    def damage(self) -> list[Finding]:
        return [finding for finding in self.all_findings if finding.is_damage]

    @property
    def notes(self) -> list[Finding]:
        return [finding for finding in self.all_findings if not finding.is_damage]


class Totals(msgspec.Struct, kw_only=True):
    """All logs together."""

    logs: int = 0
    segments: int = 0
    frames: int = 0
    messages: int = 0
    file_bytes: int = 0
    stored_bytes: int = 0
    raw_bytes: int = 0
    unfinished_bytes: int = 0
    first_timestamp_us: int | None = None
    last_timestamp_us: int | None = None
    damage: int = 0
    notes: int = 0

    @property
    def compression_ratio(self) -> float:
        """How many times larger the bodies are when decompressed."""
        return self.raw_bytes / self.stored_bytes if self.stored_bytes else 1.0

    @classmethod
    def of(cls, reports: Iterable[LogReport]) -> Totals:
        totals = cls()
        for report in reports:
            totals.logs += 1
            totals.damage += len(report.damage)
            totals.notes += len(report.notes)
            for segment in report.segments:
                totals.segments += 1
                totals.frames += segment.frame_count
                totals.messages += segment.message_count
                totals.file_bytes += segment.size_bytes
                totals.stored_bytes += segment.stored_bytes
                totals.raw_bytes += segment.raw_bytes
                totals.unfinished_bytes += segment.unfinished_bytes
                if segment.first_timestamp_us is not None:
                    first, last = segment.first_timestamp_us, segment.last_timestamp_us or 0
                    totals.first_timestamp_us = _least(totals.first_timestamp_us, first)
                    totals.last_timestamp_us = max(totals.last_timestamp_us or last, last)
        return totals


def _least(so_far: int | None, number: int) -> int:
    return number if so_far is None else min(so_far, number)
