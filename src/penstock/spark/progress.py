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
from collections.abc import Mapping
from contextlib import suppress
from types import MappingProxyType

import msgspec

from penstock.log.files import DiskFiles, write_durably
from penstock.spark.connect import connected
from penstock.spark.options import Offsets, Target

FOLDER = "progress"
_ANY: Mapping[str, str] = MappingProxyType({})
"""Whichever topics there are."""


class _Entry(msgspec.Struct, frozen=True):
    group: str
    offsets: Offsets
    incarnations: dict[str, str] = {}


def commit_progress(
    target: Target, group: str, offsets: Offsets, incarnations: Mapping[str, str] = _ANY
) -> None:
    """Everything below these offsets is done, in topics that still have these incarnations. When
    this returns it is not forgotten any more."""
    if target.url:
        with connected(target) as client:
            client.set_stream_offsets(group, offsets, incarnations=incarnations)
        return
    named = {target.full_name(topic): each for topic, each in offsets.items()}
    meant = {target.full_name(topic): each for topic, each in incarnations.items()}
    leave_progress(target.path, group, named, meant)


def leave_progress(
    folder: str, group: str, offsets: Offsets, incarnations: Mapping[str, str] = _ANY
) -> None:
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
    meant: dict[str, str] = {}
    present = _Entry(group, offsets, dict(incarnations))
    for said in [*(_said(files, os.path.join(inbox, name)) for name in earlier), present]:
        for topic, each in said.offsets.items():
            incarnation = said.incarnations.get(topic)
            if topic in every and incarnation != meant.get(topic):
                del every[topic]  # of another topic of that name
            every.setdefault(topic, {}).update(each)
            meant.pop(topic, None)
            if incarnation is not None:
                meant[topic] = incarnation
    entry = msgspec.json.encode(_Entry(group, every, meant))
    write_durably(files, os.path.join(inbox, f"{group}.{number:020d}.json"), entry)
    for name in earlier:
        with suppress(FileNotFoundError):  # taken in by a broker
            files.remove(os.path.join(inbox, name))


def _said(files: DiskFiles, path: str) -> _Entry:
    """What a file says; nothing if a broker has taken it in meanwhile, or will not."""
    try:
        return msgspec.json.decode(files.read(path), type=_Entry)
    except (FileNotFoundError, msgspec.DecodeError):
        return _Entry("", {})


def _number(name: str, group: str) -> int | None:
    match = re.fullmatch(re.escape(group) + r"\.(\d{20})\.json", name)
    return int(match[1]) if match else None
