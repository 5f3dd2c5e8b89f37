"""Which rows of Arrow were purged: what everybody asks who reads messages as columns, be they of the log or a lake."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headwater.log.purges import Purges


def without(rows: Any, purges: Purges) -> Any:
    """The rows of a lake, in the order of their offsets, that were not purged."""
    offsets = rows.column("offset")
    if not len(offsets) or purges.highest < offsets[0].as_py():
        return rows
    topics = rows.column("topic").dictionary_encode()
    names, index = topics.dictionary.to_pylist(), topics.indices.to_numpy(zero_copy_only=False)
    numbers = offsets.to_numpy(zero_copy_only=False)
    kept = numbers > np.array(purges.uptos(names), np.int64)[index]
    spared = spared_by_key(purges, names, index, numbers, rows.column("key") if purges.keys else None)
    return rows.filter(pa.array(kept if spared is None else kept & spared))


def spared_by_key(purges: Purges, names: Sequence[str], index: Any, offsets: Any, keys: Any) -> Any:
    """Which messages were not purged by their keys; None if none of them was."""
    if keys is None or not len(offsets) or purges.highest_of_keys < offsets[0]:
        return None
    asked = pc.is_in(keys.cast(pa.binary()), value_set=pa.array(list(purges.keys), pa.binary()))
    places = np.flatnonzero(asked.to_numpy(zero_copy_only=False))
    found = zip(places, offsets[places].tolist(), keys.take(pa.array(places)).to_pylist(), strict=True)
    gone = [place for place, offset, key in found if purges.hides_key(names[index[place]], offset, key)]
    if not gone:
        return None
    spared = np.ones(len(offsets), np.bool_)
    spared[gone] = False
    return spared
