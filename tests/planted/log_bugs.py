"""Bugs in the log."""

from __future__ import annotations

from tests.planted.bug import Bug

POWER_CUT = "tests/simulation/test_power_cut.py::test_power_cut_at_any_moment"
EVERY_CRASH = "tests/simulation/test_power_cut.py::test_crash_at_every_operation"
EIO = "tests/simulation/test_failing_disk.py::test_eio_on_each_fsync_stops_the_log"
ENOSPC = (
    "tests/simulation/test_failing_disk.py::test_enospc_on_each_write_is_over_when_there_is_room"
)
GROUP_COMMIT = "tests/simulation/test_group_commit.py"
TORN_TAIL = "tests/integration/log/test_torn_tail.py"
FLIPPED_SEGMENT = "tests/integration/log/test_bit_flip.py::test_flipped_bit_in_a_sealed_segment"
FLIPPED_ACTIVE = "tests/integration/log/test_bit_flip.py::test_flipped_bit_in_the_active_segment"
FLIPPED_INDEX = "tests/integration/log/test_bit_flip.py::test_flipped_bit_in_an_index"
FLIPPED_HEADER = (
    "tests/integration/log/test_bit_flip.py::test_every_flipped_bit_in_the_header_of_a_segment"
)
FRAMES_IN_MESSAGES = "tests/unit/log/test_frames_in_messages.py"
CONVERSION = "tests/simulation/test_conversion.py"
RECOVERY = "tests/simulation/test_recovery.py"

