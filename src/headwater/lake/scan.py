"""Scanning data files of the lake with Arrow alone: in offset order, some rows at a time, without Spark.

A file has the messages of one day, sorted by offset. Where clocks differ, files of several days share a stretch of
offsets: those that overlap are read side by side, and their rows merged. Only what a few record batches hold is in
memory, however large the files are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.table.deletion_vector import deletion_vectors_from_puffin_file
from pyiceberg.table.puffin import PuffinFile

from headwater.delivery.history import Lot
from headwater.lake.columns import FilePlace
from headwater.lake.lake import Archived, LakeFile
from headwater.lake.purged_rows import without
from headwater.lake.stores import located
from headwater.log.purges import Purges

COLUMNS = ("topic", "offset", "timestamp", "key", "headers", "payload")
ROWS = 2000
"""Rows that are read at once, of all files that overlap together."""
BATCH_ROWS = 10_000
"""The same where no objects are made of them."""
BYTES = 4 << 20
"""About how many bytes they may have, by the average of their row group."""
PAGE_BYTES = 64 << 10
"""How much of a column is read from the disk at once."""

Wanted = Callable[[str], bool]


def scanned(
    place: FilePlace, columns: Sequence[str], first: int, last: int, rows: int = ROWS, size: int = BYTES
) -> Iterator[Any]:
    """Record batches of the rows from one offset to another that are not deleted; each has at most so many rows, and
    about so many bytes.

    FileNotFoundError: a compaction has replaced it, and its grace period is over.
    """
    path, deletes = place
    deleted = deleted_rows(path, deletes)
    filesystem, name = located(path)
    with (
        filesystem.open_input_file(name) as opened,
        pq.ParquetFile(opened, pre_buffer=False, buffer_size=PAGE_BYTES) as file,
    ):
        if not _is_in_order(file):
            found = file.read(columns=list(columns), use_threads=False)
            found = _cut(found if not len(deleted) else found.filter(_all_but(deleted, found.num_rows)), first, last)
            yield from found.sort_by("offset").combine_chunks().to_batches(rows)
            return
        number = file.schema_arrow.names.index("offset")  # no column before it is nested
        row = 0
        for group in range(file.num_row_groups):
            about = file.metadata.row_group(group)
            begin, row = row, row + about.num_rows
            bounds = about.column(number).statistics
            if bounds is not None and bounds.has_min_max and (bounds.max < first or bounds.min > last):
                continue
            fitting = max(1, size * about.num_rows // max(1, about.total_byte_size))
            for batch in file.iter_batches(
                batch_size=min(rows, fitting), row_groups=[group], columns=list(columns), use_threads=False
            ):
                end = begin + batch.num_rows
                gone = deleted[np.searchsorted(deleted, begin) : np.searchsorted(deleted, end)] - begin
                begin = end
                yield _between(batch if not len(gone) else batch.filter(_all_but(gone, batch.num_rows)), first, last)


def deleted_rows(path: str, deletes: Sequence[str]) -> Any:
    """The rows of a data file that others have deleted, by their places in it, in order."""
    found = [np.empty(0, np.int64)]
    for one in deletes:
        filesystem, name = located(one)
        with filesystem.open_input_file(name) as opened:
            if one.endswith(".parquet"):
                rows = pq.read_table(opened, columns=["file_path", "pos"], filters=[("file_path", "==", path)])
                found.append(rows.column("pos").to_numpy())
            else:
                vectors = deletion_vectors_from_puffin_file(PuffinFile(opened.read()))
                found += [one.to_vector().to_numpy() for one in vectors if one.referenced_data_file == path]
    return np.unique(np.concatenate(found))


def _all_but(places: Any, count: int) -> Any:
    kept = np.ones(count, np.bool_)
    kept[places] = False
    return pa.array(kept)


def _between(batch: Any, first: int, last: int) -> Any:
    """Rows are in order, so that a look at the ends tells whether all are wanted."""
    offsets = batch.column("offset")
    if not batch.num_rows or (offsets[0].as_py() >= first and offsets[-1].as_py() <= last):
        return batch
    return _cut(batch, first, last)


def _cut(rows: Any, first: int, last: int) -> Any:
    offsets = rows.column("offset")
    return rows.filter(pc.and_(pc.greater_equal(offsets, first), pc.less_equal(offsets, last)))


def _is_in_order(file: Any) -> bool:
    """Whether a file is sorted by offset: its table may have another order, or another engine has written it anew."""
    offsets = file.read(columns=["offset"], use_threads=False).column("offset").to_numpy()
    return bool((offsets[1:] > offsets[:-1]).all())


def first_since(archived: Archived, time_us: int, otherwise: int) -> int:
    """The first archived offset of a message sent at or after a time."""
    best = otherwise
    moment = pa.scalar(time_us, pa.timestamp("us", tz="UTC"))
    for file in archived.files:
        if file.newest_us >= time_us and file.first < best:
            for batch in scanned(file.place, ("offset", "timestamp"), file.first, best - 1):
                found = batch.filter(pc.greater_equal(batch.column("timestamp"), moment))
                if found.num_rows:
                    best = min(best, found.column("offset")[0].as_py())
                    break
    return best


def in_order(files: Sequence[tuple[int, Iterator[Any]]]) -> Iterator[Any]:
    """The batches of files that are each sorted by offset, in the order of all of them.

    Each file comes with its first offset, and is begun when that is reached.
    """
    waiting = sorted(files, key=lambda file: file[0], reverse=True)
    begun: list[_Rows] = []
    while waiting or begun:
        # Rows can be given out up to the end of the shortest piece at hand, once all files are begun that reach there.
        while waiting and (not begun or waiting[-1][0] <= min(file.upto for file in begun)):
            file = _Rows(waiting.pop()[1])
            if not file.is_over:
                begun.append(file)
        if not begun:
            continue
        upto = min(file.upto for file in begun)
        pieces = [piece for file in begun if (piece := file.take(upto)).num_rows]
        begun = [file for file in begun if not file.is_over]
        if len(pieces) == 1:
            yield pieces[0]
        else:
            yield from pa.Table.from_batches(pieces).sort_by("offset").combine_chunks().to_batches()


class _Rows:
    """A file that is being read: the piece of it that is at hand."""

    def __init__(self, batches: Iterator[Any]) -> None:
        self._batches = batches
        self.is_over = False
        self._advance()

    def _advance(self) -> None:
        for batch in self._batches:
            if batch.num_rows:
                self._rows = batch
                self.upto: int = batch.column("offset")[-1].as_py()
                return
        self.is_over = True

    def take(self, upto: int) -> Any:
        """The rows up to an offset, which is no later than the end of this piece."""
        found = self._rows
        if upto < self.upto:
            count = pc.sum(pc.less_equal(found.column("offset"), upto)).as_py()
            self._rows = found.slice(count)
            return found.slice(0, count)
        self._advance()
        return found


# As messages


class Rows:
    """What a `Lot` is before objects are made of it: a record batch."""

    __slots__ = ("batch", "offsets", "root", "upto")

    def __init__(self, root: str, upto: int, batch: Any) -> None:
        self.root = root
        self.upto = upto
        self.batch = batch
        self.offsets = batch.column("offset")

    @property
    def time_us(self) -> int:
        """When the first of them was sent."""
        return int(self.batch.column("timestamp")[0].value)

    def without(self, purges: Purges) -> Rows:
        """Without messages that were purged."""
        return Rows(self.root, self.upto, without(self.batch, purges))


def lots(
    root: str,
    files: Sequence[LakeFile],
    first: int,
    last: int,
    wanted: Wanted,
    columns: Sequence[str] | None = None,
) -> Iterator[Any]:
    """The messages of a root from one offset to another whose topics are wanted, in order; as `Rows` with `columns`."""
    make = _lot if columns is None else Rows
    needed = COLUMNS if columns is None else tuple(dict.fromkeys((*columns, "topic", "offset", "timestamp", "key")))
    rows = max(1, (ROWS if columns is None else BATCH_ROWS) // _overlapping(files))
    for batch in in_order([(file.first, scanned(file.place, needed, first, last, rows)) for file in files]):
        yield make(root, batch.column("offset")[-1].as_py(), _wanted_rows(batch, wanted))


def _overlapping(files: Sequence[LakeFile]) -> int:
    """How many files share an offset, at most."""
    edges = sorted([(file.first, 1) for file in files] + [(file.last + 1, -1) for file in files])
    most = count = 0
    for _, step in edges:
        count += step
        most = max(most, count)
    return max(1, most)


def _wanted_rows(batch: Any, wanted: Wanted) -> Any:
    topics = batch.column("topic").dictionary_encode()
    wants = [wanted(name) for name in topics.dictionary.to_pylist()]
    return batch if all(wants) else batch.filter(pc.take(pa.array(wants, pa.bool_()), topics.indices))


def _lot(root: str, upto: int, rows: Any) -> Lot:
    if not rows.num_rows:
        return Lot(root, upto)
    topics = rows.column("topic").dictionary_encode()
    names = topics.dictionary.to_pylist()
    return Lot(
        root,
        upto,
        rows.column("offset").to_pylist(),
        [names[place] for place in topics.indices.to_pylist()],
        rows.column("payload").to_pylist(),
        rows.column("timestamp").cast(pa.int64()).to_pylist(),
        rows.column("key").to_pylist(),
        [tuple(pairs or ()) for pairs in rows.column("headers").to_pylist()],
    )
