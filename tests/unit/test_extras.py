"""Each extra installs what its code imports, and nothing else."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

import pytest

from tests.unit.test_arrows import SRC, imports, module_name

PROJECT = tomllib.loads((SRC.parent / "pyproject.toml").read_text("utf-8"))["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]

CODE_OF = {
    "remote": ("penstock.client.http",),
    "cli": ("penstock.cli", "penstock.configuration"),
    "server": ("penstock.server",),
    "grpc": ("penstock.server.grpc",),
    "kafka": ("penstock.server.kafka", "penstock.transfer.kafka"),
    "cluster": ("penstock.cluster", "penstock.server.cluster"),
    "spark": ("penstock.spark", "pyspark_penstock"),
    "iceberg": ("penstock.spark.iceberg_lake", "penstock.spark.iceberg_files"),
    "schemas": ("penstock.schema",),
    "otel": ("penstock.otel",),
}
MODULES = {
    "kafka-python": {"kafka"},
    "protobuf": {"google"},
    "grpcio": {"grpc"},
    "grpcio-tools": {"grpc_tools"},
    "pyyaml": {"yaml"},
    "pyspark": {"pyspark", "py4j"},
    "nats-py": {"nats"},
    "opentelemetry-api": {"opentelemetry"},
}  # others are called as they are
OF_THE_USER = {"airflow", "dagster"}  # what is made for them runs in one that is there
ONLY_LIMITED = {"pandas"}  # pyspark imports it, and says too little about the version it needs


def modules_of(requirements: list[str]) -> set[str]:
    """What can be imported after these, and after the extras that they name."""
    found: set[str] = set()
    for requirement in requirements:
        name, extras = re.match(r"([\w-]+)(?:\[([\w,]+)\])?", requirement).groups()  # type: ignore[union-attr]
        if name == "penstock":
            for extra in extras.split(","):
                found |= modules_of(EXTRAS[extra])
        else:
            found |= MODULES.get(name, {name.replace("-", "_")})
    return found


def is_of(module: str, homes: tuple[str, ...]) -> bool:
    return any(f"{module}.".startswith(f"{home}.") for home in homes)


def is_code_of(module: str, extra: str) -> bool:
    """Whether an extra is for this module, and none for a room within its own."""
    homes = CODE_OF[extra]
    within = tuple(
        other
        for each in CODE_OF.values()
        for other in each
        if other not in homes and is_of(other, homes)
    )
    return is_of(module, homes) and not is_of(module, within)


def imported(files: list[Path]) -> set[str]:
    """The libraries that these files import, wherever in them."""
    found = {
        target.partition(".")[0]
        for path in files
        for target, _, _ in imports(module_name(path), path.read_text("utf-8"))
    }
    return found - sys.stdlib_module_names - {"penstock", "pyspark_penstock"} - OF_THE_USER


ALL = sorted(SRC.rglob("*.py"))
CORE = modules_of(PROJECT["dependencies"])


def test_every_extra_has_its_code() -> None:
    assert {*CODE_OF, "all", "dev", "docs", "bench"} == EXTRAS.keys()
    assert modules_of(EXTRAS["all"]) == set().union(*(modules_of(EXTRAS[e]) for e in CODE_OF))


@pytest.mark.parametrize("extra", CODE_OF)
def test_an_extra_and_the_imports_of_its_code_agree(extra: str) -> None:
    files = [path for path in ALL if is_code_of(module_name(path), extra)]
    own = modules_of([r for r in EXTRAS[extra] if not r.startswith("penstock")])
    assert own - ONLY_LIMITED <= imported(files), "an extra installs what nobody imports"
    assert imported(files) <= CORE | modules_of(EXTRAS[extra]), "an extra lacks what is imported"


def test_the_rest_needs_the_core_install_only() -> None:
    homes = tuple(home for homes in CODE_OF.values() for home in homes)
    rest = [path for path in ALL if not is_of(module_name(path), homes)]
    assert imported(rest) - {"typer", "rich"} == CORE
