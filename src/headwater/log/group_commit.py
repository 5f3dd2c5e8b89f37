"""Group commit: what arrives while one group is being committed becomes the next group.

One thread at a time commits, and that thread is the owner of everything a commit touches. A caller that waits and
finds nobody committing does it itself, since a thread hop costs as much as a sync; when others wait by then, or
nobody does, the commit thread goes on. Promises: groups are committed in the order of `submit`; each item is finished
exactly once; an error of one commit finishes its group with that error and later groups go on.

Nobody waits behind a large group of somebody else: what weighs `apart_weight_min` or more and goes to one root is
committed apart. The thread that commits prepares it, lets others commit while it writes and syncs, and ends it in its
turn again. Meanwhile that root is closed: whatever touches it stays, in order, and so do calls, which may touch
anything, and other large groups. What the promises say of the order then holds for each root. In the same way roots are
made: a commit answers the items that wait for that, and they come again once it is done.

The exception is a process without memory: nobody can say how far a commit got, and the next would get no further. Then
all that waits, and all that comes, is told so (`Failed`), and `on_given_up` may end the process.
"""

from __future__ import annotations

import errno
import logging
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from itertools import pairwise
from typing import ClassVar, Generic, Protocol, TypeVar

from headwater import threads
from headwater.errors import Closed, Conflict, Failed, HeadwaterError

GATHER_CALLERS_MIN = 3
"""Fewer callers than this are not waited for."""
GATHER_S = 0.001
"""How long the commit thread waits, at most, for those it has just answered to come back."""
GATHER_AGAIN_AFTER_MAX = 64
"""Groups until it waits again, after it did in vain time after time; at first it is four, as once may be bad luck."""
NEVER = 1 << 62
"""What no group weighs."""
WAKE_S_MAX = 1.0
"""After this a waiting thread looks for itself, in case the one that was to wake it is gone."""

OUT_OF_MEMORY = "out of memory while storing; nothing more is stored: give the process more memory, and start it again"
NO_THREAD = (
    "no thread can be started to store with; nothing more is stored: raise the limits, and start the process again"
)
WAITS_FOR_ITSELF = (
    "this would wait for itself: it was called by a callback in the thread that commits; "
    "use publish_soon there, or hand the work to a thread of yours"
)

log = logging.getLogger("headwater")


class Item:
    """Something to be committed, and a way to hear when it is."""

    __slots__ = ("_done", "_next", "error", "future", "is_blocking", "is_finished", "weight")

    is_awaited: ClassVar[bool] = True
    """Whether a thread waits for it, unless it has a future: that thread may come back at once with another."""
    is_answered_late: ClassVar[bool] = False
    """Whether it is answered when all subscribers were told, if those are very many, and not once it is on disk."""

    def __init__(self, weight: int = 1) -> None:
        self.weight = weight
        self.error: BaseException | None = None
        self.future: Future[object] | None = None
        self.is_finished = False
        self.is_blocking = False
        """Whether its caller waits from the start, and so can wake the next of the group."""
        self._next: Item | None = None
        self._done = threads.Lock()
        self._done.acquire()

    @property
    def roots(self) -> Sequence[str]:
        """The roots that it touches: items that touch the same one are committed in their order."""
        return ()

    def result(self) -> object:
        """What the waiting caller or the future gets."""
        return None

    @property
    def is_waiting(self) -> bool:
        """Whether nobody has finished it yet."""
        return not self.is_finished

    def finish(self, error: BaseException | None = None) -> None:
        """Called by the committing thread, once."""
        self.error = error
        self.is_finished = True
        if not self.is_blocking:
            self._done.release()
        future = self.future
        if future is not None and future.set_running_or_notify_cancel():
            if error is None:
                future.set_result(self.result())
            else:
                future.set_exception(error)

    def wait(self) -> None:
        """Block until it is committed; raises what went wrong."""
        while not self._done.acquire(timeout=WAKE_S_MAX):
            if self.is_finished:
                break
        else:
            self._done.release()
        if self._next is not None:
            self._next._done.release()
        if self.error is not None:
            raise self.error

    @staticmethod
    def wake(items: Sequence[Item]) -> None:
        """Let those go who wait for these: the first, who lets the second go, and so on.

        If all were woken at once they would fight for the interpreter's lock, which costs more than the commit.
        """
        blocking = [item for item in items if item.is_blocking]
        for item, following in pairwise(blocking):
            item._next = following
        if blocking:
            blocking[0]._done.release()


