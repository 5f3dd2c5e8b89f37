"""The lake as a log's history: `bus.replay` and `bus.follow` read there what retention has deleted.

It needs pyiceberg and pyarrow, not Spark, and loads them when a reading first reaches back that far. What it promises
is what `delivery/history.py` says, also while an archive goes on: each stretch is planned with the lake as it is by
then, and planned anew from where it is when a compaction has taken a file away.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from headwater import threads
from headwater.delivery.history import Lot, Stretch, Wanted
from headwater.errors import Conflict, Failed, HeadwaterError, Malformed, NotFound
from headwater.store.log import Hole

if TYPE_CHECKING:
    from headwater.lake.lake import Archived, Lake

PLANS_MAX = 5
"""Plans in a row that may come to nothing because files vanish."""
CATALOG_FILE = "catalog.sqlite"
OWNER = (
    "select property_value from iceberg_namespace_properties where namespace = 'headwater' "
    "and property_key = 'headwater.bus'"
)


class LakeHistory:
    """What a lake keeps of one bus."""

    def __init__(self, where: str, bus_id: str, end_of: Callable[[str], int] | None) -> None:
        """`end_of` tells how far the log of a root goes; None if that is known only as of the last look at it."""
        self.where = where
        self._bus_id = bus_id
        self._end_of = end_of
        self._lake: Lake | None = None
        self._opening = threads.Lock()

    def check(self) -> None:
        """What can be told before it is opened: that it can be read, and whose it is."""
        missing = [name for name in ("pyarrow", "pyiceberg") if find_spec(name) is None]
        if missing:
            raise Malformed(f"a lake is read with {' and '.join(missing)}: pip install 'headwater[lake]'")
        owner = _owner_of(self.where)
        if owner is not None and owner != self._bus_id:
            raise Conflict(
                f'the lake "{self.where}" belongs to another bus (id {owner}; this one is {self._bus_id}); '
                "use the lake of this bus"
            )

    def read(self, stretch: Stretch, wanted: Wanted, columns: Sequence[str] | None = None) -> Iterator[Lot | Hole]:
        """The messages of a stretch, and a hole before or after them where the lake has not got it."""
        try:
            yield from self._read(stretch, wanted, columns)
        except (HeadwaterError, GeneratorExit):
            raise
        except Exception as error:
            raise Failed(
                f'the lake "{self.where}" cannot be read ({type(error).__name__}: {error}); the next read tries again'
            ) from error

    def _read(self, stretch: Stretch, wanted: Wanted, columns: Sequence[str] | None) -> Iterator[Lot | Hole]:
        from headwater.lake.scan import first_since, lots

        position, plans = stretch.first, 0
        is_begun = stretch.since_us is None
        while position <= stretch.last:
            try:
                archived = self._archived(stretch)
                if archived is None:
                    if is_begun:
                        yield Hole(position, stretch.last, stretch.reason)
                    return
                last = min(stretch.last, archived.upto)
                if not is_begun:
                    since = first_since(archived, stretch.since_us or 0, stretch.last + 1)
                    position = max(position, archived.first, since)
                    is_begun = True
                elif position < archived.first:
                    yield Hole(position, min(stretch.last, archived.first - 1), stretch.reason)
                    position = archived.first
                for lot in lots(stretch.root, archived.between(position, last), position, last, wanted, columns):
                    position, plans = lot.upto + 1, 0
                    yield lot
            except FileNotFoundError as error:
                plans += 1
                if plans == PLANS_MAX:
                    raise Failed(f'a file of the lake "{self.where}" is missing: {error}') from error
                continue
            position = max(position, last + 1)
            if position <= stretch.last:
                yield Hole(position, stretch.last, stretch.reason)
                return

    def _archived(self, stretch: Stretch) -> Archived | None:
        """What the lake has of a root; None if that is nothing."""
        from headwater.lake.lake import archived_in

        try:
            archived = archived_in(self._open().table(stretch.root), stretch.root)
        except NotFound:
            return None
        end = archived.upto if self._end_of is None else self._end_of(stretch.root)
        if archived.upto > end:
            raise Conflict(
                f'the lake has "{stretch.root}" up to {archived.upto}, and the log ends at {end}: it was restored from '
                "an older backup, and new messages repeat offsets; use a new lake for it"
            )
        return archived if archived.upto else None

    def _open(self) -> Lake:
        with self._opening:
            if self._lake is None:
                from headwater.lake.lake import existing_lake

                lake = existing_lake(self.where)
                lake.check(self._bus_id)
                self._lake = lake
            return self._lake


def _owner_of(where: str) -> str | None:
    """The bus whose lake it is, by its catalog; None if that cannot be told yet."""
    path = Path(where).absolute() / CATALOG_FILE
    try:
        with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as catalog:
            found = catalog.execute(OWNER).fetchone()
    except sqlite3.Error:
        return None  # there is none, or it is in use: whoever opens it later finds out
    return None if found is None else str(found[0])
