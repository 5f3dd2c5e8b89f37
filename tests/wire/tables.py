"""The tables of docs/reference/protocol.md as the code would write them, and as the page has them."""

from __future__ import annotations

import types
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec

from headwater.wire import administration, request
from wire.vectors import PAGE

NAMED: list[tuple[Any, str]] = [
    (request.U32, "u32"),
    (request.U63, "u63"),
    (request.U64, "u64"),
    (request.Micros, "µs"),
    (request.Seconds, "s"),
    (administration.Page, f"u32, 1 to {administration.PAGE_MAX}"),
    (administration.Points, f"u32, 1 to {administration.HISTORY_POINTS_MAX}"),
    (Any, "any"),
]
PLAIN = {str: "str", bytes: "bin", int: "int", float: "float", bool: "bool", type(None): "nil"}


def words(type: Any) -> str:
    """A type as the page names it."""
    for named, word in NAMED:
        if type == named:
            return word
    if type is None:
        return "nil"
    if type in PLAIN:
        return PLAIN[type]
    origin, args = get_origin(type), get_args(type)
    if origin is Annotated:
        return f"{words(args[0])}, at most {type.__metadata__[0].max_length}"
    if origin is Literal:
        return " or ".join(f'"{one}"' for one in args)
    if origin in (Union, types.UnionType):
        return " or ".join(words(one) for one in args)
    if origin is dict:
        return f"{{{words(args[0])}: {words(args[1])}}}"
    if origin is list or (origin is tuple and args[-1] is Ellipsis):
        return f"[{words(args[0])} …]"
    if origin is tuple:
        return f"[{', '.join(map(words, args))}]"
    return f"`{type.__name__}`"


def default_words(field: msgspec.structs.FieldInfo) -> str:
    """A field's default as the page has it."""
    if field.required:
        return ""
    value = field.default_factory() if field.default is msgspec.NODEFAULT else field.default
    return f"`{_literal(value)}`"


def _literal(value: object) -> str:
    if value is None:
        return "nil"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, bytes):
        return value.hex() or "empty"
    if isinstance(value, tuple):
        return str(list(value))
    return f'"{value}"' if isinstance(value, str) else str(value)


def field_rows(struct: type[msgspec.Struct]) -> list[str]:
    """A row for each field of a value."""
    hints = get_type_hints(struct, include_extras=True)
    return [
        f"| `{struct.__name__}` | `{field.encode_name}` | {words(hints[field.name])} | {default_words(field)} |"
        for field in msgspec.structs.fields(struct)
    ]


def rows_under(heading: str) -> list[list[str]]:
    """The cells of the first table after a heading of the page, without its head."""
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    at = lines.index(heading)
    while not lines[at].startswith("|"):
        at += 1
    rows: list[list[str]] = []
    while at < len(lines) and lines[at].startswith("|"):
        rows.append([cell.strip() for cell in lines[at].strip("|").split("|")])
        at += 1
    return rows[2:]
