"""Topics as one table from the first archived message to the newest: `headwater.spark.table`.

History is scanned by Spark's own Parquet reader, the rest of it, after the archived offset, through the source. Both
ends are looked up once, when the table is made: it is the state of that moment, however often it is read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from functools import reduce
from typing import TYPE_CHECKING, Any

import msgspec

from headwater.errors import Malformed
from headwater.lake.carried_purges import left_of
from headwater.lake.lake import Archived, LakeFile, existing_lake
from headwater.log.purges import Purge
from headwater.spark.crossing import check_restored
from headwater.spark.options import MESSAGES, read_options
from headwater.spark.reading import open_log
from headwater.spark.source import COLUMNS
from headwater.spark.spans import Span
from headwater.spark.stores import reaches, read_natively, read_spans
from headwater.spark.topics import Topics
from headwater.topics.name import filter_covers_root

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SCHEMA = ", ".join(f"{name} {kind}" for name, kind in COLUMNS[MESSAGES].items())


def table(
    spark: SparkSession,
    topics: str = "#",
    *,
    lake: str,
    data: str | None = None,
    url: str | None = None,
    fail_on_data_loss: bool = True,
) -> DataFrame:
    """The messages of these topics, archived and live, up to this moment.

    It reads the files that the lake has now and the log after them. Make a new one to see what came since; one that is
    older than the grace period of the archive may find its files compacted away.
    """
    if (data is None) == (url is None):
        raise Malformed("say where the messages are: data=FOLDER or url=URL, one of them")
    source = {"data": data} if data is not None else {"url": str(url)}
    return table_of(spark, {**source, "topics": topics, "failOnDataLoss": str(fail_on_data_loss).lower()}, lake)


def table_of(
    spark: SparkSession, source: dict[str, str], lake: str, is_wanted: Callable[[str, LakeFile], bool] | None = None
) -> DataFrame:
    """`table`, by the options of the source; without those files that are not wanted."""
    options = read_options(source)
    topics = options.topics
    opened = existing_lake(lake)
    # The lake is looked at before the log: what is archived in between is then still read from the log.
    archived = {root: known for one in topics.asked for root, known in opened.archived(one).items()}
    starts: dict[str, int] = {}
    ends: dict[str, int] = {}
    purges: dict[str, tuple[Purge, ...]] = {}
    with closing(open_log(options)) as log:
        opened.check(log.bus_id)
        for extent in log.extents(topics):
            known = archived.get(extent.root)
            if known is not None:
                check_restored(extent, known)
                purges[extent.root] = left_of(log.purges(extent.root), known.purged)
            first = known.upto + 1 if known is not None and known.upto else extent.first
            starts[extent.root], ends[extent.root] = first, extent.end
    parts: list[DataFrame] = []
    for root, known in archived.items():
        files = [file for file in known.files if is_wanted is None or is_wanted(root, file)]
        scans = _scans(spark, known, files, purges.get(root, ()))
        parts += scans if topics.is_everything_of(root) else (one.where(topics_match(topics, root)) for one in scans)
    if any(starts[root] < ends[root] for root in starts) or not parts:
        # With the lake: what is archived, and deleted from the log, before it is read is then read from there.
        reader = spark.read.format("headwater").options(**source, lake=lake)
        parts.append(reader.options(startingOffsets=offsets_json(starts), endingOffsets=offsets_json(ends)).load())
    return reduce(lambda one, other: one.unionByName(other), parts)


def topics_match(topics: Topics, root: str) -> str:
    """A condition in SQL that holds for the topics of a root that are wanted."""
    return " or ".join(topic_matches(one) for one in topics.filters if filter_covers_root(one, root))


def _scans(
    spark: SparkSession, known: Archived, files: Sequence[LakeFile], purges: tuple[Purge, ...]
) -> Iterator[DataFrame]:
    """The rows of data files that are to be seen: Spark reads them by itself, but for files in which it would see what
    was purged or deleted, or what the lake's retention has left behind."""
    upto = max((purge.upto for purge in purges), default=0)
    is_far = bool(files) and not reaches(spark, files[0].path)
    ours = [file for file in files if is_far or file.deletes or file.first <= upto or file.first < known.first]
    theirs = [file.path for file in files if file not in ours]
    if theirs:
        yield read_natively(spark, theirs, SCHEMA, known.store)
    if ours:
        told: dict[str, Any] = {"purges": purges, "store": known.store}
        spans = [Span(known.root, max(one.first, known.first), one.last, files=(one.place,), **told) for one in ours]
        yield read_spans(spark, spans, SCHEMA)


def topic_matches(topics: str) -> str:
    """A condition in SQL that holds for the topics that a filter matches; the root is right already."""
    pattern = "/".join("[^/]*" if level == "+" else _literal(level) for level in topics.split("/"))
    if topics == "#":
        pattern = ".*"
    elif topics.endswith("/#"):
        pattern = pattern.removesuffix("/" + _literal("#")) + "(/.*)?"
    return f"topic rlike {_sql(f'(?s)^{pattern}$')}"


def _literal(level: str) -> str:
    return "".join(char if char.isalnum() else f"\\x{{{ord(char):x}}}" for char in level)


def _sql(text: str) -> str:
    return "'" + re.sub(r"(['\\])", r"\\\1", text) + "'"


def offsets_json(offsets: dict[str, int]) -> str:
    """Offsets by root, as the options of the source take them."""
    return msgspec.json.encode(offsets).decode()