LOG_BUGS = [
    # What is confirmed, and when.
    Bug(
        "no fsync before an append is confirmed",
        "log/durable.py",
        "        if active:\n            active.sync()\n",
        "",
        POWER_CUT,
    ),
    Bug(
        "a sealed segment is not synced",
        "log/durable.py",
        "            unsynced_segment.file.sync()\n",
        "            pass\n",
        POWER_CUT,
    ),
    Bug(
        "durable_end is advanced before the fsync",
        "log/durable.py",
        """\
                    self._sync_and_seal(unsynced, active if active_too else None)
                    self._durable_end = target
""",
        """\
                    self._durable_end = target
                    self._sync_and_seal(unsynced, active if active_too else None)
""",
        POWER_CUT,
    ),
    Bug(
        "readers outside are told before the fsync",
        "log/durable.py",
        """\
                    self._sync_and_seal(unsynced, active if active_too else None)
                    self._durable_end = target
                    self._mark.write(target)
""",
        """\
                    self._mark.write(target)
                    self._sync_and_seal(unsynced, active if active_too else None)
                    self._durable_end = target
""",
        POWER_CUT,
    ),
    Bug(
        "an fsync confirms appends that came while it ran",
        "log/durable.py",
        "                    self._durable_end = target\n",
        "                    self._durable_end = target = self._end\n",
        f"{POWER_CUT} {GROUP_COMMIT}",
    ),
    Bug(
        "with `always`, append confirms at once",
        "log/durable.py",
        "            durable, delay_ms = self._round, 0\n",
        "            delay_ms = 0\n",
        POWER_CUT,
    ),
    Bug(
        "append returns before it has written",
        "log/local.py",
        "            self._active_file.append(frame.buffers)\n",
        """\
            late = getattr(self, "_late", lambda: None)
            file = self._active_file
            self._late = lambda: file.append(frame.buffers)
            late()
""",
        EVERY_CRASH,
    ),
    Bug(
        "the interval is forgotten after the first commit",
        "log/durable.py",
        "                    self._commit_is_due = False\n",
        "",
        POWER_CUT,
    ),
    Bug(
        "the batch counts one write too many",
        "log/durable.py",
        "self._writes_since_commit < self.config.fsync_batch_writes",
        "self._writes_since_commit <= self.config.fsync_batch_writes",
        POWER_CUT,
    ),
    Bug(
        "close does not sync",
        "log/local.py",
        "            self._commit(active_too=True)\n        except TooManyOpenFiles",
        "            pass\n        except TooManyOpenFiles",
        POWER_CUT,
    ),
    # Names and their order.
    Bug(
        "no folder fsync on roll",
        "log/durable.py",
        """\
        if unnamed:  # before anything in it is confirmed, the file's name has to be on disk
            self._files.sync_folder(self.folder)
""",
        "",
        POWER_CUT,
    ),
    Bug(
        "an index is laid down before its segment is synced",
        "log/durable.py",
        """\
        for unsynced_segment in unsynced:
            unsynced_segment.file.sync()
""",
        """\
        for unsynced_segment in unsynced:
            seal(self._files, unsynced_segment.segment)
            unsynced_segment.file.sync()
""",
        EVERY_CRASH,
    ),
    Bug(
        "a trim is not durable",
        "log/files.py",
        """\
    files.rename(path + ".tmp", path)
    files.sync_folder(os.path.dirname(path))
""",
        """\
    files.rename(path + ".tmp", path)
""",
        EVERY_CRASH,
    ),
    Bug(
        "segments are trimmed before the new start is on disk",
        "log/local.py",
        "            try:\n                write_start(",
        "            self._discard([s for s in self.segments[:-1] if s.next_offset <= before])\n"
        "            try:\n                write_start(",
        EVERY_CRASH,
    ),
    # Recovery.
    Bug(
        "a torn tail is not cut",
        "log/recovery.py",
        "                    file.truncate(segment.size_bytes)\n",
        "                    pass\n",
        f"{TORN_TAIL} {POWER_CUT}",
    ),
    Bug(
        "what may not be on disk is not written again on opening",
        "log/recovery.py",
        "                    file.overwrite(doubtful, buffer[doubtful : segment.size_bytes])\n",
        "                    pass\n",
        EIO,
    ),
    Bug(
        "recovery removes leftovers before it synced the names of what replaces them",
        "log/recovery.py",
        """\
        self.files.sync_folder(self.folder)
        for name in leftovers:
""",
        """\
        for name in leftovers:
""",
        RECOVERY,
    ),
    Bug(
        "recovery calls lost what was trimmed",
        "log/recovery.py",
        "        first = max(segment.next_offset, self.start)\n",
        "        first = segment.next_offset\n",
        RECOVERY,
    ),
    Bug(
        "inspect calls lost what was trimmed",
        "log/inspect.py",
        "            first = max(end, report.start)  # what was trimmed is not lost\n",
        "            first = end\n",
        RECOVERY,
    ),
    Bug(
        "recovery does not sync what it kept",
        "log/recovery.py",
        "                file.sync()\n",
        "                pass\n",
        POWER_CUT,
    ),
    Bug(
        "damage in what was durable is cut like a torn tail",
        "log/recovery.py",
        "                torn = item.first_offset >= durable\n",
        "                torn = True\n",
        FLIPPED_ACTIVE,
    ),
    # Compaction.
    Bug(
        "old segments go before the compacted one is synced",
        "log/compact.py",
        "                self._write_frames(file, ulid)\n                file.sync()\n",
        "                self._write_frames(file, ulid)\n",
        EVERY_CRASH,
    ),
    Bug(
        "old segments go before the compacted one has its name on disk",
        "log/compact.py",
        """\
            self.files.rename(path + ".tmp", path)
            self.files.sync_folder(self.log.folder)
""",
        """\
            self.files.rename(path + ".tmp", path)
""",
        EVERY_CRASH,
    ),
    Bug(
        "compaction forgets the newest value of a key",
        "log/compact.py",
        """\
aggregate([("offset", "max")])
        latest = grouped.rename_columns({"offset_max": "offset"})""",
        """\
aggregate([("offset", "min")])
        latest = grouped.rename_columns({"offset_min": "offset"})""",
        POWER_CUT,
    ),
    Bug(
        "a message that is not durable supersedes one that is",
        "log/compact.py",
        """ & (pc.field("offset") < end)""",
        "",
        RECOVERY,
    ),
    Bug(
        "compaction gives merged messages new ids",
        "record/batch.py",
        """            columns |= BITS["id"]\n            if not _follow_each_other""",
        "            if not _follow_each_other",
        POWER_CUT,
    ),
    # Failing disks.
    Bug(
        "a failed fsync is tried again",
        "log/durable.py",
        "        if active:\n            active.sync()\n",
        """\
        if active:
            try:
                active.sync()
            except OSError:
                active.sync()
""",
        EIO,
    ),
    Bug(
        "a log goes on after a failed fsync",
        "log/durable.py",
        "            self._failure = LogFailed(self.folder, exc)\n",
        "            return LogFailed(self.folder, exc)\n",
        EIO,
    ),
    Bug(
        "a full disk stops the log for good",
        "log/local.py",
        "        if is_out_of_room(exc):\n            self._roomy_until",
        "        if False:\n            self._roomy_until",
        ENOSPC,
    ),
    Bug(
        "a write that found no room leaves its part in the file",
        "log/local.py",
        """\
        try:
            self._active_file.truncate(self._active.size_bytes)
        except OSError as worse:
            return self._stopped_by(worse)  # or the next append removes it
""",
        """\
        active = self._active
        active.tail = (active.next_offset, self._files.size(active.path))
""",
        ENOSPC,
    ),
    # Bytes that changed.
    Bug(
        "no CRC check of frames that are read",
        "log/frame_cursor.py",
        "                if crc != header.crc:\n",
        "                if False:\n",
        FLIPPED_SEGMENT,
    ),
    Bug(
        "no CRC check of frames that are read as a run",
        "record/singles.py",
        ' & (frames["crc"] == np.array(sums))',
        "",
        "tests/unit/log/test_frames.py",
    ),
    Bug(
        "a run of single messages goes on behind a gap of offsets",
        "record/singles.py",
        '(frames["base_offset"] == np.arange(first_offset, first_offset + len(frames)))',
        "True",
        "tests/unit/record/test_singles.py",
    ),
    Bug(
        "what is skipped before a run counts as read",
        "record/singles.py",
        "    frames, starts = frames[skip:count], starts[skip:count]\n",
        "    frames, starts = frames[:count], starts[:count]\n",
        "tests/unit/log/test_frames.py",
    ),
    Bug(
        "no CRC check of frames in a recovery",
        "record/frame.py",
        "    if checksum(buffer, position, end, salt.seed) != header.crc:\n",
        "    if False:\n",
        POWER_CUT,
    ),
    Bug(
        "no CRC check of the index",
        "log/index.py",
        "    if crc32c(memoryview(data)[8:]) != header.crc or header.version != version:\n",
        "    if header.version != version:\n",
        FLIPPED_INDEX,
    ),
    Bug(
        "a read skips a damaged frame without a word",
        "log/frame_cursor.py",
        "        if next_offset > self._offset:\n            self._lost(",
        "        if False:\n            self._lost(",
        FLIPPED_SEGMENT,
    ),
    # The salt.
    Bug(
        "all segments have the same salt",
        "record/salt.py",
        """        return cls(os.urandom(4), int.from_bytes(os.urandom(4), "little"))\n""",
        """        return cls(b"PNSK", 0)\n""",
        FRAMES_IN_MESSAGES,
    ),
    Bug(
        "frames of another salt are taken",
        "record/frame.py",
        """\
    if header.magic != salt.magic:
        raise""",
        """\
    if False:
        raise""",
        f"{FRAMES_IN_MESSAGES} {FLIPPED_SEGMENT}",
    ),
    Bug(
        "a frame that begins a segment has the salt of the one before",
        "log/local.py",
        "            if self._active is not active:\n",
        "            if False:\n",
        "tests/unit/log/test_segments.py",
    ),
    Bug(
        "compaction copies frames with the salt that they had",
        "log/compact.py",
        "            file.append(resalted([raw], self.new.salt))\n",
        "            file.append([raw])\n",
        "tests/unit/log/test_compaction.py",
    ),
    Bug(
        "the second copy of a segment's header is not read",
        "log/segment_header.py",
        "    for data_of_copy in (start[: _COPY.size], start[_COPY.size :]):\n",
        "    for data_of_copy in (start[: _COPY.size],):\n",
        FLIPPED_HEADER,
    ),
    Bug(
        "no CRC check of a segment's header",
        "log/segment_header.py",
        "        if copy.magic != MAGIC or copy.crc != crc32c(data_of_copy[_CHECKED_FROM:]):\n",
        "        if copy.magic != MAGIC:\n",
        FLIPPED_HEADER,
    ),
    Bug(
        "the header of a segment is written behind its first frame",
        "log/local.py",
        """\
            file = begin_segment(self._files, segment)
""",
        """\
            file = self._files.create(segment.path)
            segment.salt = type(self._active.salt).random()
""",
        EVERY_CRASH,
    ),
    Bug(
        "a segment without a header goes on as the active one",
        "log/recovery.py",
        "                if segment.salt is UNKNOWN:  # it",
        "                if False:  # it",
        f"{EVERY_CRASH} tests/unit/log/test_reopen.py",
    ),
    Bug(
        "a reader outside keeps the salt of a file that is begun anew",
        "log/log_reader.py",
        "        if segment.is_empty:  # a",
        "        if segment.salt is UNKNOWN:  # a",
        "tests/unit/log/test_outside_reader.py",
    ),
    # The conversion of folders of the first version.
    Bug(
        "a converted segment is renamed before it is synced",
        "log/first_version.py",
        "            self._write_frames(file)\n            file.sync()\n",
        "            self._write_frames(file)\n",
        CONVERSION,
    ),
    Bug(
        "the new version is noted before the folder is converted",
        "broker/convert.py",
        "        if version is not None:\n            _convert(",
        "        write_version(files, folder)\n        if version is not None:\n"
        "            _convert(",
        CONVERSION,
    ),
    Bug(
        "a conversion that goes on converts again what is converted",
        "log/first_version.py",
        "        return decode_header(start, segment.path) is None  # or",
        "        return bool(decode_header(start, segment.path) or True)  # or",
        CONVERSION,
    ),
    Bug(
        "a conversion forgets what the old indexes said was durable",
        "log/first_version.py",
        "*ends]",
        "0]",
        CONVERSION,
    ),
    Bug(
        "the names of converted segments are not synced",
        "log/first_version.py",
        "    files.sync_folder(folder)\n",
        "",
        CONVERSION,
    ),
    # The index.
    Bug(
        "a block knows the priorities of its first frame only",
        "log/segment.py",
        "            index.priorities[-1] |= priorities\n",
        "",
        POWER_CUT,
    ),
    Bug(
        "the search for a priority finds the largest mask, not the first",
        "log/index.py",
        "np.uint8) & mask) != 0\n",
        "np.uint8) & mask)\n",
        POWER_CUT,
    ),
    Bug(
        "sealed segments wait for the interval, however many",
        "log/local.py",
        " or len(self._unsynced) > 1:\n",
        ":\n",
        "tests/unit/log/test_fsync_policies.py",
    ),
    Bug(
        "a block's time is that of its first frame",
        "log/segment.py",
        "            index.last_timestamps[-1] = newest\n",
        "",
        POWER_CUT,
    ),
]
