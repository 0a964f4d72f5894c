"""The configuration in force, and where each value of it comes from.

A YAML file, then the environment, then flags: what comes later wins. A setting has the name of its
field in `ServerConfig`, in the environment with `PENSTOCK_` before it. Durations and sizes may be
written as people write them: `idle_timeout: 75s` is `idle_timeout_ms: 75000`, and a size may be
`64MB` (1000 by 1000) or `64MiB`. A name that is not known is an error that says which is near.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import UnionType
from typing import Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

import msgspec

from penstock.config import ServerConfig
from penstock.durations import parse_ms
from penstock.errors import InvalidConfig, InvalidInput, MissingExtra
from penstock.spelling import nearest

PREFIX = "PENSTOCK_"
CLIENT_VARIABLES = (
    "PENSTOCK_CONFIG",
    "PENSTOCK_URL",
    "PENSTOCK_API_KEY",
    "PENSTOCK_TLS_CA",
    "PENSTOCK_NAMESPACE",
)
"""They are for the commands that talk to a broker, and say nothing about a server."""

DEFAULT = "default"

# Kubernetes gives every pod such variables about a service of the name penstock.
_OF_KUBERNETES = re.compile(
    rf"{PREFIX}(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT_\d+_(TCP|UDP|SCTP)(_\w+)?)"
)
_KUBERNETES_PORT = re.compile(r"(tcp|udp|sctp)://")

_FIELDS: dict[str, Any] = get_type_hints(ServerConfig)
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?(B|kB|KB|MB|GB|KiB|MiB|GiB)")
_BARE = re.compile(r"\s*[0-9.]+\s*")
_DECIMAL = {"B": 1, "kB": 1000, "KB": 1000, "MB": 1000**2, "GB": 1000**3}
_SIZES = _DECIMAL | {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


class Setting(NamedTuple):
    """A value in force."""

    name: str
    value: Any
    origin: str
    """`default`, `penstock.yaml:12`, `PENSTOCK_PORT` or `--port`."""


class Configuration(NamedTuple):
    config: ServerConfig
    origins: dict[str, str]

    def settings(self) -> list[Setting]:
        values = msgspec.structs.asdict(self.config)
        return [
            Setting(name, value, self.origins.get(name, DEFAULT)) for name, value in values.items()
        ]


def load(
    file: str | os.PathLike[str] | None = None,
    environ: Mapping[str, str] | None = None,
    flags: Mapping[str, Any] | None = None,
) -> Configuration:
    """Read all that is given. `flags` by the name of the setting or, for a text such as
    `port=8080` of `--set`, by its flag."""
    given = [
        *(_from_file(Path(file)) if file is not None else ()),
        *_from_environment(environ or {}),
        *_from_flags(flags or {}),
    ]
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for setting in given:
        name, value = _resolved(setting)
        values[name], origins[name] = value, setting.origin
    try:
        return Configuration(ServerConfig(**values), origins)
    except InvalidInput as exc:
        raise InvalidConfig(_blamed(str(exc), origins)) from None


def variable(name: str) -> str:
    """The environment variable of a setting."""
    return PREFIX + name.upper()


def known_names() -> list[str]:
    """Every name of a setting: those of durations with `_ms` and without."""
    return [*_FIELDS, *(name.removesuffix("_ms") for name in _FIELDS if name.endswith("_ms"))]


# The sources.


def _from_file(path: Path) -> Iterator[Setting]:
    try:
        import yaml  # noqa: PLC0415 - only a server with a file needs it
    except ModuleNotFoundError:
        raise MissingExtra("cli", "a configuration file") from None
    try:
        with path.open(encoding="utf-8") as text:
            loader = yaml.SafeLoader(text)
            root = loader.get_single_node()
            if root is None:
                return
            if not isinstance(root, yaml.MappingNode):
                raise InvalidConfig(f"{path}: settings are wanted, such as `port: 8080`")
            seen: dict[str, int] = {}
            for key, value in root.value:
                name, line = str(key.value), key.start_mark.line + 1
                if name in seen:
                    raise InvalidConfig(
                        f"{path}:{line}: {name} is there already, in line {seen[name]}"
                    )
                seen[name] = line
                yield Setting(name, loader.construct_object(value, deep=True), f"{path}:{line}")
    except FileNotFoundError:
        raise InvalidConfig(f"there is no configuration file {path}") from None
    except (OSError, UnicodeDecodeError) as exc:
        raise InvalidConfig(f"{path} cannot be read: {exc}") from None
    except yaml.MarkedYAMLError as exc:
        where = f":{exc.problem_mark.line + 1}" if exc.problem_mark else ""
        raise InvalidConfig(f"{path}{where} is not YAML: {exc.problem}") from None
    except (yaml.YAMLError, ValueError) as exc:
        if isinstance(exc, InvalidConfig):
            raise
        raise InvalidConfig(f"{path} is not YAML: {exc}") from None


def _from_environment(environ: Mapping[str, str]) -> Iterator[Setting]:
    for name, value in sorted(environ.items()):
        if not name.startswith(PREFIX) or name in CLIENT_VARIABLES or _is_kubernetes(name, value):
            continue
        setting = name.removeprefix(PREFIX).lower()
        if setting not in known_names() or name != name.upper():
            known = [*map(variable, known_names()), *CLIENT_VARIABLES]
            raise InvalidConfig(f"unknown environment variable {name}{_near(name, known)}")
        yield Setting(setting, value, name)


def _from_flags(flags: Mapping[str, Any]) -> Iterator[Setting]:
    for name, value in flags.items():
        if name.startswith("--"):
            for text in value:
                setting, equals, written = text.partition("=")
                if not equals:
                    raise InvalidConfig(f"{name} {text}: give a setting as NAME=VALUE")
                yield Setting(setting.strip(), written.strip(), f"{name} {setting.strip()}")
        else:
            yield Setting(name, value, "--" + name.replace("_", "-"))


def _is_kubernetes(name: str, value: str) -> bool:
    return bool(
        _OF_KUBERNETES.fullmatch(name) or (name.endswith("PORT") and _KUBERNETES_PORT.match(value))
    )


# Values.


def _resolved(setting: Setting) -> tuple[str, Any]:
    """The field that a setting means, and its value."""
    name, value, origin = setting
    if f"{name}_ms" in _FIELDS:
        if not isinstance(value, str) or _BARE.fullmatch(value):
            raise InvalidConfig(
                f"{origin}: {name} is {value!r:.100}; say the unit: {value}s, or {name}_ms"
            )
        try:
            return f"{name}_ms", parse_ms(value, name)
        except InvalidInput as exc:
            raise InvalidConfig(f"{origin}: {exc}") from None
    if name not in _FIELDS:
        raise InvalidConfig(f"{origin}: unknown setting {name!r:.100}{_near(name, known_names())}")
    kind = _FIELDS[name]
    if name == "topic_defaults":
        return name, _topic_defaults(value, origin)
    if "bytes" in name and isinstance(value, str) and (size := _SIZE.fullmatch(value.strip())):
        value = round(float(size[1]) * _SIZES[size[2]])
    try:
        if isinstance(value, bool) and bool not in _members(kind):
            raise TypeError
        return name, msgspec.convert(value, kind, strict=False)
    except (msgspec.ValidationError, TypeError):
        raise InvalidConfig(
            f"{origin}: {name} is {value!r:.100}; it must be {expected(name)}"
        ) from None


def _topic_defaults(value: Any, origin: str) -> dict[str, Any]:
    """Settings of topics, checked; in the environment and in flags they are JSON."""
    from penstock.model.settings import parse_topic_defaults  # noqa: PLC0415 - few servers have any

    try:
        given = msgspec.json.decode(value) if isinstance(value, str) else value
        given = msgspec.convert(given, dict[str, Any])
    except msgspec.MsgspecError:
        raise InvalidConfig(
            f"{origin}: topic_defaults is {value!r:.100}; it must be {expected('topic_defaults')}"
        ) from None
    try:
        parse_topic_defaults(given)
    except InvalidInput as exc:
        raise InvalidConfig(f"{origin}: topic_defaults: {exc}") from None
    return given


def expected(name: str) -> str:
    """What a setting may be, in words."""
    kind = _FIELDS[name]
    words = []
    for member in _members(kind):
        if get_origin(member) is Literal:
            words += [str(choice) for choice in get_args(member)]
        elif get_origin(member) is dict:
            words.append('settings of topics, as JSON such as {"max_retries": 5} outside a file')
        elif member is int and "bytes" in name:
            words.append("a number of bytes such as 64MiB")
        elif member is int and name.endswith("_ms"):
            words.append("a whole number of milliseconds")
        else:
            words.append(_WORDS[member])
    return ", ".join(words[:-1]) + (" or " if words[:-1] else "") + words[-1]


_WORDS = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "text",
    type(None): "null",
}


def _members(kind: Any) -> tuple[Any, ...]:
    return get_args(kind) if get_origin(kind) is UnionType else (kind,)


def _near(name: str, known: list[str]) -> str:
    near = nearest(name, known, cutoff=0.5)
    return f"; did you mean {near}?" if near else f"; known are {', '.join(sorted(known))}"


def _blamed(message: str, origins: dict[str, str]) -> str:
    """The message, with the origin of the setting that it names."""
    for name, origin in origins.items():
        if re.search(rf"\b{name}\b", message):
            return f"{origin}: {message}"
    return message
