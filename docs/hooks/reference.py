"""Pages that the code writes, when the site is made, so that they are never old: settings, and the command line."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import typer.main
from mkdocs.structure.files import File, Files

from headwater.cli.app import app_for
from headwater.cli.print_config import described, written
from headwater.settings import expected, known

SETTINGS = """# Settings

Of `headwater serve`, in `headwater.toml`, the environment or flags: [how](../operate/operations.md#settings). Those of
an embedded bus are fields of `headwater.Config`, and those of a client of `headwater.Connecting`. `headwater serve
--print-config` shows what is in force, and where each comes from.

This page is made from `config.py`.
"""
COMMANDS = """# The command line

`headwater --help`, and `--help` of every command, have the same. This page is made from them.
"""


def on_files(files: Files, config: Any) -> Files:
    """Add both."""
    files.append(File.generated(config, "reference/settings.md", content=settings()))
    files.append(File.generated(config, "reference/command-line.md", content=commands()))
    return files


# Settings


def settings() -> str:
    """A table for each section of config.py, in its order."""
    rows: dict[str, list[str]] = {}
    kinds = known()
    for name, line in described().items():
        if name in kinds:
            kind = kinds[name]
            default = written(name, kind.default).strip('"') or "none"
            rows.setdefault(line.section or "The process", []).append(
                f"| `{name}` | `{default}` | {_cell(expected(name, kind.type))} | {_cell(line.text)} |"
            )
    head = "| setting | default | takes | what it does, and what happens at the limit |\n|---|---|---|---|\n"
    return SETTINGS + "".join(f"\n## {section}\n\n{head}" + "\n".join(made) + "\n" for section, made in rows.items())


# Commands


def commands() -> str:
    """A heading for each command, with what it takes."""
    root = typer.main.get_command(app_for([]))
    return COMMANDS + "".join(_told(root, "headwater", 2))


def _told(command: Any, name: str, level: int) -> Iterator[str]:
    # typer has a click of its own in some versions: what matters is what it has, not what it is.
    children = getattr(command, "commands", {})
    if name != "headwater":
        yield f"\n{'#' * level} {name}\n\n{_text(command.help)}\n"
        if not children:
            yield from _usage(command, name)
    for child, its in children.items():
        if not its.hidden:
            yield from _told(its, f"{name} {child}", 2 if name == "headwater" else 3)


def _usage(command: Any, name: str) -> Iterator[str]:
    arguments = [one for one in command.params if one.param_type_name == "argument"]
    options = [one for one in command.params if one.param_type_name == "option" and not getattr(one, "hidden", False)]
    usage = " ".join([name, *(f"{one.name.upper()}" for one in arguments), "[OPTIONS]" if options else ""]).strip()
    yield f"\n```text\n{usage}\n```\n"
    rows = [f"| `{one.name.upper()}` | {_cell(getattr(one, 'help', None) or '')} |" for one in arguments]
    for one in options:
        if one.name != "help":
            flags = ", ".join(f"`{flag}`" for flag in [*one.opts, *one.secondary_opts])
            rows.append(f"| {flags} | {_cell(one.help or '')}{_default(one)} |")
    if rows:
        yield "\n| | |\n|---|---|\n" + "\n".join(rows) + "\n"


def _default(option: Any) -> str:
    is_shown = getattr(option, "show_default", False) and not callable(option.default)
    return f" Default: `{option.default}`." if is_shown and option.default not in {None, False, "", ()} else ""


def _text(text: str | None) -> str:
    """Help as Markdown: paragraphs stay, marks of rich and of click go."""
    return re.sub(r"\[/?(?:bold|dim|cyan|green|red|yellow|italic)\]", "", (text or "").replace("\b", "")).strip()


def _cell(text: str) -> str:
    return _text(text).replace("|", "\\|").replace("\n", " ").replace("<", "&lt;")
