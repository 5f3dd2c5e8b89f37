"""`headwater serve --print-config`, the example file in deploy/, and the table of limits in docs/operate/access.md:
every setting, and what the code says about it."""

from __future__ import annotations

import ast
import inspect
import re
from typing import Any, NamedTuple, get_args

import msgspec
from rich.table import Table
from rich.text import Text

from headwater import config as bus_settings
from headwater import settings as process_settings
from headwater.cli.output import console, emit, safe
from headwater.config import SCOPES, Clustering, Config, Retention, Serving
from headwater.settings import DEFAULT, Loaded, Process, known
from headwater.units import is_size

SECTION = re.compile(r"    # (.+)")
LINE_CHARS = 100
HEAD = """\
# Every setting of `headwater serve` at its default. Uncomment what you change; the environment (HEADWATER_PORT=…) and
# flags (--port, --set NAME=VALUE) win over this file. `headwater serve --print-config` shows what is in force, and why.
#
# Sizes may be written as "64MiB", durations as "30s", "5m", "2h", "7d". Paths are taken from the working folder.
"""


class SettingLine(NamedTuple):
    """What the code says about a setting."""

    section: str
    text: str


def described() -> dict[str, SettingLine]:
    """By the name of the setting: the heading above it, and the line below it."""
    found = _lines_of(process_settings, Process)
    for struct in (Serving, Clustering, Config):
        found |= _lines_of(bus_settings, struct)
    section = found.pop("retention").section
    found |= {
        f"retention.{name}": SettingLine(section, line.text)
        for name, line in _lines_of(bus_settings, Retention).items()
    }
    return found


def _lines_of(module: Any, struct: type[msgspec.Struct]) -> dict[str, SettingLine]:
    source = inspect.getsource(module)
    rows = source.splitlines()
    (found,) = (
        node for node in ast.parse(source).body if isinstance(node, ast.ClassDef) and node.name == struct.__name__
    )
    lines = {}
    section, seen = "", found.lineno
    for node, following in zip(found.body, [*found.body[1:], None], strict=True):
        for row in rows[seen : node.lineno - 1]:
            section = met[1] if (met := SECTION.fullmatch(row)) else section
        seen = node.end_lineno or node.lineno
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            text = following.value if isinstance(following, ast.Expr) else None
            said = text.value if isinstance(text, ast.Constant) else ""
            lines[node.target.id] = SettingLine(section, " ".join(str(said).split()))
    return lines


# For --print-config


def show(loaded: Loaded, as_json: bool) -> None:
    """Each setting, its value, its default, where it came from, and what it does."""
    lines = described()
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("setting", "value", "default", "from", ""):
        table.add_column(name, overflow="fold", ratio=3 if not name else None)
    for name, value, default, source in loaded.rows():
        described_as = "pipelines" if name.startswith("pipelines.") else "retention." + name.rpartition(".")[2]
        line = lines.get(name) or lines[described_as]
        if as_json:
            emit(
                {
                    "setting": name,
                    "value": value,
                    "default": default,
                    "source": source.kind,
                    "from": source.name,
                    "description": line.text,
                }
            )
            continue
        is_default = source == DEFAULT
        table.add_row(
            Text(safe(name), style="cyan"),
            Text(safe(written(name, value)), style="" if is_default else "bold"),
            Text(safe(written(name, default)), style="dim"),
            Text(safe(str(source)), style="dim" if is_default else "yellow"),
            Text(line.text, style="dim"),
        )
    if not as_json:
        console().print(table)


def written(name: str, value: object) -> str:
    """A value as TOML has it; whole KiB, MiB and GiB as such."""
    if isinstance(value, int) and not isinstance(value, bool) and is_size(name.rpartition(".")[2]):
        for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
            if value and value % size == 0:
                return f'"{value // size}{unit}"'
    if isinstance(value, tuple):
        return "[" + ", ".join(written("", part) for part in value) + "]"
    return msgspec.json.encode(value).decode()


# For deploy/headwater.toml


def example() -> str:
    """A file with every setting, commented out, at its default."""
    lines = described()
    out = [HEAD]
    section = None
    tables = []
    for name, kind in known().items():
        row = [*_wrapped(lines[name].text), f"#{name.rpartition('.')[2]} = {written(name, kind.default)}"]
        if name.startswith("retention."):
            tables += row
            continue
        if lines[name].section != section:
            section = lines[name].section
            if section:
                out.append(f"\n## {section}\n")
        out += row
    out += ["\n## For roots without a rule of their own\n", "#[retention]", *tables]
    out += [
        "\n## For one root, as many as there are\n",
        "#[retention_roots.home]",
        '#age_s = "7d"',
        '#hard_bytes = "10GiB"',
        "\n## Pipelines that the server runs, as many as there are: what comes after `headwater pipeline`\n",
        "#[pipelines]",
        '#archive = "archive --every 30s"',
    ]
    return "\n".join(out) + "\n"


def _wrapped(text: str) -> list[str]:
    from textwrap import wrap

    return [f"# {row}" for row in wrap(text, LINE_CHARS, break_long_words=False, break_on_hyphens=False)]


# For docs/operate/access.md


def limits() -> str:
    """What is limited, and of whom: a table as Markdown has them."""
    lines, rows = described(), []
    for whose in SCOPES:
        for struct in (Serving, Config):
            rows += [
                f"| {_whose(whose)} | `{field.name}` | {written(field.name, field.default).strip(chr(34))} "
                f"| {lines[field.name].text} |"
                for field in msgspec.structs.fields(struct)
                if whose in get_args(field.type)
            ]
    return "\n".join(
        ("| of | setting | default | what it limits, and what happens there |", "|---|---|---|---|", *rows)
    )


def _whose(whose: msgspec.Meta) -> str:
    return str((whose.extra or {})["limits"])
