"""What the columns are called that messages have by the schemas of their topics (`values` makes them), and how a data
file is named to those who read it."""

from __future__ import annotations

VALUE, MISFIT = "value", "misfit"

FilePlace = tuple[str, tuple[str, ...]]
"""The path of a data file, and those of the files that say which of its rows are deleted."""
