"""The reference pages of the command line and the configuration, as far as the code makes them.

What stands above the mark in a page is written by hand. `python -m penstock.cli.reference
docs/reference` writes what stands below it; a test compares.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import typer.main

from penstock.cli.app import COMMANDS, build
from penstock.cli.exits import Exit
from penstock.config import ServerConfig
from penstock.configuration import expected, variable

_SHARED = ("data", "url", "api_key", "tls_ca", "namespace", "as_json")
_HIDDEN = ("help", "install_completion", "show_completion")

MARK = "<!-- From here on made from the code. -->\n"


def cli_part() -> str:
    """The exit codes, and every command with its arguments, options and examples."""
    docs = docstrings_of(Exit)
    page = "\n## Exit codes\n\n| code | when |\n|---|---|\n"
    page += "".join(f"| {int(code)} | {_cell(docs[code.name])} |\n" for code in Exit)
    root: Any = typer.main.get_command(build(*COMMANDS))
    return page + "".join(_sections(f"penstock {name}", root.commands[name]) for name in COMMANDS)


def config_part() -> str:
    """Every setting of the server."""
    docs = docstrings_of(ServerConfig)
    page = "\n| setting | default | environment | meaning |\n|---|---|---|---|\n"
    for name, default in msgspec.structs.asdict(ServerConfig()).items():
        shown = default if isinstance(default, str) else msgspec.json.encode(default).decode()
        meaning = f"{docs[name]} *({expected(name)})*"
        page += f"| `{name}` | `{shown}` | `{variable(name)}` | {meaning} |\n"
    return page


PARTS = {"cli.md": cli_part, "config.md": config_part}


def docstrings_of(kind: type) -> dict[str, str]:
    """The texts below the fields of a class, which Python itself does not keep."""
    (tree,) = ast.parse(inspect.getsource(kind)).body
    assert isinstance(tree, ast.ClassDef)
    found = {}
    for field, text in zip(tree.body, tree.body[1:], strict=False):
        match field, text:
            case (
                ast.AnnAssign(target=ast.Name(id=name)) | ast.Assign(targets=[ast.Name(id=name)]),
                ast.Expr(value=ast.Constant(value=str(doc))),
            ):
                found[name] = " ".join(doc.split())
    return found


def _sections(path: str, command: Any, level: int = 2) -> str:
    """A command, or a group of them with all that is in it."""
    inner = getattr(command, "commands", None)
    if inner is None:
        return _section(path, command, level)
    text = f"\n{'#' * level} {path}\n\n{_plain(command.help or '')}\n"
    return text + "".join(
        _sections(f"{path} {name}", each, level + 1) for name, each in inner.items()
    )


def _section(path: str, command: Any, level: int) -> str:
    params = [p for p in command.params if p.name not in _HIDDEN]
    arguments = [p for p in params if p.param_type_name == "argument"]
    options = [p for p in params if p.param_type_name == "option" and p.name not in _SHARED]
    usage = " ".join([path, *(_usage(a) for a in arguments), *(["[OPTIONS]"] if options else [])])
    text = f"\n{'#' * level} {path}\n\n{_plain(command.help or '')}\n\n```\n{usage}\n```\n"
    if arguments or options:
        text += "\n| | default | meaning |\n|---|---|---|\n"
        text += "".join(_row(p) for p in [*arguments, *options])
    examples = list(_examples(command.epilog or ""))
    if examples:
        text += "\n```\n" + "\n".join(examples) + "\n```\n"
    return text


def _usage(argument: Any) -> str:
    name = str(argument.metavar or argument.name.upper())
    name += "..." if argument.nargs == -1 else ""
    return name if argument.required else f"[{name}]"


def _row(param: Any) -> str:
    if param.param_type_name == "argument":
        name = f"`{param.metavar or param.name.upper()}`"
    else:
        value = "" if param.is_flag else f" {param.metavar or _kind(param)}"
        name = ", ".join(f"`{opt}{value if opt.startswith('--') else ''}`" for opt in param.opts)
    default = param.default
    shown = ""
    if param.required:
        shown = "required"
    elif default not in (None, False, [], ()):
        shown = f"`{getattr(default, 'value', default)}`"
    return f"| {name} | {shown} | {_cell(param.help or '')} |\n"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _kind(param: Any) -> str:
    """What an option takes, in a word: its choices, `N` for a number, else its name."""
    choices = getattr(param.type, "choices", None)
    if choices:
        return "\\|".join(str(getattr(choice, "value", choice)) for choice in choices)
    if param.type.name.startswith("int"):
        return "N"
    return str(param.name).strip("_").upper()


def _examples(epilog: str) -> Iterator[str]:
    """The examples of a command: what it does as a comment, and the line to type."""
    for line in epilog.splitlines():
        typed = re.fullmatch(r"\[cyan\]\s*(.*)\[/cyan\]", line.strip())
        if typed:
            yield typed[1]
        elif line.strip() and not line.startswith("["):
            yield f"# {_plain(line)}"


def _plain(text: str) -> str:
    return re.sub(r"\[/?(?:bold|cyan)\]", "", text).strip()


def main() -> None:
    for name, part in PARTS.items():
        page = Path(sys.argv[1]) / name
        written, _, _ = page.read_text(encoding="utf-8").partition(MARK)
        page.write_text(written + MARK + part(), encoding="utf-8")


if __name__ == "__main__":
    main()
