"""What the reader in Spark's own process asks of Python: `python -m headwater.spark.planner`, beside Spark.

So there is one description of what options mean, of where messages are, and of what is an error. A request is a line
of JSON, and so is an answer; bodies follow theirs as they are. What went wrong is an answer, too, in the words in
which the Python source says it. It ends with who asks it.

| ask         | with                                | answers                                                  |
|-------------|-------------------------------------|----------------------------------------------------------|
| describe    | options, schema                     | which reader is to serve, the columns, where it reads    |
| tables, table, namespaces | options, namespace, table | what a catalog of the bus has: `headwater.spark.catalog` |
| plan        | options, conditions, ends, cores    | partitions of a batch read, and where each root ends     |
| stream      | options, cores                      | opens a stream, of which the next are                    |
| initial, limit, available_now, latest, report, metrics, partitions, commit, stop |  | as `StreamReader` has them |
| pieces      | options, span, offset               | bodies of a span, a line and its bytes each              |
| lost        | options, span, first, last, reason  | nothing, or the error that it is                         |
"""

from __future__ import annotations

import json
import re
import sys
import traceback
from array import array
from base64 import b64encode
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from typing import Any, BinaryIO

import msgspec
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from pyspark.sql.types import StructType

from headwater.arrow.conditions import Condition, Conditions
from headwater.client.url import parse_url
from headwater.errors import Malformed
from headwater.log.purges import Purge
from headwater.spark import catalog, plan
from headwater.spark.options import JVM, MESSAGES, PYTHON, ReadOptions, check_batch, check_streaming, read_options
from headwater.spark.reading import SpansPartition, is_typed, open_log, partitions_of, pieces_of
from headwater.spark.source import MESSAGE, check_schema
from headwater.spark.spans import AsOf, Span
from headwater.spark.streaming import StreamReader
from headwater.stdout import Stdout
from headwater.store import folder as folders
from headwater.store.log import Hole
from headwater.topics.name import is_wild

Given = dict[str, Any]
COLUMNS_DDL = ", ".join(f"{name} {kind}" for name, kind in MESSAGE.items())
ENDS_HERE = "(?!.)"
"""In a pattern whose dots match everything."""


