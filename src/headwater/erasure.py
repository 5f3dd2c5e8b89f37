"""Erasure: what a bus has of one key is shown to nobody any more, and removed where it is more than a line of the log.

Promises: once `erase` has answered, nobody who reads, subscribes or replays is handed a message of that key that was
published before, in a lake neither; that holds after any crash. What it answers was counted just before.

| what                        | is gone                                                                     |
|-----------------------------|-----------------------------------------------------------------------------|
| messages of the log         | hidden at once, by a purge; their bytes go with their segment, by retention |
| retained values             | at once                                                                     |
| dead letters                | at once; what was published on `$dead` as the log                           |
| delayed messages            | at once; their bytes with the segment of `$delayed`                         |
| what subscriptions retry    | hidden at once, and dropped when it would be tried again                    |
| the lake                    | hidden at once; the archive removes it                                      |

The purge keeps the key as long as it has something to hide. The audit does not name it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

from headwater.audit import Audit
from headwater.config import Config
from headwater.delivery import rows as stored
from headwater.delivery.dead_letters import DeadLetters
from headwater.delivery.dispatcher import Dispatcher
from headwater.delivery.rows import COPIES, CopyRow, RowCommit, decode_waiting
from headwater.errors import Malformed, TooLarge
from headwater.log import delays
from headwater.log.root import LETTERS, Root
from headwater.log.roots import STAGED, Roots
from headwater.message import Erased, Message
from headwater.pacing import Pacing
from headwater.store import state as rows
from headwater.store.log import Hole
from headwater.store.state import Rows, State
from headwater.topics.name import check_filter, filter_covers_root, matches

READ_BYTES = 4 << 20
"""How much of the log is looked at at once."""
LETTERS_READ = 1000
"""Dead letters that are in memory at one time."""
UNBOUNDED = 1 << 62
"""Beyond every offset."""


class Erasure:
    """Finds what a bus has of a key, and removes it."""

    def __init__(
        self,
        roots: Roots,
        dispatcher: Dispatcher,
        dead_letters: DeadLetters,
        state: State,
        commit: RowCommit,
        config: Config,
        audit: Audit,
        unarchived_from: Callable[[str, int], int],
    ) -> None:
        self._roots = roots
        self._dispatcher = dispatcher
        self._dead_letters = dead_letters
        self._state = state
        self._rows = commit
        self._config = config
        self._audit = audit
        self._unarchived_from = unarchived_from

    def erase(self, key: bytes | str, filter: str = "#", *, dry_run: bool = False) -> Erased:
        """Remove what there is of a key below a filter; with `dry_run` only say what that is."""
        check_filter(filter, self._config)
        wanted = self._key(key)
        counted: Counter[str] = Counter()
        for root in self._covered(filter):
            count = self._count(root, wanted, self._filter_of(root, filter))
            if count:
                counted[root.name] = count
        retained = sum(
            len(root.retained.of_key(wanted, self._filter_of(root, filter))) for root in self._covered(filter)
        )
        letters, delayed = list(self._letters(wanted, filter)), self._delayed(wanted, filter)
        states = sum(self._states(number, wanted, filter) for _, number in self._subscriptions())
        if not dry_run:
            self._roots.commit.run(lambda: self._hide(wanted, filter))
            for subscription, place in letters:
                self._dead_letters.drop(subscription, [place])
            found = {"messages": counted.total(), "retained": retained, "dead_letters": len(letters)}
            self._audit.note("erased", filter, None, found)
        return Erased(dict(counted), retained, len(letters), len(delayed), states)

    def _key(self, key: object) -> bytes:
        found = key.encode() if isinstance(key, str) else key
        if not isinstance(found, bytes):
            raise Malformed(f"the key is of type {type(key).__name__}; use bytes or a str")
        if len(found) > self._config.key_bytes_max:
            raise TooLarge(f"a key of {len(found)} bytes is over key_bytes_max ({self._config.key_bytes_max})")
        return found

    # What there is

    def _covered(self, filter: str) -> list[Root]:
        """The roots that may have messages of a key, and the copies of those on which it was given up."""
        return [
            root
            for root in self._roots.all()
            if (filter_covers_root(filter, root.name) or root.name == LETTERS)
            and root.name not in (delays.ROOT, STAGED)
        ]

    @staticmethod
    def _filter_of(root: Root, filter: str) -> str:
        """Dead letters were published under the names of their subscriptions."""
        return f"{LETTERS}/#" if root.name == LETTERS else filter

    def _count(self, root: Root, key: bytes, filter: str) -> int:
        stream, pacing, count = root.stream, Pacing(), 0
        position, durable = stream.first_offset, stream.durable
        while position <= durable:
            found = stream.read(position, READ_BYTES)
            if not found:
                break
            for one in found:
                if isinstance(one, Hole):
                    position = one.last + 1
                    continue
                position = one.last_offset + 1
                body = one.body
                keys = body.keys if key in body.data else None
                if keys is not None and key in keys:
                    offsets = [place for place, other in enumerate(keys) if other == key]
                    for place, topic in zip(offsets, body.topics_at(offsets), strict=True):
                        offset = one.first_offset + place
                        count += matches(filter, topic) and not root.purges.hides(topic, offset, key)
            pacing.take()
        return count

    def _subscriptions(self) -> Iterator[tuple[str, int]]:
        """The id and the number of each, and of those that went and left letters."""
        for info in self._dispatcher.listing.infos(None, None, lambda _id, _filter: True):
            row = self._dispatcher.row(info.id)
            if row is not None:
                yield info.id, row.number
        for kept in stored.all_kept(self._state):
            if self._dispatcher.row(kept.id) is None:
                yield kept.id, kept.number

    def _letters(self, key: bytes, filter: str) -> Iterator[tuple[str, tuple[str, int]]]:
        """The dead letters of a key: their subscription, root and offset."""
        for subscription, _ in list(self._subscriptions()):
            after: tuple[str, int] | None = None
            while page := self._dead_letters.all(subscription, after, LETTERS_READ):
                for letter in page:
                    after = (letter.topic.partition("/")[0], letter.offset)
                    if letter.key == key and matches(filter, letter.topic):
                        yield subscription, after

    def _delayed(self, key: bytes, filter: str) -> list[bytes]:
        """The rows of delayed messages of a key."""
        root = self._roots.get(delays.ROOT)
        found = []
        for row, _ in self._state.scan(rows.DELAYED) if root is not None else ():
            message = None if root is None else _at(root, rows.offset_in(row))
            if message is not None and message.key == key and matches(filter, delays.unwrap(message)[0]):
                found.append(row)
        return found

    def _states(self, number: int, key: bytes, filter: str) -> int:
        """How many messages of a key a subscription has tried in vain."""
        streams = {root.stream.number: root for root in self._roots.all()}
        count = 0
        for row, _ in self._state.scan(rows.key_u32(rows.FAILURE, number)):
            lane, offset = rows.pair_in(row)[1], rows.offset_in(row)
            root = streams.get(lane & ~COPIES)
            message: Message | CopyRow | None = None
            if lane & COPIES:
                value = self._state.get(rows.key_message(rows.COPY, number, lane & ~COPIES, offset))
                waiting = None if value is None else decode_waiting(value)
                message = waiting if isinstance(waiting, CopyRow) else None
            elif root is not None:
                message = _at(root, offset)
            count += message is not None and message.key == key and matches(filter, message.topic)
        return count

    # Removing it

    def _hide(self, key: bytes, filter: str) -> None:
        """In the committing role: one write, after which nobody is handed any of it."""
        self._roots.checkpoints.make()
        for root in self._roots.all():
            root.is_archived = self._unarchived_from(root.name, UNBOUNDED) < UNBOUNDED
        covered = [
            (root, named, root.joined(named, root.stream.durable, key))
            for root in self._covered(filter)
            for named in (self._filter_of(root, filter),)
        ]
        changed: Rows = dict.fromkeys(self._delayed(key, filter))
        for root, named, joined in covered:
            changed.update(root.erase(key, named, joined))
        self._rows.write(changed)
        self._roots.checkpoints.make()


def _at(root: Root, offset: int) -> Message | None:
    """A message of the log; None if it is gone."""
    for found in root.stream.read(offset, 1)[:1]:
        if not isinstance(found, Hole):
            return found.body.messages(found.first_offset, [offset - found.first_offset])[0]
    return None