class Call(Item):
    """Something to be done while no group is being committed."""

    __slots__ = ("answer", "work")

    def __init__(self, work: Callable[[], object]) -> None:
        super().__init__()
        self.work = work
        self.answer: object = None

    def run(self) -> None:
        """Do it, in the committing thread."""
        try:
            self.answer = self.work()
        except Exception as error:
            if _is_out_of_memory(error):
                raise
            self.finish(error)
        else:
            self.finish()


U = TypeVar("U", bound=Item)


class Apart(Protocol[U]):
    """Work on some roots that is done while others commit: a large group of one, or the making of some."""

    @property
    def waits(self) -> Sequence[U]:
        """Of the items that it was prepared with, those for which something else has to be done apart before."""

    def write(self) -> None:
        """Bring it to disk, while others commit; it touches nothing but its roots' streams."""

    def end(self, error: BaseException | None, behind: Sequence[U]) -> bool:
        """Finish its items; by the thread that commits. `error` is what `write` has raised. If it could not be stored,
        neither is what came behind it to its roots, lest that stands before it when it comes again; whether that is
        not to be committed any more."""


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
        on_add: Callable[[T], None] | None = None,
        apart: Callable[[list[T]], Apart[T]] | None = None,
        apart_weight_min: int = 0,
        before: Callable[[Sequence[T]], Apart[T]] | None = None,
    ) -> None:
        """`commit` finishes the items that it is given; those that it leaves unfinished when it raises get the
        error, and those that it answers come again once what `before` prepares for them is done. `on_add` hears of each
        item, in their order, while nobody else can get a place. `apart` prepares a group of one root that weighs so
        much or more."""
        self._name = name
        self._commit = commit
        self._on_add = on_add
        self._prepare_apart = apart
        self._prepare_before = before
        self._apart_weight_min = apart_weight_min if apart is not None else NEVER
        self._weight_max = weight_max
        self._items_max = items_max
        self.places = threads.Lock()
        """Whoever holds it may `append`, as nobody else gets a place; it is not held while something blocks."""
        self._room = threads.Condition(self.places)
        self._work = threads.Condition(self.places)
        self._came = threads.Condition(self.places)
        self._idle = threads.Condition(self.places)
        self._pending: list[T | Call] = []
        self._stays: list[T | Call] = []
        """What came before that, and waits for a large group to end."""
        self._weight = 0
        """Of both."""
        self._apart: _InFlight[T] | None = None
        """What is on its way to disk apart."""
        self._closed_roots: set[str] = set()
        """Its roots, and those of what stays."""
        self._written = threads.Condition(self.places)
        self._busy = False
        self._handed_over = False
        self._is_due = False
        """Whether what is pending is to be committed as soon as the group before it is."""
        self.turn = 0
        """Groups that were taken to be committed: as long as it stays, what has a place has not been."""
        self._closed = False
        self._expected = 0
        """How many items the commit thread waits for, if it does."""
        self._answered = 0
        """How many callers waited for the last group."""
        self._pause = 0
        """Groups that the commit thread leaves out before it waits for anybody again; more each time it is in vain."""
        self._pause_left = 0
        self._owner = 0
        """The thread that commits at the moment."""
        self._committers: list[threads.Thread] = []
        """The commit thread; and one more, if it was needed while the first wrote a large group."""
        self._writing = 0
        """How many of them are at that."""
        self.given_up: str | None = None
        """Why nothing is committed any more."""
        self.on_given_up: Callable[[str], None] = lambda _: None
        """Hears of that once, in whatever thread."""
        self._is_told = False
        # Made while there is memory.
        self._out_of_memory = Failed(OUT_OF_MEMORY)
        self._nothing: list[T | Call] = []

    def submit_and_wait(self, item: T | Call) -> None:
        """Commit an item; returns when it is durable, raises what went wrong."""
        if self._owner == threads.get_ident():
            raise Conflict(WAITS_FOR_ITSELF)
        item.is_blocking = True
        with self.places:
            self.add(item)
            lead = not self._busy and bool(self._pending)
            self._busy = self._busy or lead
        if lead:
            self._lead(item)
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
        return not (self.is_full or self._closed or self.given_up is not None)

    def grow(self, item: T, weight: int) -> None:
        """An item that waits for its commit weighs more; the same holds."""
        item.weight += weight
        self._weight += weight

    def commit_here(self, item: T) -> bool:
        """Commit an item in this thread if nothing else is on its way; False, and nothing has happened, if it is."""
        if self._owner == threads.get_ident():
            raise Conflict(WAITS_FOR_ITSELF)
        with self.places:
            if self._busy or self._is_due or self._closed or self.given_up is not None:
                return False
            self.add(item, waits=False)
            self._busy = True
        self._lead()
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
        return self._weight >= self._weight_max or len(self._pending) + len(self._stays) >= self._items_max

    @property
    def is_apart(self) -> bool:
        """Whether a large group is on its way to disk, or roots are made, and closed."""
        return self._apart is not None

    def kick(self) -> None:
        """Have what was enqueued committed, without waiting for it."""
        with self.places:
            self._move()
        if self.given_up is not None:
            self._tell_pending()

    def _move(self) -> None:
        """What is pending is due, and somebody is at it."""
        if self._pending:
            self._is_due = True
            if not self._busy:
                self._busy = True
                self._wake_thread()

    def run(self, work: Callable[[], R]) -> R:
        """Do something in the committing role: after a group, before the next; answers what it answers."""
        if self._owner == threads.get_ident():
            if self._apart is not None:
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
            while self._busy or self._apart is not None:
                self._idle.wait(WAKE_S_MAX)
            self._work.notify_all()
            committers = tuple(self._committers)
        for thread in committers:
            thread.join()

    def add(self, item: T | Call, waits: bool = True, is_due: bool = True) -> None:
        """Give an item its place, where one is free or as soon as one is; for whoever holds `places`. What is not due
        goes with the next that is, or with a `kick`."""
        while waits and self.is_full and self._owner != threads.get_ident():
            if self._closed or self.given_up is not None:
                break
            self._move()
            self._room.wait(WAKE_S_MAX)
        if self._closed:
            raise Closed(f"the {self._name} is closed; open it again to go on")
        if self.given_up is not None:
            raise Failed(self.given_up)
        if self._on_add is not None and not isinstance(item, Call):
            self._on_add(item)
        self._weight += item.weight
        if self._closed_roots and self._is_behind(item):
            self._stays.append(item)
            return
        self._pending.append(item)
        if self._expected and len(self._pending) >= self._expected:
            self._expected = 0
            self._came.notify()
        self._is_due = self._is_due or is_due

    def _lead(self, waiter: Item | None = None) -> None:
        """Commit what is pending in this thread; if somebody waits by then, the commit thread goes on. So it does with
        large groups, but for one with an item that this thread waits for."""
        begun: _InFlight[T] | None = None
        try:
            begun = self._commit_group(waiter)
        except MemoryError:
            self._give_up(OUT_OF_MEMORY)
        finally:
            self._hand_on()
        if begun is not None and self._write_apart(begun):
            self._lead()

    def _hand_on(self) -> None:
        """Commit no more: if something is due, the commit thread goes on."""
        with self.places:
            if self._is_due:
                self._wake_thread()
            else:
                self._busy = False
                self._idle.notify_all()
        if self.given_up is not None:
            self._tell_pending()

    def _commit_group(self, waiter: Item | None = None, *, takes_any: bool = False) -> _InFlight[T] | None:
        """Commit what is pending; answers a large group that is to be written by this thread, while others commit: one
        with an item that it waits for, or any."""
        group = self._nothing
        if self._apart is not None and self._apart.is_written:
            self._end_apart(self._apart)
        large: list[T] = []
        try:
            with self.places:
                fresh: list[T | Call] = []
                group, self._pending = self._pending, fresh
                self.turn += 1
                self._is_due = self._apart is not None and self._apart.is_written  # it may be so by now
                if self._weight >= self._weight_max or len(group) >= self._items_max:
                    self._room.notify_all()
                if self._weight >= self._apart_weight_min or self._apart is not None:
                    group, large = self._divide(
                        group, None if takes_any else waiter.roots if waiter is not None else ()
                    )
                else:
                    self._weight = 0
            self._owner = threads.get_ident()
            self._answered = sum([item.is_awaited and item.future is None for item in group])
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
            if large and self._apart is None:
                self._open_again()
            self._on_error((*group, *large), error)
            if not isinstance(error, Exception):
                raise
            return None
        finally:
            self._owner = 0
            Item.wake(group)

    def _on_error(self, group: Sequence[T | Call], error: BaseException) -> None:
        """Finish what an error has left unfinished; MemoryError if there is no memory."""
        is_out_of_memory = _is_out_of_memory(error)
        self._finish(group, self._out_of_memory if is_out_of_memory else _typed(error))
        if is_out_of_memory:
            raise MemoryError from None

    # Large groups

    def _divide(self, group: list[T | Call], allowed: Sequence[str] | None) -> tuple[list[T | Call], list[T]]:
        """Those of a group that are committed now, and the large group to begin after them, of one of these roots or of
        any; the others stay. By whoever holds `places`."""
        weights: defaultdict[str, int] = defaultdict(int)
        for item in group:
            if not isinstance(item, Call) and len(item.roots) == 1:
                weights[item.roots[0]] += item.weight
        now: list[T | Call] = []
        stays: list[T | Call] = []
        large: list[T] = []
        closed = self._closed_roots
        opened = ""
        """The root of the large group that is begun."""
        for item in group:
            if isinstance(item, Call):
                (stays if closed or large else now).append(item)
                continue
            roots = item.roots
            if not closed.isdisjoint(roots) or (opened and opened in roots and len(roots) > 1):
                closed.update(roots)
                stays.append(item)
            elif len(roots) != 1 or weights[roots[0]] < self._apart_weight_min:
                now.append(item)
            elif self._apart is None and opened in ("", roots[0]) and (allowed is None or roots[0] in allowed):
                opened = roots[0]
                large.append(item)
            else:
                closed.update(roots)
                stays.append(item)
        if self._apart is not None or large:
            self._stays += stays
            if opened:
                closed.add(opened)
        elif stays:  # this thread begins no large group, so the commit thread does, at once
            self._pending = stays
            self._is_due = True
            closed.clear()
        self._weight -= sum([item.weight for item in (*now, *large)])
        return now, large

    def _is_behind(self, item: T | Call) -> bool:
        """Whether what has come stays, as far as that is seen at once: nobody need be woken to find out."""
        if isinstance(item, Call):
            return not self._pending  # or something that it comes after may stay, too
        roots = item.roots
        return len(roots) == 1 and roots[0] in self._closed_roots

    def _put_off(self, waits: Sequence[T], group: list[T | Call], large: list[T]) -> list[T | Call]:
        """Have these stay, with the calls and the large group behind them; answers the others of their group."""
        put_off = set(waits)
        back = [item for item in group if isinstance(item, Call) or item in put_off]
        closed = self._closed_roots
        with self.places:
            self._weight += sum([item.weight for item in (*back, *large)])
            closed.update(root for item in waits for root in item.roots)
            came, self._pending = self._pending, []
            self._stays = [*back, *large, *self._stays]
            for item in came:  # while the others of their group were committed
                if isinstance(item, Call) or not closed.isdisjoint(item.roots):
                    closed.update(item.roots)
                    self._stays.append(item)
                else:
                    self._pending.append(item)
        return [item for item in group if not isinstance(item, Call) and item not in put_off]

    def _begin_before(self, waits: Sequence[T], is_mine: bool) -> _InFlight[T] | None:
        """Prepare what has to be done before items that stay are committed; if this thread is not to do it, the commit
        thread begins at once, or when what is on its way is done."""
        if self._apart is not None:
            return None
        if not is_mine:
            self._open_again()
            return None
        assert self._prepare_before is not None
        roots = frozenset(root for item in waits for root in item.roots)
        return self._begin(_InFlight([], roots), lambda: self._prepare_before(waits))  # type: ignore[misc]

    def _begin_apart(self, items: list[T]) -> _InFlight[T] | None:
        """Prepare a large group; None if nothing of it is to be written."""
        assert self._prepare_apart is not None
        prepare = self._prepare_apart
        begun = self._begin(_InFlight(items, frozenset(items[0].roots)), lambda: prepare(items))
        if begun is None or begun.work is None or not begun.work.waits:
            return begun
        waits = begun.work.waits
        self._put_off(waits, list(waits), [])
        Item.wake([item for item in items if not item.is_waiting])
        with self.places:
            self._apart = None
        return self._begin_before(waits, is_mine=True)

    def _begin(self, begun: _InFlight[T], prepare: Callable[[], Apart[T]]) -> _InFlight[T] | None:
        with self.places:
            self._apart = begun
        try:
            begun.work = prepare()
        except BaseException as error:
            begun.error, begun.is_written = error, True
            self._end_apart(begun)
            if not isinstance(error, Exception):
                raise
            return None
        return begun

    def _write_apart(self, begun: _InFlight[T]) -> bool:
        """Do what is done apart; whether this thread commits again then, as nobody else does."""
        assert begun.work is not None
        try:
            begun.work.write()
        except BaseException as error:
            begun.error = error
        with self.places:
            begun.is_written = True
            self._written.notify_all()
            self._is_due = True
            is_mine = not self._busy and self.given_up is None
            self._busy = self._busy or is_mine
        if self.given_up is not None:
            self._tell_pending()
        return is_mine

    def _wait_until_written(self) -> None:
        """Wait until the large group that is on its way is on disk, or is not; for the thread that commits."""
        with self.places:
            while self._apart is not None and not self._apart.is_written:
                self._written.wait(WAKE_S_MAX)

    def _end_apart(self, begun: _InFlight[T]) -> None:
        """A large group is on disk, or is not: tell who waits, and open its root again."""
        before, self._owner = self._owner, threads.get_ident()
        refused: list[T] = []
        try:
            behind = [
                item for item in self._stays if not isinstance(item, Call) and not begun.roots.isdisjoint(item.roots)
            ]
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
                self._stays = [item for item in self._stays if item not in refused] if refused else self._stays
                self._weight -= sum([item.weight for item in refused])
            self._open_again()
            Item.wake((*begun.items, *refused))

    def _open_again(self) -> None:
        """There is no large group: what stayed for one comes before all that came after it."""
        with self.places:
            self._apart = None
            self._closed_roots.clear()
            if self._stays:
                self._pending = [*self._stays, *self._pending]
                self._stays = []
                self._is_due = True

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
        self.given_up = reason
        self._is_due = self._busy = self._handed_over = False
        try:
            self._room.notify_all()
            self._idle.notify_all()
        except MemoryError:  # who waits looks again within a second
            pass

    def _tell_pending(self) -> None:
        with self.places:
            group, self._pending, self._stays = [*self._stays, *self._pending], self._nothing, []
            self._weight = 0
            if self._apart is not None and self._apart.is_written:
                group = [*self._apart.items, *group]
                self._apart = None
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

    def _wake_thread(self) -> None:
        self._handed_over = True
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
        try:
            while self._wait_for_work():
                self._commit_until_idle()
        except MemoryError:
            self._give_up(OUT_OF_MEMORY)

    def _wait_for_work(self) -> bool:
        """Whether there is some; False at the end."""
        with self.places:
            while not self._handed_over:
                if self._closed or self.given_up is not None:
                    return False
                self._work.wait()
            self._handed_over = False
            return True

    def _commit_until_idle(self) -> None:
        while True:
            begun: _InFlight[T] | None = None
            try:
                begun = self._commit_group(takes_any=True)
            except MemoryError:
                self._give_up(OUT_OF_MEMORY)
            except BaseException as error:
                # Its group has heard of it. The thread stays: whoever comes next must not wait for ever.
                log.critical("the %s was interrupted: %r", self._name, error)
            if begun is not None:
                with self.places:
                    self._writing += 1
                self._hand_on()
                goes_on = self._write_apart(begun)
                with self.places:
                    self._writing -= 1
                if not goes_on:
                    return
                continue
            with self.places:
                self._gather()
                if not self._is_due:
                    self._busy = False
                    self._idle.notify_all()
                    return

    def _gather(self) -> None:
        """Give those who were just answered a moment to come back: a few large groups beat many small ones."""
        answered, self._answered = self._answered, 0
        if answered < GATHER_CALLERS_MIN or self._closed:
            return
        if self._pause_left:
            self._pause_left -= 1
            return
        self._expected = min(len(self._pending) + answered, self._items_max)
        if self._came.wait(GATHER_S):
            self._pause = 0
        else:
            self._pause = self._pause_left = min(max(4, 2 * self._pause), GATHER_AGAIN_AFTER_MAX)
        self._expected = 0


class _InFlight(Generic[T]):
    """A large group on its way to disk, or roots that are made."""

    __slots__ = ("error", "is_written", "items", "roots", "work")

    def __init__(self, items: list[T], roots: frozenset[str]) -> None:
        self.items = items
        self.roots = roots
        self.work: Apart[T] | None = None
        self.is_written = False
        """Whether it is on disk, or why it is not is known: it is to be ended."""
        self.error: BaseException | None = None


def _is_out_of_memory(error: BaseException) -> bool:
    """Whether the system had no memory, be it for Python or for a call to the system."""
    return isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM)


def _typed(error: BaseException) -> BaseException:
    if isinstance(error, HeadwaterError) or not isinstance(error, Exception):
        return error
    return Failed(f"storage failed: {error}")
