"""New roots: their streams are made before what comes to them is committed, while others are.

Promises: what comes to roots that exist never waits for the folder of one that does not, but while a large group is
written, which what comes to a new root does not wait for either: the root is made in the committing role then, at once;
nothing is made for a call that would be refused; nobody sees a root before its first message is stored; all that is on
its way counts against how many roots there may be.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from headwater.clock import Clock
from headwater.errors import HeadwaterError
from headwater.log.checkpoints import Checkpoints
from headwater.log.free_room import FreeRoom
from headwater.log.publish import Publish
from headwater.log.root import Root
from headwater.log.root_limits import RootLimits, check_open
from headwater.log.showing import Showing
from headwater.store.log import Log, Making


class NewRoots:
    """Roots that are to be made, or could not be; by the thread that commits."""

    def __init__(
        self,
        roots: Mapping[str, Root],
        make: Callable[[str, str], Root],
        log: Log,
        room: FreeRoom,
        limits: RootLimits,
        clock: Clock,
        checkpoints: Checkpoints,
        showing: Showing,
    ) -> None:
        self._roots = roots
        self._make = make
        """Makes the root of a name, for an owner, unless there is one."""
        self._log = log
        self._room = room
        self._limits = limits
        self._clock = clock
        self._checkpoints = checkpoints
        self._showing = showing
        self.is_at_once: Callable[[], bool] = lambda: False
        """Whether what is missing is to be made in the committing role, as it would have to wait for a large group."""
        self._failures: dict[str, tuple[HeadwaterError, set[Publish]]] = {}
        """Why roots could not be made, and the calls that have not been told."""
        self.since_us: int | None = None
        """When those that are being made began to be, on the monotonic clock; None while none is."""

    def keep_waiting(self, item: Publish) -> bool:
        """Whether a call has to wait until roots of it are made: all of it, lest its order changes."""
        if self.is_at_once():
            return False
        waits = False
        for part in item.parts:
            if part.root in self._roots or self._log.is_made(part.root) or self._is_told(item, part.root):
                continue
            try:
                if not self._room.is_left and not item.is_urgent:
                    continue
                self._limits.check([part], item.owner, may_make=not item.is_delayed)
            except HeadwaterError:
                continue  # nothing of it is stored, as whoever admits it says
            self._limits.coming.setdefault(part.root, "" if item.is_delayed else item.owner)
            waits = True
        return waits

    def open(self, name: str, item: Publish) -> Root:
        """The root of a name, which is made for a call unless there is one; raises why it could not be."""
        if self._is_told(item, name):
            error, waiting = self._failures[name]
            waiting.discard(item)
            if not waiting:
                del self._failures[name]
            raise error
        root = self._roots.get(name)
        if root is None:
            root = self._make(name, item.owner)
            self._limits.coming.pop(name, None)
            check_open(root)
        return root

    def _is_told(self, item: Publish, name: str) -> bool:
        return name in self._failures and item in self._failures[name][1]

    def prepare(self, items: Sequence[Publish]) -> NewRootsMaking:
        """Have the roots made that these wait for."""
        names = dict.fromkeys(part.root for item in items for part in item.parts)
        missing = [name for name in names if name in self._limits.coming and not self._log.is_made(name)]
        making = NewRootsMaking(self, missing, self._log.make_apart(missing))
        self.since_us = self._clock.monotonic_us()
        return making

    def end(self, names: Sequence[str], failures: Mapping[str, HeadwaterError], waiting: Sequence[Publish]) -> None:
        """They are made, or could not be, which the calls that waited are told when they come again."""
        self.since_us = None
        for name in names:
            if name in failures or not self._log.is_made(name):
                self._limits.coming.pop(name, None)
        self._failures = {
            name: (error, {item for item in waiting if name in item.roots}) for name, error in failures.items()
        }
        if self._checkpoints.is_due:  # a thread that may not be kept leaves it to this end
            self._checkpoints.make_in_time()

    def give_up(self, waiting: Sequence[Publish]) -> None:
        """Nobody can say how far their making got: these are told so."""
        self._showing.leave(waiting)


class NewRootsMaking:
    """Roots that are being made, while others are committed to."""

    waits: Sequence[Publish] = ()

    def __init__(self, new_roots: NewRoots, names: Sequence[str], making: Making) -> None:
        self._new_roots = new_roots
        self._names = names
        self._making = making

    def write(self) -> None:
        """Make their streams."""
        self._making.write()

    def end(self, error: BaseException | None, behind: Sequence[Publish]) -> bool:
        """What waits for them is committed next; whether it is finished instead, as nobody can say what became of
        them."""
        failures = self._making.show()
        self._new_roots.end(self._names, failures, behind)
        if error is not None:
            self._new_roots.give_up(behind)
        return error is not None
