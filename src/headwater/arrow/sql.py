"""SQL over topics, by DuckDB: `select topic, avg(value) from 'home/#' group by 1`.

A filter in quotes is a table, with the columns of `bus.arrow` and three that are made of the payload: `text`, where it
is UTF-8; `value`, the number that it is; and `json`. Only the columns that a query needs are made.

Promises: a query reads topics and nothing else (no files, no network, no settings), up to what there was when it was
asked; DuckDB's memory and the answer are each bounded by `sql_memory_bytes`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from difflib import get_close_matches
from typing import Any

import duckdb
import msgspec
import pyarrow as pa

from headwater import threads
from headwater.arrow.fields import check_fields
from headwater.arrow.result import Result
from headwater.arrow.source import Readable
from headwater.arrow.table import TEXT, Table
from headwater.config import Config
from headwater.delivery.options import OnGap
from headwater.errors import Closed, HeadwaterError, Malformed, NotAllowed, NotFound, TooLarge
from headwater.message import Extent
from headwater.topics.name import check_filter, is_wild, root_of_filter

ROWS = 10_000
"""Rows of the answer that are taken at once."""
CLOSED_WORLD = {
    "enable_external_access": "false",
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "allow_community_extensions": "false",
    "python_enable_replacements": "false",
    "temp_directory": "",
}
"""No files, no network, no variables of the program that asks."""
OF_PAYLOAD = f"""
    case when isfinite(try_cast({TEXT} as double)) then try_cast({TEXT} as double) end as value,
    case when json_valid({TEXT}) then {TEXT}::json end as json"""
MADE = (TEXT, "value", "json")
OFFSET = re.compile(r"(?<![\"'.\w])offset(?![\"'\w])", re.IGNORECASE)
BARE = re.compile(r"\bfrom\s+[\w$+]+/", re.IGNORECASE)
"""A filter without its quotes."""
LACKING = re.compile(r'Referenced column "(\w+)" not found')
OF_READING = {"Out of Memory": duckdb.OutOfMemoryException, "INTERRUPT": duckdb.InterruptException}
"""Errors of DuckDB that are told apart, by how they begin where they come while the answer is read."""
OF_MACHINE = re.compile(r"duckdb_|pragma_|(current_setting|query|query_table)$", re.IGNORECASE)
"""Functions that tell of the process that answers (its folders, its settings), or take a query as a text."""
INSIST_S = 0.05
"""How long after an interrupt that did not end a query the next one comes."""
INTERRUPTED = "the query was interrupted"
READS = "a query is one select: it reads topics, and changes nothing"


class Query:
    """A query that is being answered; it can be interrupted from another thread."""

    def __init__(
        self,
        bus: Readable,
        query: str,
        params: Mapping[str, object] | Sequence[object] | None,
        memory_bytes: int,
        *,
        since: datetime | None = None,
        until: datetime | None = None,
        fields: Mapping[str, type] | None = None,
        on_gap: OnGap = "raise",
        check: Callable[[str], None] = lambda _: None,
    ) -> None:
        """`check` is asked of each table, which is a filter, before it is read."""
        if not isinstance(query, str):
            raise Malformed(f"a query is a str, not {type(query).__name__}")
        self._bus = bus
        self._query = query
        self._params = params
        self._memory_bytes = memory_bytes
        self._check = check
        self._fields = dict(fields or {})
        check_fields(self._fields, MADE)
        self._options: dict[str, Any] = {"since": since, "until": until, "on_gap": on_gap}
        self._tables: list[Table] = []
        self._lock = threads.Lock()
        self._is_interrupted = self._is_answering = False
        self._ended = threads.Event()
        self._connection = duckdb.connect(
            ":memory:", config={**CLOSED_WORLD, "memory_limit": f"{max(1, memory_bytes >> 20)}MiB"}
        )

    def interrupt(self) -> None:
        """Give it up; this does not wait until it has ended."""
        with self._lock:
            was_interrupted, self._is_interrupted = self._is_interrupted, True
            if was_interrupted or not self._is_answering:
                return
        threads.Thread(target=self._insist, name="headwater-interrupt", daemon=True).start()

    def _insist(self) -> None:
        """DuckDB forgets an interrupt that comes before it has begun to execute."""
        while True:
            with self._lock:
                if not self._is_answering:
                    return
                self._connection.interrupt()
            self._ended.wait(INSIST_S)

    def answer(self) -> Result:
        """All rows of the answer."""
        with self._lock:
            self._check_wanted()
            self._is_answering = True
        try:
            return Result(self._answer())
        except duckdb.Error as error:
            failed = next((table.failed for table in self._tables if table.failed is not None), None)
            if isinstance(failed, HeadwaterError):
                raise failed from None
            raise self._said(error) from None
        finally:
            with self._lock:
                self._is_answering = False
            self._ended.set()
            self._connection.close()
            self._tables.clear()

    def _answer(self) -> Any:
        connection = self._connection
        connection.execute("set TimeZone = 'UTC'")
        for name in self._names():
            self._make_table(name)
        connection.execute("set lock_configuration = true")
        self._check_wanted()
        asked = connection.sql(self._query, params=self._params)
        batches, size = [], 0
        reader = asked.to_arrow_reader(ROWS)
        for batch in _read(reader):
            self._check_wanted()
            size += batch.nbytes
            if size > self._memory_bytes:
                raise TooLarge(
                    f"the answer has more than {self._memory_bytes >> 20} MiB (sql_memory_bytes); aggregate, or limit "
                    "it, or read the messages with bus.arrow, some at a time"
                )
            batches.append(batch)
        return pa.Table.from_batches(batches, reader.schema)

    def _check_wanted(self) -> None:
        if self._is_interrupted:
            raise Closed(INTERRUPTED)

    def _names(self) -> list[str]:
        """The tables of the query, which has to be one select."""
        ((found,),) = self._connection.execute("select json_serialize_sql($query)", {"query": self._query}).fetchall()
        parsed = msgspec.json.decode(found)
        if parsed["error"]:
            if parsed["error_type"] == "not implemented":
                raise Malformed(READS)
            self._connection.extract_statements(self._query)  # says it better
            raise Malformed(parsed["error_message"])
        if len(parsed["statements"]) != 1:
            raise Malformed(READS)
        names: dict[str, None] = {}
        _collect(parsed, names, set())
        return list(names)

    def _make_table(self, filter: str) -> None:
        check_filter(filter, Config())
        self._check(filter)
        extents = self._bus.extents(filter)
        if not extents:
            raise self._not_found(filter)
        if not is_wild(filter) and "/" not in filter and not self._bus.topics(filter):
            raise NotFound(f"topic \"{filter}\" has no messages; ask all below it: from '{filter}/#'")
        table = Table(self._bus, filter, extents, self._fields, **self._options)
        self._tables.append(table)
        source = f"topics {len(self._tables)}"
        self._connection.register(source, table)
        view = f'create view {_quoted(filter)} as select *, {OF_PAYLOAD} from "{source}"'  # noqa: S608  # it is quoted
        self._connection.execute(view)

    def _not_found(self, filter: str) -> NotFound:
        root = root_of_filter(filter)
        try:
            known: list[Extent] = self._bus.extents("#")
        except NotAllowed:
            known = []
        roots = [extent.root for extent in known]
        near = get_close_matches(root or "", roots, 1)
        hint = f'; did you mean "{near[0]}"?' if near else f"; there are {', '.join(roots[:20])}" if roots else ""
        if root is None:
            return NotFound(f'no messages of "{filter}": there are none at all')
        return NotFound(f'no messages of "{filter}": there is no root "{root}"{hint}')

    def _said(self, error: duckdb.Error) -> HeadwaterError:
        # Below what is wrong comes the query with a mark under the place, which is no part of a sentence.
        text = " ".join(line.strip() for line in str(error).partition("\nLINE ")[0].splitlines() if line.strip())
        match error:
            case duckdb.OutOfMemoryException():
                return TooLarge(
                    f"the query needs more than {self._memory_bytes >> 20} MiB (sql_memory_bytes); narrow it with "
                    "since= or a condition, or aggregate earlier"
                )
            case duckdb.PermissionException():
                return NotAllowed("a query reads topics, and no files or networks: write a filter, as in from 'home/#'")
            case duckdb.InterruptException():
                return Closed(INTERRUPTED)
            case duckdb.ParserException() if OFFSET.search(self._query):
                return Malformed(f'{text}; offset is a word of SQL: write it as "offset"')
            case duckdb.ParserException() if BARE.search(self._query):
                return Malformed(f"{text}; a filter stands in quotes: from 'home/#'")
            case duckdb.BinderException() if (lacking := LACKING.search(text)) is not None:
                return Malformed(f"{text}; of a field of JSON write json->>'$.{lacking[1]}'")
        return Malformed(text)


def _read(reader: pa.RecordBatchReader) -> Iterator[Any]:
    """The rows of an answer; what goes wrong meanwhile is an error of DuckDB, as it is before."""
    try:
        yield from reader
    except OSError as error:
        said = str(error)
        raise next((kind for begin, kind in OF_READING.items() if said.startswith(begin)), duckdb.Error)(said) from None


def _collect(node: Any, names: dict[str, None], defined: set[str]) -> None:
    """The tables that a part of a query names, but for those that it defines itself (`with`)."""
    if isinstance(node, dict):
        defined = defined | {entry["key"] for entry in node.get("cte_map", {}).get("map", ())}
        is_table = node.get("type") == "BASE_TABLE"
        if OF_MACHINE.match(node.get("function_name") or "") or (is_table and node["schema_name"]):
            raise NotAllowed("a query reads topics, and nothing of the process that answers it")
        if is_table and node["table_name"] not in defined:
            names[node["table_name"]] = None
    if isinstance(node, dict | list):
        for part in node.values() if isinstance(node, dict) else node:
            _collect(part, names, defined)


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
