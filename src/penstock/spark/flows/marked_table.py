"""What a lake table of a flow keeps beside its rows, in the same commit.

For each partition the next offset of the topic's incarnation (as `lake_table.TableChange` names
them), the number of the round, that of the flow's definition, and how many rows there were so far.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping

import pyarrow as pa

from penstock.spark.flows.definition import Flow
from penstock.spark.flows.merging import ORDER
from penstock.spark.lake_table import TableChange

COUNTS = ("rows", "bad", "dropped", "warned")


class MarkedTable(ABC):
    """The table of one flow in a lake."""

    def __init__(self, flow: Flow) -> None:
        self.flow = flow
        self.uri = flow.target.table
        if "://" not in self.uri:
            self.uri = os.path.abspath(self.uri)

    @property
    def folder(self) -> str:
        """For messages, and where marks are looked up: this is a `Lake` as `stand_of` needs it."""
        return self.uri

    @abstractmethod
    def marks(self, names: Iterable[str]) -> dict[str, int]: ...

    @abstractmethod
    def schema(self) -> pa.Schema | None:
        """That of the table; None: there is none yet."""

    def columns(self) -> list[str] | None:
        schema = self.schema()
        return None if schema is None else schema.names

    @abstractmethod
    def committed_us(self) -> int | None:
        """When it was last committed to."""

    @abstractmethod
    def write(
        self, rows: pa.Table, number: int, change: TableChange, counts: dict[str, int]
    ) -> None:
        """Commit a round: its rows as the kind of target says, and what the table keeps.
        LakeConflict if it is not the next one."""

    def mark(self, what: str) -> str:
        return f"penstock:flow:{self.flow.name}:{what}"

    @property
    def round(self) -> int:
        """The last one that is in the table; 0: none is."""
        return self.marks([self.mark("round")]).get(self.mark("round"), 0)

    def counts(self) -> dict[str, int]:
        names = {self.mark(each): each for each in COUNTS}
        found = self.marks(names)
        return {each: found.get(mark, 0) for mark, each in names.items()}

    def definition(self) -> int | None:
        """The number of the flow as it was when the last round was written."""
        name = self.mark("definition")
        return self.marks([name]).get(name)

    def names(self) -> list[str]:
        """Of what changes from round to round."""
        return [self.mark(each) for each in ("round", *COUNTS)]

    def noted(
        self, before: Mapping[str, int], number: int, counts: Mapping[str, int]
    ) -> dict[str, int]:
        """What the table is to keep of a round, besides offsets, after what it has kept before."""
        so_far = {self.mark(name): counts.get(name, 0) for name in COUNTS}
        return {
            self.mark("round"): number,
            self.mark("definition"): self.flow.number,
            **{name: before.get(name, 0) + more for name, more in so_far.items()},
        }

    def stored(self, schema: pa.Schema) -> pa.Schema:
        """The columns that the table has."""
        if self.flow.target.kind != "history":
            return schema
        order = schema.field(ORDER).type
        more = [("valid_from", order), ("valid_to", order), ("is_current", pa.bool_())]
        for name, kind in more:
            schema = schema.append(pa.field(name, kind))
        return pa.schema([each for each in schema if each.name != ORDER])
