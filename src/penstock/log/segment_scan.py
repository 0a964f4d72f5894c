"""One pass over the frames of a segment, to tell of each and of what is wrong with it."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress

import msgspec

from penstock.errors import FrameError
from penstock.log.files import FileSystem
from penstock.log.index import IndexDamaged
from penstock.log.index_check import FrameNotes
from penstock.log.report import Finding, FrameReport, SegmentReport
from penstock.log.segment import Broken, Segment, ValidFrame, load_index, walk
from penstock.log.segment_header import decode_header
from penstock.record.batch import Batch
from penstock.record.frame import CODECS, FrameHeader, decode_rows
from penstock.record.salt import UNKNOWN
from penstock.record.schema import BITS, Priority, schema_of, ulid_text

OnBytes = Callable[[int], object]
"""Told how many more bytes have been looked at, for long work to show its progress."""

_TELL_BYTES = 4 << 20


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """How closely to look."""

    deep: bool = False
    """Decode every frame, too: finds what a right checksum hides."""

    frames_max: int | None = None
    """Frames to report one by one, in each segment. All are looked at, whatever this is."""


class SegmentScan:
    """One pass; a new one for each segment."""

    def __init__(self, files: FileSystem, options: Options, on_bytes: OnBytes) -> None:
        self.files = files
        self.options = options
        self.on_bytes = on_bytes
        self.notes = FrameNotes()

    def run(
        self, segment: Segment, data: memoryview, *, start: int, durable: int, is_last: bool
    ) -> SegmentReport:
        """Walk through the bytes of a segment, up to where they are not durable and no frame."""
        self.seen = _empty_report(segment, len(data), is_last=is_last)
        # A compacted segment was synced before it got its name: none of it can be unfinished.
        durable = durable if not segment.generation else 1 << 63
        self._read_salt(segment, data)
        told = 0
        for item in walk(data, segment.salt, segment.base_offset):
            if isinstance(item, ValidFrame):
                self._found(item, data, start)
            elif item.first_offset >= durable:
                self.seen.unfinished_bytes = len(data) - item.position
                break
            else:
                self._broken(item)
            if item.position - told >= _TELL_BYTES:
                self.on_bytes(item.position - told)
                told = item.position
        self.on_bytes(len(data) - told)
        self._check_index(segment)
        return self.seen

    def _read_salt(self, segment: Segment, data: memoryview) -> None:
        header = decode_header(data, segment.path)
        with suppress(IndexDamaged):
            segment.salt = load_index(self.files, segment)[0].salt
        if header is not None:
            segment.salt = header.salt
            if not header.is_whole:
                self._header_finding("one of the two copies of its header is damaged")
        elif segment.salt is not UNKNOWN:
            self._header_finding("its header is damaged; its index tells what is needed of it")

    def _header_finding(self, reason: str) -> None:
        self.seen.findings.append(Finding(file=self.seen.file, reason=reason, position=0))

    def _found(self, item: ValidFrame, data: memoryview, start: int) -> None:
        header, seen = item.header, self.seen
        self.notes.add(item.position, header)
        problem: str | None = None
        batch: Batch | None = None
        if self.options.deep or header.base_offset < start:
            try:
                batch = decode_rows(data, item.position, header)
            except FrameError as exc:
                problem = exc.reason
                self._lost(item.position, header.base_offset, header.next_offset, problem)
        frames_max = self.options.frames_max
        if frames_max is None or seen.frame_count < frames_max:
            seen.frames.append(_frame_report(item.position, header, problem))
        seen.count(header, _rows_from(start, header, batch))

    def _broken(self, item: Broken) -> None:
        self._lost(item.position, item.first_offset, item.next_offset, item.reason)
        if item.next_offset is not None:
            self.seen.next_offset = item.next_offset

    def _lost(self, position: int, first: int, next_offset: int | None, reason: str) -> None:
        self.seen.findings.append(
            Finding(
                file=self.seen.file,
                reason=reason,
                position=position,
                first_offset=first,
                next_offset=next_offset,
            )
        )

    def _check_index(self, segment: Segment) -> None:
        seen = self.seen
        name = os.path.basename(segment.index_path)
        try:
            header, index = load_index(self.files, segment)
        except IndexDamaged as exc:
            if str(exc) != "missing":
                seen.index = "damaged"
                self._index_finding(name, f"{exc}; the next open makes it again")
            elif seen.is_last or seen.unfinished_bytes:
                seen.index = "none yet"
            else:
                seen.index = "missing"
                why = "it is not there; its writer, or the next open, makes it"
                self._index_finding(name, why, is_damage=False)
            return
        # Where frames are damaged the index knows of more than can be seen here.
        wrong = None
        if not any(finding.first_offset is not None for finding in seen.findings):
            wrong = self.notes.disagreement(header, index)
        if header.salt != segment.salt:
            wrong = "it is of a segment with another salt"
        seen.index = "wrong" if wrong else "ok"
        if wrong:
            self._index_finding(name, f"{wrong}; remove it, and the next open makes it again")

    def _index_finding(self, name: str, reason: str, *, is_damage: bool = True) -> None:
        self.seen.findings.append(Finding(file=name, reason=reason, is_damage=is_damage))


def unreadable(segment: Segment, error: OSError, *, is_last: bool) -> SegmentReport:
    """A segment of which the disk gives nothing. How much is lost shows where the next begins."""
    seen = _empty_report(segment, 0, is_last=is_last)
    seen.index = "unknown"
    reason = f"the file cannot be read: {error.strerror or error}"
    seen.findings.append(
        Finding(file=seen.file, reason=reason, position=0, first_offset=seen.base_offset)
    )
    return seen


def _empty_report(segment: Segment, size_bytes: int, *, is_last: bool) -> SegmentReport:
    return SegmentReport(
        file=os.path.basename(segment.path),
        base_offset=segment.base_offset,
        next_offset=segment.base_offset,
        generation=segment.generation,
        size_bytes=size_bytes,
        is_last=is_last,
    )


def _frame_report(position: int, header: FrameHeader, problem: str | None) -> FrameReport:
    priorities = [p.name.lower() for p in Priority if header.priorities >> p & 1]
    known = header.columns & (1 << len(BITS)) - 1
    return FrameReport(
        position=position,
        base_offset=header.base_offset,
        span=header.span,
        rows=header.row_count,
        first_timestamp_us=header.first_timestamp,
        last_timestamp_us=header.last_timestamp,
        codec=CODECS[header.codec] if header.codec < len(CODECS) else str(header.codec),
        frame_bytes=header.frame_bytes,
        stored_bytes=header.stored_bytes,
        raw_bytes=header.raw_bytes,
        priorities=priorities,
        columns=schema_of(known).names,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
        term=header.term,
        ulid=ulid_text(int.from_bytes(header.ulid, "big")),
        crc=header.crc,
        problem=problem,
    )


def _rows_from(start: int, header: FrameHeader, batch: Batch | None) -> int:
    """How many messages of a frame were not trimmed."""
    if header.base_offset >= start:
        return header.row_count
    if header.next_offset <= start or batch is None:
        return 0
    return sum(offset >= start for offset in batch.offsets.to_pylist())