class Planner:
    """Answers what it is asked, one after another."""

    def __init__(self) -> None:
        self._stream: StreamReader | None = None

    def answers(self, request: Given) -> Iterator[tuple[Given, bytes]]:
        """What a request is answered with: values, each with the bytes that follow it."""
        if request["ask"] == "pieces":
            yield from self._pieces(request)
            return
        ask: Callable[[Given], Given] = getattr(self, f"_on_{request['ask']}")
        yield ask(request), b""

    # Batch reads

    def _on_describe(self, request: Given) -> Given:
        options = read_options(request["options"])
        schema = None if request["schema"] is None else StructType.fromJson(json.loads(request["schema"]))
        if schema is not None:
            check_schema(schema, options)
        why = python_reads(options, schema)
        place = options.data if options.url is None else str(parse_url(options.url))
        return {
            "reader": JVM if why is None else PYTHON,
            "schema": COLUMNS_DDL,
            "place": f"{place}, topics: {options.topics}",
        }

    def _on_plan(self, request: Given) -> Given:
        options = _of_cluster(request)
        check_batch(options)
        conditions = Conditions(tuple(msgspec.convert(request["conditions"], list[Condition])))
        with closing(AsOf(open_log(options), request["ends"])) as log:
            ranges = plan.ranges_of_batch(log, options, conditions)
            partitions = partitions_of(log, ranges, options, StructType())
            ends = {extent.root: extent.end for extent in log.extents(options.topics)}
        return {"partitions": _stated(partitions, options, conditions), "ends": ends}

    # Catalogs

    def _on_namespaces(self, request: Given) -> Given:
        return {"namespaces": [catalog.STATE]}

    def _on_tables(self, request: Given) -> Given:
        return {"tables": catalog.tables(request["options"], request["namespace"])}

    def _on_table(self, request: Given) -> Given:
        found = catalog.table(request["options"], request["namespace"], request["table"])
        return {} if found is None else {"options": found.options, "schema": found.schema}

    # Streams

    def _on_stream(self, request: Given) -> Given:
        options = _of_cluster(request)
        check_streaming(options)
        self._stream = StreamReader(options, StructType())
        return {}

    @property
    def _reader(self) -> StreamReader:
        assert self._stream is not None, "no stream is open"
        return self._stream

    def _on_initial(self, request: Given) -> Given:
        return {"place": json.dumps(self._reader.initialOffset())}

    def _on_limit(self, request: Given) -> Given:
        return {"rows": self._reader.options.messages_per_trigger_max or 0}

    def _on_available_now(self, request: Given) -> Given:
        self._reader.prepareForTriggerAvailableNow()
        return {}

    def _on_latest(self, request: Given) -> Given:
        limit = ReadMaxRows(request["rows"]) if request["rows"] else ReadAllAvailable()
        return {"place": json.dumps(self._reader.latestOffset(json.loads(request["start"]), limit))}

    def _on_report(self, request: Given) -> Given:
        found = self._reader.reportLatestOffset()
        return {} if found is None else {"place": json.dumps(found)}

    def _on_metrics(self, request: Given) -> Given:
        return {"metrics": self._reader.metrics(json.loads(request["end"]))}

    def _on_partitions(self, request: Given) -> Given:
        reader = self._reader
        found = reader.partitions(json.loads(request["start"]), json.loads(request["end"]))
        return {"partitions": _stated(found, reader.options, Conditions())}

    def _on_commit(self, request: Given) -> Given:
        self._reader.commit(json.loads(request["end"]))
        return {}

    def _on_stop(self, request: Given) -> Given:
        if self._stream is not None:
            self._stream.stop()
            self._stream = None
        return {}

    # In the tasks

    def _pieces(self, request: Given) -> Iterator[tuple[Given, bytes]]:
        options = read_options(request["options"])
        span = msgspec.convert(request["span"], Span)
        span = msgspec.structs.replace(span, first=request["offset"])
        yield {"begun": True, "more": True}, b""
        for piece in pieces_of(options, span):
            if isinstance(piece, Hole):
                plan.report(span.root, piece, span.purged_upto, options.fail_on_data_loss)
                continue
            first, last, body, deltas, _ = piece
            places = b"" if deltas is None else array("i", deltas).tobytes()
            said = {"first": first, "last": last, "bytes": len(body), "deltas": len(places) // 4, "more": True}
            yield said, body + places if places else body
        yield {}, b""

    def _on_lost(self, request: Given) -> Given:
        options, span = read_options(request["options"]), msgspec.convert(request["span"], Span)
        hole = Hole(request["first"], request["last"], request["reason"])
        plan.report(span.root, hole, span.purged_upto, options.fail_on_data_loss)
        return {}


def python_reads(options: ReadOptions, schema: StructType | None = None) -> str | None:
    """Why the Python reader is to serve; None if the one in Spark's process can. Malformed if that alone may."""
    if options.reader == PYTHON:
        return 'option "reader" says so'
    why = None
    if options.table != MESSAGES:
        why = f'table "{options.table}"'
    elif options.typed:
        why = 'option "typed"'
    elif schema is not None and is_typed(schema):
        why = "a column of what payloads say"
    elif options.columns:
        why = 'option "columns"'
    elif options.lake is not None:
        why = 'option "lake"'
    if why is not None and options.reader == JVM:
        raise Malformed(f'option "reader" is "{JVM}", and {why} is for the Python reader; leave out one of them')
    return why


def _of_cluster(request: Given) -> ReadOptions:
    """Options of a read that is cut for so many cores."""
    return msgspec.structs.replace(read_options(request["options"]), cores=request.get("cores"))


def pattern_of(filter: str) -> str:
    """The topics that a filter matches, as a regular expression of Python and Java alike (DOTALL, the whole topic)."""
    if not is_wild(filter):
        return re.escape(filter)
    levels = filter.split("/")
    is_open = levels[-1] == "#"
    said = "/".join("[^/]*" if level == "+" else re.escape(level) for level in levels[: -1 if is_open else None])
    if is_open:
        said = f"{said}(?:/.*)?" if len(levels) > 1 else ".*"
    return said if filter[0] not in "+#" else rf"(?!\$){said}"


def pattern_of_topics(filters: Sequence[str], conditions: Conditions) -> str:
    """The same, of topics that conditions leave."""
    found = ""
    for condition in conditions.on("topic"):
        values = [condition.value] if isinstance(condition.value, str) else condition.value
        said = "|".join(map(re.escape, values))
        found += f"(?=(?:{said}){'' if condition.test == 'starts' else ENDS_HERE})"
    any_of = [pattern_of(one) for one in filters]
    return found + (any_of[0] if len(any_of) == 1 else f"(?:{'|'.join(any_of)})")


def _stated(partitions: Any, options: ReadOptions, conditions: Conditions) -> list[Given]:
    """Partitions as they travel to tasks."""
    topics = pattern_of_topics(options.topics.filters, conditions)
    found: list[SpansPartition] = list(partitions)
    return [
        {"topics": topics, "now_us": one.now_us, "spans": [_span(span, options) for span in one.spans]} for one in found
    ]


def _purge(purge: Purge) -> Given:
    key = None if purge.key is None else b64encode(purge.key).decode()
    return {"topics": pattern_of(purge.filter), "upto": purge.upto, "key": key}


def _span(span: Span, options: ReadOptions) -> Given:
    return {
        "root": span.root,
        "first": span.first,
        "last": span.last,
        "folder": options.data and f"{options.data}/{folders.STREAMS}/{span.stream}",
        "base": span.base,
        "position": span.position,
        "purged_upto": span.purged_upto,
        "purges": [_purge(purge) for purge in span.purges],
        "span": span,
    }


def serve(asked: BinaryIO, answered: BinaryIO | Stdout) -> None:
    """Answer requests until there are no more."""
    planner = Planner()
    for line in asked:
        try:
            for said, data in planner.answers(msgspec.json.decode(line)):
                answered.write(msgspec.json.encode(said) + b"\n" + data)
                if not said.get("more"):
                    answered.flush()
        except Exception as error:  # whoever asked is told, whatever it is
            told = "".join(traceback.format_exception(error))
            answered.write(msgspec.json.encode({"error": told}) + b"\n")
            answered.flush()
    for _ in planner.answers({"ask": "stop"}):
        pass


def main() -> None:
    """Answer on stdout, to which nobody else is to write."""
    answered = Stdout()
    sys.stdout = sys.stderr
    try:
        serve(sys.stdin.buffer, answered)
    except (BrokenPipeError, KeyboardInterrupt):
        pass  # who asked has gone


if __name__ == "__main__":
    main()
