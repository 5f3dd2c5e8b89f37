"""Keeps pandas out of commands that have no use for it: pyarrow loads it where it is there, for a look at its types.

It takes a quarter of the time until `headwater sql` has its first answer.
"""

from __future__ import annotations

import sys

WITHOUT_PANDAS = ("sql",)


class _NoPandas:
    """A finder that finds no pandas, and leaves everything else to others."""

    @staticmethod
    def find_spec(name: str, *_: object) -> None:
        if name == "pandas":
            raise ModuleNotFoundError("this command goes without pandas", name=name)


def leave_out(arguments: list[str]) -> None:
    """Have the command that is asked for go without what it does not need. For a process that is nothing else."""
    if arguments[:1] and arguments[0] in WITHOUT_PANDAS:
        sys.meta_path.insert(0, _NoPandas)
