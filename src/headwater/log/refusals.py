"""Refusals: who is told that a publish was not stored, and what a producer may send after that.

Promises: each part of a call is refused at most once; a producer whose publish was refused sends that again before any
later one, so that its order stays; and what may be stored, since the disk failed under it, is never refused for sure.
"""

from __future__ import annotations

from collections.abc import Sequence

from headwater import threads
from headwater.config import Config
from headwater.errors import Conflict, Failed, HeadwaterError, ReadOnly
from headwater.log.pools import Pools
from headwater.log.publish import Part, Publish
from headwater.log.root import UNCOUNTED
from headwater.store.batch import ONCE


class Refusals:
    """What was refused, as far as it says what comes next."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._broken: dict[tuple[str, str], int] = {}
        """By root and producer: a sequence that failed; later ones are refused until it has been sent again."""
        shares = (config.producers_per_client_max, config.producers_max)
        self._broken_of: Pools[tuple[str, str]] = Pools(*shares)
        self._noting = threads.Lock()
        """Held while either of them changes."""
        self._unsure: Pools[tuple[str, str | None, int]] = Pools(*shares)
        """Root, producer and sequence of what may be stored or not, as the disk failed."""

    def refuse(self, item: Publish, error: HeadwaterError) -> None:
        """Refuse what has not been refused of a call; messages that were stored before keep their receipts."""
        if item.producer is not None:
            error = self._as_unsure(item, error)
        done = [positions for positions, *_ in item.runs] if len(item.parts) > 1 else []
        known = {part.root for part, _ in item.refusals}
        others = [
            (part, error)
            for part in item.parts
            if part.root not in known and not any(part.positions is positions for positions in done)
        ]
        item.refusals = (*item.refusals, *others)
        self.note_all(item)
        item.finish(item.outcome() if done else error)

    def _as_unsure(self, item: Publish, error: HeadwaterError) -> HeadwaterError:
        """The error to refuse a producer's call with: one that may be stored since the disk failed under it is not
        refused for sure when it comes again, as the next start may find it."""
        names = [(part.root, item.producer, item.sequence) for part in item.parts]
        if isinstance(error, Failed):
            for name in names:
                self._unsure.use(name, item.owner)
        elif isinstance(error, ReadOnly) and any(name in self._unsure for name in names):
            return Failed(f"{error.args[0]}; it may be stored or not, as the disk failed when it came before")
        return error

    def note_all(self, item: Publish) -> None:
        """Remember what was refused of a producer's call."""
        if item.producer is None or item.producer.startswith(UNCOUNTED) or item.flags & ONCE:
            return
        for part, error in item.refusals:
            if error.code != 409:
                self.note(part.root, item.producer, item.sequence, item.owner)

    def note(self, root: str, producer: str, sequence: int, owner: str = "") -> None:
        """A producer's publish was refused: what it sent after that is refused too, to keep their order. From any
        thread."""
        if len(root) > self._config.root_bytes_max or len(producer) > 2 * self._config.producer_bytes_max:
            return  # nothing of it can ever be stored
        key = (root, producer)
        with self._noting:
            for other in self._broken_of.use(key, owner):
                self._broken.pop(other, None)
            self._broken[key] = min(sequence, self._broken.get(key, sequence))

    def check_order(self, item: Publish, parts: Sequence[Part]) -> None:
        """A producer whose publish failed sends that one again before any later one."""
        for part in parts:
            key = (part.root, item.producer or "")
            broken = self._broken.get(key)
            if broken is None:
                continue
            if item.sequence > broken:
                raise Conflict(
                    f'sequence {broken} of producer "{item.producer}" failed, so {item.sequence} is refused to keep '
                    f"their order; send {broken} again first"
                )
            if item.sequence == broken:
                with self._noting:
                    self._broken.pop(key, None)
                    self._broken_of.forget(key)

    def drop_root(self, name: str) -> None:
        """A root was removed."""
        for key in [key for key in self._broken if key[0] == name]:
            self._broken.pop(key, None)
