"""Where the settings of a server come from: `headwater.toml`, then `HEADWATER_*`, then flags, and which of them won.

A setting has one name everywhere: `segment_bytes` in the file, HEADWATER_SEGMENT_BYTES in the environment,
`--set segment_bytes=…` as a flag. Those within a table are written with a dot, and in the environment with two
underscores: `retention.age_s`, `retention_roots.home.bytes`; HEADWATER_RETENTION__AGE_S.

Sizes may be written as "64MiB" where the name speaks of bytes, durations as "30s" where it ends in seconds.
"""

from __future__ import annotations

import difflib
import functools
import re
import tomllib
from collections.abc import Iterator, Mapping
from types import MappingProxyType, UnionType
from typing import Annotated, Any, Literal, get_args, get_origin

import msgspec

from headwater.config import Clustering, Config, Retention, Serving
from headwater.errors import Malformed, NotFound
from headwater.store.files import DiskFiles, Files
from headwater.units import is_duration, is_size, number_of

FILE = "headwater.toml"
PREFIX = "HEADWATER_"
NOT_SETTINGS = frozenset(("HEADWATER_CONFIG", "HEADWATER_SPARK", "HEADWATER_URL"))
"""What commands, or the search for the file, read from the environment."""
NAMES_CLOSE = 0.6
"""How alike two names are before one is offered for the other."""

PIPELINES = "pipelines."
PIPELINE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
"""What a pipeline may be called."""
NUMBER = re.compile(r"[+-]?\d[\d_]*(?:\.\d+)?(?:e[+-]?\d+)?", re.IGNORECASE)
TRUTHS = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}


