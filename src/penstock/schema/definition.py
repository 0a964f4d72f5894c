"""What a schema is to the registry, whatever its language."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal, NamedTuple, TypeAlias

import msgspec

SchemaType: TypeAlias = Literal["json", "avro", "protobuf"]
CompatibilityLevel: TypeAlias = Literal[
    "none",
    "backward",
    "backward_transitive",
    "forward",
    "forward_transitive",
    "full",
    "full_transitive",
]
RegistryMode: TypeAlias = Literal["readwrite", "readonly", "import"]

SCHEMA_BYTES_MAX = 1 << 20
DEPTH_MAX = 100
"""Of objects and lists in the JSON of a schema."""
REFERENCES_MAX = 100
_TEXT_SHOWN = 300


class SchemaReference(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Another schema that one refers to."""

    name: str
    """As the schema says it: a `$ref` of JSON Schema, a full name of Avro, an `import`."""
    subject: str
    version: int


class Mismatch(NamedTuple):
    """A value that a schema does not accept."""

    row: int
    field: str
    """Where in the value, as a JSON pointer; empty: all of it."""
    reason: str


class Incompatibility(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Why data of one schema cannot be read with another."""

    path: str
    rule: str
    """Stable; such as `REQUIRED_ADDED`."""
    message: str
    version: int = 0
    """Of the subject with which it was compared; 0: it is not about one."""


class ParsedSchema(ABC):
    """A schema that was found to be sound."""

    kind: ClassVar[SchemaType]

    text: str
    """As it is shown."""
    canonical: str
    """The same for texts that mean the same."""
    compiled: bytes = b""
    """What has to be kept beside the text to parse it again."""

    @abstractmethod
    def check(self, payloads: Sequence[bytes]) -> list[Mismatch]:
        """Those that it does not accept, without the framing of ids."""

    def accepts(self, payloads: Sequence[bytes]) -> bool:
        """Whether it accepts all of them; what it does not is found by `check`."""
        return not self.check(payloads)

    @abstractmethod
    def unreadable(self, writer: ParsedSchema) -> list[Incompatibility]:
        """Why this schema cannot read all that `writer`, of the same kind, accepts; empty: it
        can."""


References: TypeAlias = Mapping[str, ParsedSchema]
"""The schemas that one refers to, by the name that it has for them, those that they refer to
before themselves."""


def levels_of(level: CompatibilityLevel) -> tuple[bool, bool, bool]:
    """Whether new schemas have to read old data, old ones new data, and all versions count."""
    return (
        level.startswith(("backward", "full")),
        level.startswith(("forward", "full")),
        level.endswith("_transitive"),
    )


def shortened(text: object) -> str:
    """What a library says of something hostile, short enough for an error."""
    line = " ".join(str(text).split())
    return line if len(line) <= _TEXT_SHOWN else line[:_TEXT_SHOWN] + " ..."


def pointer(path: Sequence[object]) -> str:
    """A place in a value, as RFC 6901 writes it."""
    return "".join("/" + str(step).replace("~", "~0").replace("/", "~1") for step in path)
