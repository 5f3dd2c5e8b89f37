"""What the columns are called that messages have by the schemas of their topics (`values` makes them), and what is
needed to read a data file. It loads nothing: plans and tasks name these, with a lake or without."""

from __future__ import annotations

import msgspec

VALUE, MISFIT = "value", "misfit"

FilePlace = tuple[str, tuple[str, ...]]
"""The path of a data file, and those of the files that say which of its rows are deleted."""


class Store(msgspec.Struct, frozen=True):
    """What opens a store."""

    properties: dict[str, str] = {}

    def __repr__(self) -> str:
        return "Store(…)"  # there are secrets in it