class Process(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of the process that serves."""

    data: str = "headwater-data"
    """The folder that holds the data; made if there is none."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Events below it are not logged."""
    log_json: bool = False
    """Log one JSON object a line instead of text."""


class Source(msgspec.Struct, frozen=True):
    """Where the value of a setting came from."""

    kind: Literal["default", "file", "environment", "flag", "program"]
    name: str = ""
    """The file, the variable, or the flag."""

    def __str__(self) -> str:
        return self.name or self.kind


DEFAULT = Source("default")


class Loaded(msgspec.Struct, frozen=True):
    """All settings of a server, and where each came from."""

    config: Config
    serving: Serving
    process: Process
    sources: dict[str, Source]
    """By the setting's name; those within a table with a dot."""
    clustering: Clustering = Clustering()

    @property
    def data(self) -> str:
        """The folder that holds the data."""
        return self.process.data

    def rows(self) -> Iterator[tuple[str, object, object, Source]]:
        """Each setting with its value, its default and its source, in the order of the code."""
        for name, kind in known().items():
            yield name, self._value(name), kind.default, self.sources[name]
        for name in self.sources:
            if name.startswith(PIPELINES):
                yield name, self._value(name), "", self.sources[name]
            elif name.startswith("retention_roots."):
                yield name, self._value(name), getattr(Retention(), name.rpartition(".")[2]), self.sources[name]

    def _value(self, name: str) -> object:
        table, root, field = _split(name)
        if root:
            return getattr(self.config.retention_roots[root], field)
        if table == "pipelines":
            return self.serving.pipelines[field]
        if table:
            return getattr(self.config.retention, field)
        owner = next(
            owner for owner in (self.process, self.serving, self.clustering, self.config) if hasattr(owner, field)
        )
        return getattr(owner, field)


class Kind(msgspec.Struct, frozen=True):
    """What is known of a setting before it has a value."""

    type: Any
    default: object


def load(
    flags: Mapping[str, tuple[str, object]] | None = None,
    environment: Mapping[str, str] | None = None,
    path: str | None = None,
    files: Files | None = None,
) -> Loaded:
    """Settings from the file, the environment and the flags; Malformed names the place of one that cannot be right.

    `flags` has, by the name of the setting, the flag as the user wrote it and its value. The file is `path`, which is
    what --config said, else HEADWATER_CONFIG, else headwater.toml in the working folder if there is one.
    """
    environment = environment or {}
    given: dict[str, tuple[Source, object]] = {}
    for name, source, value in (
        *_from_file(files or DiskFiles(), path, environment),
        *_from_environment(environment),
        *((name, Source("flag", flag), value) for name, (flag, value) in (flags or {}).items()),
    ):
        given[name] = source, _typed(name, value, source)
    sources = dict.fromkeys(known(), DEFAULT) | {name: source for name, (source, _) in given.items()}
    values = {name: value for name, (_, value) in given.items()}
    try:
        return Loaded(
            Config(**_of(Config, values), **_retention(values)),
            Serving(**_of(Serving, values), **_pipelines(values)),
            Process(**_of(Process, values)),
            sources,
            Clustering(**_of(Clustering, values)),
        )
    except Malformed as error:
        raise Malformed(str(error.args[0]) + _blame(str(error.args[0]), sources)) from None


def given(config: Config, serving: Serving, data: str) -> Loaded:
    """Settings that a program handed in, rather than a file, the environment or flags."""
    loaded = Loaded(config, serving, Process(data=data), dict.fromkeys(known(), DEFAULT))
    loaded.sources.update(
        {name: Source("program", "program") for name, value, default, _ in loaded.rows() if value != default}
    )
    loaded.sources.update({PIPELINES + name: Source("program", "program") for name in serving.pipelines})
    for root in config.retention_roots:
        loaded.sources.update(
            {f"retention_roots.{root}.{name}": Source("program", "program") for name in _kinds(Retention)}
        )
    return loaded


@functools.cache
def known() -> Mapping[str, Kind]:
    """Every setting by its name, besides the rules of single roots, in the order of the code."""
    found: dict[str, Kind] = {}
    for struct in (Process, Serving, Clustering, Config):
        for field in msgspec.structs.fields(struct):
            if field.name == "retention":
                found |= {f"retention.{name}": kind for name, kind in _kinds(Retention).items()}
            elif field.name not in ("retention_roots", "pipelines"):
                found[field.name] = Kind(_plain(field.type), _default(field))
    return MappingProxyType(found)


@functools.cache
def _kinds(struct: type[msgspec.Struct]) -> dict[str, Kind]:
    return {field.name: Kind(_plain(field.type), _default(field)) for field in msgspec.structs.fields(struct)}


def _plain(kind: Any) -> Any:
    """A type without what is said about it."""
    return get_args(kind)[0] if get_origin(kind) is Annotated else kind


def _default(field: msgspec.structs.FieldInfo) -> object:
    return field.default if field.default is not msgspec.NODEFAULT else field.default_factory()


def _of(struct: type[msgspec.Struct], values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: values[name] for name in struct.__struct_fields__ if name in values}


def _retention(values: Mapping[str, Any]) -> dict[str, Any]:
    """The tables `retention` and `retention_roots` of what was given with dots."""
    rules: dict[str, dict[str, Any]] = {}
    for name, value in values.items():
        table, root, field = _split(name)
        if table.startswith("retention"):
            rules.setdefault(root, {})[field] = value
    found: dict[str, Any] = {}
    if "" in rules:
        found["retention"] = Retention(**rules.pop(""))
    if rules:
        found["retention_roots"] = {root: Retention(**rule) for root, rule in rules.items()}
    return found


def _pipelines(values: Mapping[str, Any]) -> dict[str, Any]:
    """The table `pipelines`."""
    found = {name.removeprefix(PIPELINES): value for name, value in values.items() if name.startswith(PIPELINES)}
    return {"pipelines": found} if found else {}


def _split(name: str) -> tuple[str, str, str]:
    """Table, root and field: retention_roots.home.bytes; a root may have dots itself."""
    if name.startswith("retention_roots."):
        root, _, field = name.removeprefix("retention_roots.").rpartition(".")
        return "retention_roots", root, field
    if name.startswith(PIPELINES):
        return "pipelines", "", name.removeprefix(PIPELINES)
    table, _, field = name.rpartition(".")
    return table, "", field


def _blame(text: str, sources: Mapping[str, Source]) -> str:
    """Who said so, for each setting that a sentence speaks of."""
    names = dict.fromkeys(re.findall(r"\w+", text))
    met = [
        f"{name} is from {source}"
        for name, source in sources.items()
        if source != DEFAULT and name.rpartition(".")[2] in names
    ]
    return f" ({', '.join(met)})" if met else ""


# Places

Given = Iterator[tuple[str, Source, object]]


def folder_of_settings(environment: Mapping[str, str], files: Files | None = None) -> str:
    """The data folder that the settings file names, which a server here would serve; empty if there is none."""
    for name, source, value in _from_file(files or DiskFiles(), None, environment):
        if name == "data":
            return str(_typed(name, value, source))
    return ""


def _from_file(files: Files, path: str | None, environment: Mapping[str, str]) -> Given:
    asked = "--config" if path else "HEADWATER_CONFIG"
    path = path or environment.get("HEADWATER_CONFIG") or ""
    if not path:
        if not files.exists(FILE):
            return
        path = FILE
    try:
        parsed = tomllib.loads(files.read(path).decode())
    except FileNotFoundError:
        raise NotFound(f'there is no file "{path}", which {asked} names') from None
    except OSError as error:
        raise Malformed(f'"{path}" cannot be read: {error.strerror}') from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise Malformed(f'"{path}" is not TOML: {error}') from None
    source = Source("file", path)
    for name, value in _flat(parsed, source):
        _check_name(name, source, name)
        yield name, source, value


def _flat(parsed: Mapping[str, Any], source: Source) -> Iterator[tuple[str, object]]:
    for name, value in parsed.items():
        if name not in ("retention", "retention_roots", "pipelines"):
            yield name, value
            continue
        tables = {f"{name}.": value} if name != "retention_roots" else {}
        if name == "retention_roots" and isinstance(value, dict):
            tables = {f"{name}.{root}.": rule for root, rule in value.items()}
        elif name == "retention_roots":
            tables = {f"{name}.": value}
        for prefix, table in tables.items():
            if not isinstance(table, dict):
                table_name = prefix[:-1]
                raise Malformed(
                    f"{table_name} of {source} is {table!r}; use a table: [{table_name}], below it "
                    + ('archive = "archive --every 30s"' if name == "pipelines" else "age_s = …")
                )
            yield from ((prefix + field, rule) for field, rule in table.items())


def _from_environment(environment: Mapping[str, str]) -> Given:
    for variable, value in sorted(environment.items()):
        if not variable.startswith(PREFIX) or variable in NOT_SETTINGS:
            continue
        # A root is called as it is called; all else is upper case in the environment and lower case here.
        parts = variable.removeprefix(PREFIX).split("__")
        is_root = len(parts) > 2 and parts[0].lower() == "retention_roots"
        name = ".".join(
            part if is_root and 0 < place < len(parts) - 1 else part.lower() for place, part in enumerate(parts)
        )
        source = Source("environment", variable)
        _check_name(name, source, variable)
        yield name, source, value


def flag(text: str) -> tuple[str, tuple[str, object]]:
    """A setting that --set gives as NAME=VALUE, for `load`."""
    name, equals, value = text.partition("=")
    name = name.strip()
    if not equals:
        raise Malformed(f'--set "{text}" has no value; write --set segment_bytes=64MiB')
    _check_name(name, Source("flag", "--set"), name)
    return name, (f"--set {name}", value.strip())


def _check_name(name: str, source: Source, written: str) -> None:
    """Malformed, with the nearest name that there is, unless there is a setting of this name."""
    table, root, field = _split(name)
    if name in known() or (table == "retention_roots" and root and field in _kinds(Retention)):
        return
    if table == "pipelines" and PIPELINE.fullmatch(field):
        return
    if table in ("retention", "retention_roots"):
        near = difflib.get_close_matches(field, list(_kinds(Retention)), 1, NAMES_CLOSE)
        offered = [name[: len(name) - len(field)] + match for match in near]
    else:
        offered = difflib.get_close_matches(name.lower(), list(known()), 1, NAMES_CLOSE)
    if source.kind == "environment":
        offered = [PREFIX + match.replace(".", "__").upper() for match in offered]
    hint = f"did you mean {offered[0]}?" if offered else "headwater serve --print-config lists those that are"
    where = "" if source.name == written else f" (in {source})"
    raise Malformed(f"there is no setting {written}{where}; {hint}")


# Values


def _typed(name: str, value: object, source: Source) -> object:
    """The value as its setting wants it; Malformed says what that is."""
    table, _, field = _split(name)
    found = Kind(str, "") if table == "pipelines" else known().get(name) or _kinds(Retention)[field]
    try:
        # Only in a file have values types of their own; elsewhere everything is text.
        return _convert(field, found.type, value, is_text=source.kind != "file")
    except ValueError:
        pass
    subject = source.name if source.kind == "environment" else f"{name} of {source}" if source.kind == "file" else name
    links = "" if not str(value).startswith("tcp://") else (
        "; Kubernetes sets such variables for a service of this name: turn enableServiceLinks off"
    )  # fmt: skip
    raise Malformed(f"{subject} is {value!r}; use {expected(field, found.type)}{links}")


def _convert(field: str, kind: Any, value: object, is_text: bool) -> object:
    if isinstance(value, str) and kind in (int, float):
        value = _number(field, value, is_text)
        if kind is int and float(value).is_integer():
            value = int(value)
    elif isinstance(value, str) and kind is bool and is_text:
        value = TRUTHS.get(value.lower(), value)
    elif isinstance(value, str) and get_origin(kind) is tuple and is_text:
        value = tuple(part.strip() for part in value.split(",") if part.strip())
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise ValueError(str(error)) from None


def _number(field: str, text: str, is_text: bool) -> int | float:
    text = text.strip()
    if is_text and NUMBER.fullmatch(text):
        return float(text) if re.search(r"[.eE]", text) else int(text)
    return number_of(field, text)


def expected(field: str, kind: Any) -> str:
    """What a setting takes, in words."""
    if get_origin(kind) is Literal:
        return "one of " + ", ".join(f'"{choice}"' for choice in get_args(kind))
    if get_origin(kind) is UnionType:
        return 'a text, or a list of texts: ["a", "b"] in the file, a,b elsewhere'
    if get_origin(kind) is tuple:
        return 'a list of texts: ["a", "b"] in the file, a,b elsewhere'
    if kind is bool:
        return "true or false"
    if kind is str:
        return "a text"
    if is_size(field):
        return 'a whole number of bytes, or a size such as "64MiB"'
    if is_duration(field):
        return 'a number of seconds, or a duration such as "30s", "5m" or "2h"'
    return "a whole number" if kind is int else "a number"
