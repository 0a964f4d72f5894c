"""How far a query or a pipeline is, told to the broker as the progress of a group.

A server is told directly. A data folder may have no broker at work, or one in another process, and
taking its lock would keep others out; so the positions are left there as a small durable file,
`progress/<group>.<number>.json`. A broker takes it in, into its own journal, as soon as somebody
asks for the group, and before retention asks what may be dropped.
"""

from __future__ import annotations

import os
import re
import time
from contextlib import suppress

import msgspec

from penstock.log.files import DiskFiles, write_durably
from penstock.spark.connect import connected
from penstock.spark.options import Offsets, Target

FOLDER = "progress"


class _Entry(msgspec.Struct, frozen=True):
    group: str
    offsets: Offsets


def commit_progress(target: Target, group: str, offsets: Offsets) -> None:
    """Everything below these offsets is done. When this returns it is not forgotten any more."""
    if target.url:
        _commit_to_server(target, group, offsets)
        return
    named = {target.full_name(topic): each for topic, each in offsets.items()}
    leave_progress(target.path, group, named)


def leave_progress(folder: str, group: str, offsets: Offsets) -> None:
    """Leave a file for the broker of a data folder.

    It says also what earlier files say of other partitions that no broker has taken in yet, and
    replaces those.
    """
    files = DiskFiles()
    inbox = os.path.join(folder, FOLDER)
    files.make_folder(inbox)
    earlier = sorted(name for name in files.list(inbox) if _number(name, group) is not None)
    number = max([time.time_ns(), *((_number(name, group) or 0) + 1 for name in earlier)])
    every: Offsets = {}
    for said in [*(_said(files, os.path.join(inbox, name)) for name in earlier), offsets]:
        for topic, each in said.items():
            every.setdefault(topic, {}).update(each)
    entry = msgspec.json.encode(_Entry(group, every))
    write_durably(files, os.path.join(inbox, f"{group}.{number:020d}.json"), entry)
    for name in earlier:
        with suppress(FileNotFoundError):  # taken in by a broker
            files.remove(os.path.join(inbox, name))


def _said(files: DiskFiles, path: str) -> Offsets:
    """What a file says; nothing if a broker has taken it in meanwhile, or will not."""
    try:
        return msgspec.json.decode(files.read(path), type=_Entry).offsets
    except (FileNotFoundError, msgspec.DecodeError):
        return {}


def _commit_to_server(target: Target, group: str, offsets: Offsets) -> None:
    with connected(target) as ps:
        for topic, each in offsets.items():
            for partition, offset in each.items():
                ps.reset_stream_group(group, topic, offset, partition=partition)


def _number(name: str, group: str) -> int | None:
    match = re.fullmatch(re.escape(group) + r"\.(\d{20})\.json", name)
    return int(match[1]) if match else None
