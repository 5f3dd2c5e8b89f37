"""Retention in the lake: how long it keeps the messages of a root, by whole data files, which have a day each.

What goes is always the beginning: files whose offsets are all below those of every file that stays for its age. So one
device whose clock is wrong neither takes what is new with it nor, where its time is far ahead, keeps what is old. Where
the archive begins afterwards stands in the same commit, and readers go by that.
"""

from __future__ import annotations

from pyiceberg.table import Table, Transaction
from pyiceberg.table.update.snapshot import UpdateSnapshot

from headwater.clock import SECOND_US
from headwater.config import Retention
from headwater.lake.lake import ARCHIVED, FIRST, Archived, LakeFile, archived_in, commit, data_files

AHEAD_US = 86_400 * SECOND_US
"""A message that is further ahead than this says nothing about the age of its file."""


def beyond(archived: Archived, rule: Retention, now_us: int) -> list[LakeFile]:
    """The data files that a rule allows to delete."""
    found: list[LakeFile] = []
    if rule.lake_age_s:
        horizon_us = now_us - round(rule.lake_age_s * SECOND_US)
        staying = [file.first for file in archived.files if horizon_us <= file.newest_us <= now_us + AHEAD_US]
        before = min(staying, default=archived.upto + 1)
        found = [file for file in archived.files if file.last < before]
    if rule.lake_bytes:
        left = sum(file.bytes for file in archived.files)
        for file in sorted(archived.files, key=lambda file: file.last):
            if left <= rule.lake_bytes:
                break
            left -= file.bytes
            if file not in found:
                found.append(file)
    return found


def delete(table: Table, root: str, files: list[LakeFile]) -> None:
    """Delete data files, and have the archive of a root begin behind them; `files.sweep` removes them later."""
    archived, paths = archived_in(table, root), {file.path for file in files}
    gone = [file for file in data_files(table) if file.file_path in paths]
    first = max(archived.first, *(file.last + 1 for file in files))

    def change(transaction: Transaction, snapshot: UpdateSnapshot) -> None:
        transaction.set_properties({FIRST: str(first)})
        with snapshot.overwrite() as producer:
            for file in gone:
                producer.delete_data_file(file)

    commit(table, {ARCHIVED: str(archived.upto), "headwater.retention": "true"}, change, f'the table of "{root}"')
