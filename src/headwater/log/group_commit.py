"""Group commit: what arrives while one group is being committed becomes the next group.

One thread at a time commits, and that thread is the owner of everything a commit touches. A caller that waits and
finds nobody committing does it itself, since a thread hop costs as much as a sync; when others wait by then, or
nobody does, the commit thread goes on. Promises: groups are committed in the order of `submit`; each item is finished
exactly once; an error of one commit finishes its group with that error and later groups go on.

Nobody waits behind a large group of somebody else: what weighs `apart_weight_min` or more and goes to one root is
committed apart (`aside`). The thread that commits prepares it, lets others commit while it writes and syncs, and ends
it in its turn again. What the promises say of the order then holds for each root. In the same way roots are made: a
commit answers the items that wait for that, and they come again once it is done.

The exception is a process without memory: nobody can say how far a commit got, and the next would get no further. Then
all that waits, and all that comes, is told so (`Failed`), and `on_given_up` may end the process.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from headwater import threads
from headwater.errors import Closed, Conflict, Failed, HeadwaterError
from headwater.log.aside import Apart, Aside, InFlight
from headwater.log.gathering import Gathering
from headwater.log.items import WAKE_S_MAX, Call, Item, is_out_of_memory

NEVER = 1 << 62
"""What no group weighs."""

OUT_OF_MEMORY = "out of memory while storing; nothing more is stored: give the process more memory, and start it again"
NO_THREAD = (
    "no thread can be started to store with; nothing more is stored: raise the limits, and start the process again"
)
WAITS_FOR_ITSELF = (
    "this would wait for itself: it was called by a callback in the thread that commits; "
    "use publish_soon there, or hand the work to a thread of yours"
)

log = logging.getLogger("headwater")


T = TypeVar("T", bound=Item)
R = TypeVar("R")


class GroupCommit(Generic[T]):
    """Gathers items and commits them in groups, one group at a time."""

    def __init__(
        self,
        name: str,
        commit: Callable[[list[T]], Sequence[T] | None],
        weight_max: int,
        items_max: int,
        apart: Callable[[list[T]], Apart[T]] | None = None,
        apart_weight_min: int = 0,
        before: Callable[[Sequence[T]], Apart[T]] | None = None,
    ) -> None:
        """`commit` finishes the items that it is given; those that it leaves unfinished when it raises get the
        error, and those that it answers come again once what `before` prepares for them is done. `apart` prepares a
        group of one root that weighs so much or more."""
        self._name = name
        self._commit = commit
        self.on_add: Callable[[T], None] | None = None
        """Hears of each item, in their order, while nobody else can get a place."""
        self._prepare_apart = apart
        self._prepare_before = before
        self._weight_max = weight_max
        self._items_max = items_max
        self.places = threads.Lock()
        """Whoever holds it may `append`, as nobody else gets a place; it is not held while something blocks."""
        self._room = threads.Condition(self.places)
        self._work = threads.Condition(self.places)
        self._idle = threads.Condition(self.places)
        self._pending: list[T | Call] = []
        self._weight = 0
        """Of what is pending, and of what stays."""
        self._aside = Aside[T](apart_weight_min if apart is not None else NEVER)
        self._written = threads.Condition(self.places)
        self._busy = False
        self._handed_over = False
        self._is_due = False
        """Whether what is pending is to be committed as soon as the group before it is."""
        self.turn = 0
        """Groups that were taken to be committed: as long as it stays, what has a place has not been."""
        self._closed = False
        self._gathering = Gathering(self.places)
        self._owner = 0
        """The thread that commits at the moment."""
        self._committers: list[threads.Thread] = []
        """The commit thread; and one more, if it was needed while the first wrote a large group."""
        self._writing = 0
        """How many of them are at that."""
        self.given_up: str | None = None
        """Why nothing is committed any more."""
        self._barred: HeadwaterError | str | None = None
        """The same, or what is told to whoever comes for now."""
        self.on_given_up: Callable[[str], None] = lambda _: None
        """Hears of that once, in whatever thread."""
        self._is_told = False
        # Made while there is memory.
        self._out_of_memory = Failed(OUT_OF_MEMORY)
        self._nothing: list[T | Call] = []

    def submit_and_wait(self, item: T | Call) -> None:
        """Commit an item; returns when it is durable, raises what went wrong."""
        if not self.commit_here(item, item):
            with self.places:
                self.add(item)
                lead = not self._busy and bool(self._pending)
                if lead:
                    self._busy = True
                else:
                    item.expect()
            if lead:
                self._lead(item)
        if not item.is_finished or item.is_blocking or item.error is not None:
            item.wait()

    def submit(self, item: T | Call) -> None:
        """Have an item committed soon; its future, or a later wait, tells when."""
        self.enqueue(item)
        self.kick()

    def submit_all(self, items: Sequence[T]) -> None:
        """Have these committed soon, all in one group."""
        self.refuse_owner()
        with self.places:
            for item in items:
                self.add(item, waits=item is items[0])
        self.kick()

    def enqueue(self, item: T | Call) -> None:
        """Give an item its place in the order; somebody has to `drive` or `kick` for it to move."""
        with self.places:
            self.add(item)

    @property
    def is_open(self) -> bool:
        """Whether there is a place to have."""
        return not (self.is_full or self._closed or self._barred is not None)

    def grow(self, item: T, weight: int) -> None:
        """An item that waits for its commit weighs more; the same holds."""
        item.weight += weight
        self._weight += weight

    def commit_here(self, item: T | Call, waiter: Item | None = None) -> bool:
        """Commit an item in this thread if nothing else is on its way; False, and nothing has happened, if it is. A
        large group is begun here if it has an item that this thread waits for."""
        aside, alone = self._aside, None
        if self._owner == threads.get_ident():
            raise Conflict(WAITS_FOR_ITSELF)
        with self.places:
            if self._busy or self._is_due or self._closed or self._barred is not None:
                return False
            if self._pending or aside.closed or item.weight >= aside.weight_min:
                self.add(item, waits=False)
            else:  # there is nothing that it could be committed with, or that goes before it: it needs no place
                if self.on_add is not None and not isinstance(item, Call):
                    self.on_add(item)
                self.turn += 1
                alone = [item]
            self._busy = True
        self._lead(waiter, alone)
        return True

    def drive(self, item: T | Call) -> None:
        """Wait for an item that was enqueued, committing it here if nobody else is at it."""
        self.refuse_owner()
        with self.places:
            lead = not self._busy and item.is_waiting
            self._is_due = self._is_due or bool(self._pending)
            if lead:
                self._busy = True
        if lead:
            self._lead(item)
        item.wait()

    def refuse_owner(self) -> None:
        """Conflict if the calling thread is the one that commits: what it asks for would wait for itself."""
        if self._owner == threads.get_ident():
            raise Conflict(WAITS_FOR_ITSELF)

    @property
    def is_alive(self) -> bool:
        """Whether somebody commits what is pending: its thread is there, or was not needed yet."""
        return self.given_up is None and all(thread.is_alive() for thread in self._committers)

    @property
    def is_full(self) -> bool:
        """Whether the next to enqueue would have to wait."""
        return self._weight >= self._weight_max or len(self._pending) + len(self._aside.stays) >= self._items_max

    @property
    def is_idle(self) -> bool:
        """Whether nothing is on its way; for whoever holds `places`."""
        return not (self._busy or self._pending or self._aside.stays or self._aside.in_flight is not None)

    @property
    def is_apart(self) -> bool:
        """Whether a large group is on its way to disk, or roots are made, and closed."""
        return self._aside.in_flight is not None

    @property
    def is_large_apart(self) -> bool:
        """Whether what is on its way is a large group; for the thread that commits."""
        in_flight = self._aside.in_flight
        return in_flight is not None and bool(in_flight.items) and in_flight.work is not None

    def kick(self) -> None:
        """Have what was enqueued committed, without waiting for it."""
        with self.places:
            self._move()
        if self.given_up is not None:
            self._tell_pending()

    def _move(self) -> None:
        """What is pending is due, and somebody is at it; what stays is due once it may go on."""
        self._aside.may_wait = False
        if self._pending:
            self._is_due = True
            if not self._busy:
                self._busy = True
                self._hand_on()

    def run(self, work: Callable[[], R]) -> R:
        """Do something in the committing role: after a group, before the next; answers what it answers."""
        if self._owner == threads.get_ident():
            if self._aside.in_flight is not None:
                self._wait_until_written()
            return work()
        call = Call(work)
        self.submit_and_wait(call)
        return call.answer  # type: ignore[return-value]  # what `work` answered

    def close(self) -> None:
        """Commit what is pending, and accept nothing more."""
        self.refuse_owner()
        with self.places:
            self._closed = True
            self._move()
            while self._busy or self._aside.in_flight is not None:
                self._idle.wait(WAKE_S_MAX)
            self._work.notify_all()
            committers = tuple(self._committers)
        for thread in committers:
            thread.join()

    def add(self, item: T | Call, waits: bool = True, is_due: bool = True) -> None:
        """Give an item its place, where one is free or as soon as one is; for whoever holds `places`. What is not due
        goes with the next that is, or with a `kick`."""
        while waits and self.is_full and self._owner != threads.get_ident():
            if self._closed or self._barred is not None:
                break
            self._move()
            self._room.wait(WAKE_S_MAX)
        if self._closed:
            raise Closed(f"the {self._name} is closed; open it again to go on")
        if self._barred is not None:
            self._check_barred(item)
        if self.on_add is not None and not isinstance(item, Call):
            self.on_add(item)
        self._weight += item.weight
        if self._aside.closed and self._aside.holds(item, bool(self._pending)):
            self._aside.keep(item, may_wait=not is_due)
            return
        self._pending.append(item)
        if self._gathering.expected:
            self._gathering.note(len(self._pending))
        self._is_due = self._is_due or is_due

    # Refusing for a while

    def refuse(self, error: HeadwaterError) -> None:
        """Take nothing until `accept`: this is what is told to whoever comes, and to who waits to do something between
        two groups. What else waits goes on."""
        with self.places:
            if self.given_up is None:
                self._barred = error
            calls = [item for item in (*self._aside.stays, *self._pending) if isinstance(item, Call)]
            self._weight -= sum([call.weight for call in calls])
            self._pending = [item for item in self._pending if not isinstance(item, Call)]
            self._aside.stays = [item for item in self._aside.stays if not isinstance(item, Call)]
            self._room.notify_all()
        self._finish(calls, error)
        Item.wake(calls)

    def accept(self) -> None:
        """Take everything again."""
        with self.places:
            if self.given_up is None:
                self._barred = None

    def _check_barred(self, item: T | Call) -> None:
        """Raise what is told to whoever comes; between groups something may be done while none is under way."""
        if self.given_up is not None:
            raise Failed(self.given_up)
        error = self._barred
        if isinstance(error, HeadwaterError) and not (isinstance(item, Call) and not self._busy):
            raise type(error)(*error.args)  # each has a traceback of its own

    def _lead(
        self, waiter: Item | None = None, alone: list[T | Call] | None = None, *, is_thread: bool = False
    ) -> None:
        """Commit what is pending in this thread, or what came alone; if somebody waits by then, the commit thread goes
        on. So it does with large groups, but for one with an item that this thread waits for."""
        while True:
            begun: InFlight[T] | None = None
            try:
                begun = self._commit_group(waiter, alone, takes_any=is_thread)
            except MemoryError:
                self._give_up(OUT_OF_MEMORY)
            finally:
                stays = is_thread and begun is None
                with self.places:
                    if stays and not self._closed:
                        self._gathering.wait(len(self._pending), self._items_max)
                    self._writing += is_thread and not stays
                    in_flight = self._aside.in_flight
                    if self._is_due or (in_flight is not None and in_flight.is_written):
                        self._hand_on(stays)
                    else:
                        self._busy = False
                        self._idle.notify_all()
                if self.given_up is not None:
                    self._tell_pending()
            if begun is None or not self._write_apart(begun, is_thread):
                return
            waiter = alone = None

    def _commit_group(
        self, waiter: Item | None = None, alone: list[T | Call] | None = None, *, takes_any: bool = False
    ) -> InFlight[T] | None:
        """Commit what is pending, or what came alone; answers a large group that is to be written by this thread, while
        others commit: one with an item that it waits for, or any."""
        group, aside = alone or self._nothing, self._aside
        if aside.in_flight is not None and aside.in_flight.is_written:
            self._end_apart(aside.in_flight)
        large: list[T] = []
        try:
            if alone is None:
                with self.places:
                    if not self._is_due:
                        return None  # something has ended, and what has come meanwhile may wait for company
                    fresh: list[T | Call] = []
                    group, self._pending = self._pending, fresh
                    self.turn += 1
                    self._is_due = False
                    if self._weight >= self._weight_max or len(group) >= self._items_max:
                        self._room.notify_all()
                    if self._weight >= aside.weight_min or aside.in_flight is not None:
                        allowed = None if takes_any else waiter.roots if waiter is not None else ()
                        group, large, others = aside.divide(group, allowed)
                        self._weight -= sum([item.weight for item in (*group, *large)])
                        if others:  # the commit thread begins one of them
                            self._pending, self._is_due = others, True
                    else:
                        self._weight = 0
            self._owner = threads.get_ident()
            if alone is None:
                self._gathering.answered = sum([item.is_awaited and item.future is None for item in group])
            items = [item for item in group if not isinstance(item, Call)]
            waits = self._commit(items) if items else None
            if waits:
                group = self._put_off(waits, group, large)
                large = []
                return self._begin_before(waits, takes_any or any(item is waiter for item in waits))
            for call in group:
                if isinstance(call, Call):
                    call.run()
            return self._begin_apart(large) if large else None
        except BaseException as error:
            if large and aside.in_flight is None:
                self._open_again()
            self._on_error((*group, *large), error)
            if not isinstance(error, Exception):
                raise
            return None
        finally:
            self._owner = 0
            if alone is None:  # else its caller is this thread
                Item.wake(group)

    def _on_error(self, group: Sequence[T | Call], error: BaseException) -> None:
        """Finish what an error has left unfinished; MemoryError if there is no memory."""
        is_memory_out = is_out_of_memory(error)
        self._finish(group, self._out_of_memory if is_memory_out else _typed(error))
        if is_memory_out:
            raise MemoryError from None

    # Large groups

    def _put_off(self, waits: Sequence[T], group: list[T | Call], large: list[T]) -> list[T | Call]:
        """Have these stay, with the calls and the large group behind them; answers the others of their group."""
        put_off = set(waits)
        back = [item for item in group if isinstance(item, Call) or item in put_off]
        with self.places:
            self._weight += sum([item.weight for item in (*back, *large)])
            self._pending = self._aside.put_off(waits, [*back, *large], self._pending)
        return [item for item in group if not isinstance(item, Call) and item not in put_off]

    def _begin_before(self, waits: Sequence[T], is_mine: bool) -> InFlight[T] | None:
        """Prepare what has to be done before items that stay are committed; if this thread is not to do it, the commit
        thread begins at once, or when what is on its way is done."""
        if self._aside.in_flight is not None:
            return None
        if not is_mine:
            self._open_again()
            return None
        assert self._prepare_before is not None
        roots = frozenset(root for item in waits for root in item.roots)
        return self._begin(InFlight([], roots), lambda: self._prepare_before(waits))  # type: ignore[misc]

    def _begin_apart(self, items: list[T]) -> InFlight[T] | None:
        """Prepare a large group; None if nothing of it is to be written."""
        assert self._prepare_apart is not None
        prepare = self._prepare_apart
        begun = self._begin(InFlight(items, frozenset(items[0].roots)), lambda: prepare(items))
        if begun is None or begun.work is None or not begun.work.waits:
            return begun
        waits = begun.work.waits
        self._put_off(waits, list(waits), [])
        Item.wake([item for item in items if not item.is_waiting])
        with self.places:
            self._aside.in_flight = None
        return self._begin_before(waits, is_mine=True)

    def _begin(self, begun: InFlight[T], prepare: Callable[[], Apart[T]]) -> InFlight[T] | None:
        with self.places:
            self._aside.in_flight = begun
        try:
            begun.work = prepare()
        except BaseException as error:
            begun.error, begun.is_written = error, True
            self._end_apart(begun)
            if not isinstance(error, Exception):
                raise
            return None
        return begun

    def _write_apart(self, begun: InFlight[T], is_thread: bool) -> bool:
        """Do what is done apart; whether this thread commits again then, as nobody else does."""
        assert begun.work is not None
        try:
            begun.work.write()
        except BaseException as error:
            begun.error = error
        with self.places:
            begun.is_written = True
            self._writing -= is_thread
            self._written.notify_all()
            is_mine = not self._busy and self.given_up is None
            self._busy = self._busy or is_mine
        if self.given_up is not None:
            self._tell_pending()
        return is_mine

    def _wait_until_written(self) -> None:
        """Wait until the large group that is on its way is on disk, or is not; for the thread that commits."""
        with self.places:
            while self._aside.in_flight is not None and not self._aside.in_flight.is_written:
                self._written.wait(WAKE_S_MAX)

    def _end_apart(self, begun: InFlight[T]) -> None:
        """A large group is on disk, or is not: tell who waits, and open its root again."""
        before, self._owner = self._owner, threads.get_ident()
        refused: list[T] = []
        try:
            behind = self._aside.behind(begun.roots)
            if begun.work is not None:
                if begun.work.end(begun.error, behind):
                    refused += behind
            elif not begun.items:
                refused += behind
            if begun.error is not None:
                raise begun.error
        except BaseException as error:
            self._on_error((*begun.items, *refused), error)
        finally:
            self._owner = before
            with self.places:
                if refused:
                    self._aside.stays = [item for item in self._aside.stays if item not in refused]
                self._weight -= sum([item.weight for item in refused])
            self._open_again()
            Item.wake((*begun.items, *refused))

    def _open_again(self) -> None:
        """There is no large group: what stayed for one comes before all that came after it."""
        with self.places:
            stayed, is_due = self._aside.open()
            self._pending = [*stayed, *self._pending]
            self._is_due = self._is_due or is_due

    def _finish(self, group: Sequence[T | Call], error: BaseException) -> None:
        for item in group:
            if item.is_waiting:
                try:
                    item.finish(error)
                except MemoryError:  # who waits looks again within a second
                    continue

    def _give_up(self, reason: str) -> None:
        """Commit nothing any more: who waits is told, and nobody else gets a place."""
        with self.places:
            self._stop(reason)
        self._tell_pending()

    def _stop(self, reason: str) -> None:
        """The same, for whoever holds `places`; `_tell_pending` has to follow once it is let go."""
        self.given_up = self._barred = reason
        self._is_due = self._busy = self._handed_over = False
        try:
            self._room.notify_all()
            self._idle.notify_all()
        except MemoryError:  # who waits looks again within a second
            pass

    def _tell_pending(self) -> None:
        with self.places:
            aside = self._aside
            group, self._pending, aside.stays = [*aside.stays, *self._pending], self._nothing, []
            self._weight = 0
            if aside.in_flight is not None and aside.in_flight.is_written:
                group = [*aside.in_flight.items, *group]
                aside.in_flight = None
        assert self.given_up is not None
        error = self._out_of_memory if self.given_up is OUT_OF_MEMORY else Failed(self.given_up)
        self._finish(group, error)
        try:
            Item.wake(group)
        except MemoryError:  # who waits looks again within a second
            pass
        if not self._is_told:
            self._is_told = True
            self.on_given_up(self.given_up)

    def _hand_on(self, stays: bool = False) -> None:
        """Have the commit thread go on; it may be the one that hands on, and stays."""
        self._handed_over = True
        if stays:
            return
        if len(self._committers) > self._writing:
            self._work.notify()
            return
        thread = threads.Thread(target=self._run, name=f"headwater-{self._name}", daemon=True)
        try:
            thread.start()
        except (RuntimeError, MemoryError):
            if not self._committers:  # else the one that there is goes on, once it has written
                self._stop(NO_THREAD)
        else:
            self._committers.append(thread)

    def _run(self) -> None:
        while self._wait_for_work():
            try:
                self._lead(is_thread=True)
            except MemoryError:
                self._give_up(OUT_OF_MEMORY)
            except BaseException as error:
                # Its group has heard of it. The thread stays: whoever comes next must not wait for ever.
                log.critical("the %s was interrupted: %r", self._name, error)

    def _wait_for_work(self) -> bool:
        """Whether there is some; False at the end."""
        with self.places:
            while not self._handed_over:
                if self._closed or self.given_up is not None:
                    return False
                self._work.wait()
            self._handed_over = False
            return True


def _typed(error: BaseException) -> BaseException:
    if isinstance(error, HeadwaterError) or not isinstance(error, Exception):
        return error
    return Failed(f"storage failed: {error}")
