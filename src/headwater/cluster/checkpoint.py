"""The checkpoint: up to which record a node's folder is on disk, in a row of its own state that no record has.

Promises: the row is written when all that it speaks of is durable; after a crash the streams are cut to it, and the
records behind it are applied again. Of what these change, the state may have any part already: rows are put and deleted
as a whole, so once is as good as twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import msgspec

from headwater import threads
from headwater.cluster.record import Position
from headwater.errors import Damaged, Failed
from headwater.store import state as rows
from headwater.store.mirror import Gone, Mirror, StreamPlace
from headwater.store.state import State

WRITTEN = rows.NODE + b"r"
"""Where the position of the last record is that was carried out, whether or not it has rows."""
LOCAL = (rows.CHAIN, rows.LOSS, rows.NODE)
"""Kinds of rows that are each node's own."""


class Synced(msgspec.Struct, frozen=True, array_like=True):
    """What is on disk."""

    position: Position = Position()
    places: list[StreamPlace] = []
    gone: list[Gone] = []


_decode = msgspec.msgpack.Decoder(Synced).decode


def read(state: State, folder: str) -> Synced:
    """What is on disk of a folder."""
    value = state.get(rows.NODE)
    if value is None:
        raise Damaged(f'"{folder}" does not say up to where it is on disk; remove it, so that it takes a copy')
    try:
        return _decode(value)
    except msgspec.DecodeError as error:
        raise Damaged(f'"{folder}" says up to where it is on disk in a way that cannot be read ({error})') from error


def with_position(changed: Mapping[bytes, bytes | None], position: Position) -> dict[bytes, bytes | None]:
    """Rows of a record, if it has any, with the one that says that it was carried out."""
    return {**changed, WRITTEN: rows.pack(position)}


def written(state: State, folder: str) -> Position:
    """The last record that was carried out: behind the checkpoint, if a crash has left more than that."""
    value = state.get(WRITTEN)
    try:
        return Position() if value is None else msgspec.msgpack.decode(value, type=Position)
    except msgspec.DecodeError as error:
        raise Damaged(f'"{folder}" says which rows it has in a way that cannot be read ({error})') from error


def write(state: State, synced: Synced) -> None:
    """Say so, durably."""
    state.commit({rows.NODE: rows.pack(synced)})


class Checkpoints:
    """Those of one folder that is written to."""

    def __init__(self, state: State, between: threads.RLock, position: Callable[[], Position], synced: Synced) -> None:
        """`between` is held while a record is carried out, after which `position` is another."""
        self._state = state
        self.synced = synced.position
        """The last record that is on disk."""
        self._between = between
        self._position = position
        self._making = threads.RLock()
        """Held while one is made; taken before `between`, by whoever needs both."""
        self._failed = ""

    @contextmanager
    def standing(self) -> Iterator[None]:
        """While nothing is carried out, so that a checkpoint that is made now is of all there is."""
        with self._making, self._between:
            yield

    def make(self, streams: Mirror) -> Position:
        """Bring to disk what is here by now, and say so; by any thread, while more is carried out."""
        with self._making:
            if self._failed:
                raise Failed(self._failed)
            with self._between:
                position = self._position()
                places, gone, dirty = streams.begin_sync()
            try:
                streams.finish_sync(dirty)
                write(self._state, Synced(position, places, gone))
            except BaseException as error:
                # The kernel may have let go of what it could not write: no later sync proves anything.
                self._failed = f"the folder cannot be brought to disk any more ({error}); start the node again"
                raise
            self.synced = position
            return position
