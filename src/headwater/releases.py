"""Releases: delayed messages that are due, on their way to their topics.

They are released some at a time, and between two goes the timers ring for everybody else. Promises: what fails is tried
again, and keeps nobody else's waiting; a message that begins to wait behind the time that was looked at is found; each
append takes the row that made its message wait, so that none is released twice.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from itertools import takewhile

from headwater import threads
from headwater.clock import SECOND_US, Clock
from headwater.delivery.timers import Timers
from headwater.errors import HeadwaterError, NotAllowed, SchemaMismatch, TooLarge
from headwater.events import Events
from headwater.log import delays
from headwater.log.checks import Checks
from headwater.log.publish import Part, Publish
from headwater.log.root import Root
from headwater.log.roots import Roots
from headwater.store import state as rows
from headwater.store.log import Hole
from headwater.store.state import State

AGAIN_US = 5 * SECOND_US
"""How long a message that could not be published waits before the next try."""
AGAIN_MAX = 100
"""Of these, how many are tried again in one go, before those whose time has come since."""
FAILED_MAX = 100_000
"""Messages that failed of which each is remembered; with more, the earliest are looked at again when these are done."""
LOOK_US_MAX = 60 * SECOND_US
"""How long nothing is looked at: the wall clock may be corrected meanwhile."""

Due = list[tuple[bytes, int]]
"""Rows, and offsets in `$delayed`."""


class Releases:
    """Those of one bus; in the timers' thread, but for what says otherwise."""

    def __init__(
        self,
        roots: Roots,
        checks: Checks,
        state: State,
        timers: Timers,
        clock: Clock,
        events: Events,
        check_release: Callable[[str, Part], bool],
    ) -> None:
        self._roots = roots
        self._checks = checks
        self._state = state
        self._timers = timers
        self._clock = clock
        self._events = events
        self._check_release = check_release
        """Whether it is known what a client may publish; raises what keeps it from publishing something."""
        self._lock = threads.Lock()
        """Guards what is said of those that have begun to wait."""
        self._first_come: bytes | None = None
        """The earliest row of those that have begun to wait since the last go."""
        self._after = rows.DELAYED
        """Every row up to this one was looked at, and what is left of them has failed."""
        self._failed: OrderedDict[bytes, int] = OrderedDict()
        """Rows of messages that could not be published, and when each is tried again, on the clock that never jumps."""
        self._is_overfull = False
        """Whether more have failed than are remembered."""

    def start(self) -> None:
        """Release what is due, from now on."""
        self._roots.due_rows.on_waiting = self._on_waiting
        self._arm()

    def resume(self) -> None:
        """The state takes writes again; in any thread."""
        self._arm()

    def _on_waiting(self, first: bytes) -> None:
        """Messages have begun to wait, and this is the earliest row of theirs; in the committing role."""
        with self._lock:
            self._first_come = first if self._first_come is None else min(first, self._first_come)
        self._arm()

    def _arm(self, wait_us: int = 0) -> None:
        now_us, moments = self._clock.monotonic_us(), list(tuple(self._failed.values())[:1])
        with self._lock:
            after = self._after if self._first_come is None else min(self._after, self._first_come[:-1])
        earliest_us = delays.earliest(self._state, after)
        if earliest_us is not None:
            moments.append(now_us + min(earliest_us - self._clock.now_us(), LOOK_US_MAX))
        self._timers.set("delays", max(min(moments), now_us + wait_us) if moments else None, self._release)

    def _release(self) -> None:
        """Bring some of what is due to its topics; the rest follows when others had their turn."""
        wait_us = AGAIN_US
        try:
            if self._state.failed is None:  # else what is released could not be noted, and would be again
                self._go()
                wait_us = 0
        except BaseException:
            self._after = rows.DELAYED  # nobody knows what became of those that were looked at
            raise
        finally:
            self._arm(wait_us)

    def _go(self) -> None:
        with self._lock:
            first, self._first_come = self._first_come, None
        if first is not None:
            self._after = min(self._after, first[:-1])
        if self._is_overfull and not self._failed:
            self._is_overfull, self._after = False, rows.DELAYED
        root = self._roots.get(delays.ROOT)
        if root is None:
            return
        now_us = self._clock.monotonic_us()
        due: Due = [(key, rows.offset_in(key)) for key in self._failing(now_us)]
        due += delays.due(self._state, self._clock.now_us(), self._after)
        under_way: list[tuple[bytes, Publish | None]] = []
        size = 0
        for key, offset in due:
            self._after = max(self._after, key)
            if key in self._failed or key in self._roots.checkpoints.owed:
                continue  # it waits for another try; or it was released, which the state does not know yet
            item, is_held = self._released(root, key, offset)
            if item is not None or is_held:
                under_way.append((key, item))
            if item is not None:
                self._roots.commit.submit(item)
                size += item.weight
                if size > delays.RELEASED_BYTES_MAX:
                    break
        self._wait(under_way, now_us)

    def _failing(self, now_us: int) -> list[bytes]:
        """Those that are to be tried again now."""
        found = [key for key, _ in takewhile(lambda one: one[1] <= now_us, tuple(self._failed.items())[:AGAIN_MAX])]
        for key in found:
            del self._failed[key]
        return [key for key in found if self._state.get(key) is not None]

    def _released(self, root: Root, key: bytes, offset: int) -> tuple[Publish | None, bool]:
        """A message on its way; or none, and whether it waits until it is known who may publish it."""
        found = root.stream.read(offset, 1)[0]
        if isinstance(found, Hole):
            self._events.trouble(f"delayed message {offset} is gone ({found.reason})")
            self._state.write({key: None})
            return None, False
        message = found.body.messages(found.first_offset, [offset - found.first_offset])[0]
        topic, headers, due_us, ttl_s, retain = delays.unwrap(message)
        author = delays.author_of(message)
        try:
            item = self._checks.released(topic, message.payload, message.key, headers, ttl_s, retain, due_us, offset)
            if not author or self._check_release(author, item.parts[0]):
                return item, False
            return None, True
        except (NotAllowed, SchemaMismatch, TooLarge) as error:
            self._events.trouble(f'a delayed message for "{topic}" is dropped: {error}')
            self._state.write({key: None})
        return None, False

    def _wait(self, under_way: list[tuple[bytes, Publish | None]], now_us: int) -> None:
        """See what becomes of them; those that fail are tried again."""
        failed, why = 0, ""
        for key, item in under_way:
            try:
                if item is not None:
                    item.wait()
                    continue
            except HeadwaterError as error:
                failed += 1
                assert item is not None
                why = why or f'a delayed message for "{item.topics[0]}" could not be published: {error}'
            if len(self._failed) < FAILED_MAX:
                self._failed[key] = now_us + AGAIN_US
            else:
                self._is_overfull = True
        if failed:
            others = f" (and {failed - 1} others)" if failed > 1 else ""
            self._events.trouble(f"{why}{others}; it is tried again in {AGAIN_US // SECOND_US} s")
