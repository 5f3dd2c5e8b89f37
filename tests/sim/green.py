"""Locks, conditions, threads and pools of the simulated world, in place of those of `headwater.threads`.

Each waits by giving its turn away. A thread of a process that has died waits for nothing: it is ended.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from sim.world import NEVER, SECOND_US, Killed, World
from sim.world import Thread as Greenthread


class Threads:
    """What `headwater.threads` has, for one world."""

    def __init__(self, world: World) -> None:
        self.world = world

        class BoundLock(Lock):
            __slots__ = ()
            _world = world

        class BoundRLock(RLock):
            __slots__ = ()
            _world = world

        class BoundCondition(Condition):
            __slots__ = ()
            _world = world
            _rlock = BoundRLock

        class BoundEvent(Event):
            __slots__ = ()
            _world = world

        class BoundThread(Thread):
            _world = world

        class BoundPool(Pool):
            _world = world

        class BoundLocal(Local):
            _world = world

        self.Lock, self.RLock, self.Condition, self.Event = BoundLock, BoundRLock, BoundCondition, BoundEvent
        self.Thread, self.ThreadPoolExecutor, self.local = BoundThread, BoundPool, BoundLocal

    def get_ident(self) -> int:
        current = self.world.current
        return current.ident if current is not None else 0

    def current_thread(self) -> object:
        current = self.world.current
        return current.locals.get(0, {}).get("thread") if current is not None else None


def deadline(world: World, timeout: float | None) -> int:
    """When a wait ends that may take so many seconds; None and -1 are for ever."""
    if timeout is None or timeout < 0:
        return NEVER
    return world.now_us + int(timeout * SECOND_US) + 1


def is_alive(world: World) -> bool:
    """Whether somebody who lives asks; what the dead hold and let go of changes nothing."""
    return world.current is not None and not world.current.process.is_dead


class Lock:
    """A lock."""

    __slots__ = ("_is_locked", "_waiting")
    _world: World

    def __init__(self) -> None:
        self._is_locked = False
        self._waiting: deque[Greenthread] = deque()

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        world = self._world
        world.step_aside()
        if not self._is_locked:
            self._is_locked = True
            return True
        if not blocking:
            return False
        until_us = deadline(world, timeout)
        thread = world.current
        if thread is None or thread.process.is_dead:
            return True
        self._waiting.append(thread)
        try:
            while True:
                world.park(until_us)
                if not self._is_locked:
                    self._is_locked = True
                    return True
                if world.now_us >= until_us:
                    return False
        finally:
            self._waiting.remove(thread)

    def release(self) -> None:
        if not self._is_locked and is_alive(self._world):
            raise RuntimeError("release unlocked lock")
        self._is_locked = False
        if self._waiting:
            self._world.wake(self._waiting[0])

    def locked(self) -> bool:
        return self._is_locked

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()

    # As a condition uses it

    def _is_owned(self) -> bool:
        return self._is_locked

    def _release_save(self) -> int:
        self.release()
        return 1

    def _acquire_restore(self, _: int) -> None:
        self.acquire()


class RLock:
    """A lock that its owner may take again."""

    __slots__ = ("_count", "_owner", "_waiting")
    _world: World

    def __init__(self) -> None:
        self._owner: Greenthread | None = None
        self._count = 0
        self._waiting: deque[Greenthread] = deque()

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        world = self._world
        thread = world.current
        if self._count and self._owner is thread:
            self._count += 1
            return True
        world.step_aside()
        if not self._count:
            self._owner, self._count = thread, 1
            return True
        if not blocking:
            return False
        if thread is None or thread.process.is_dead:
            self._owner = thread
            self._count += 1
            return True
        until_us = deadline(world, timeout)
        self._waiting.append(thread)
        try:
            while True:
                world.park(until_us)
                if not self._count:
                    self._owner, self._count = thread, 1
                    return True
                if world.now_us >= until_us:
                    return False
        finally:
            self._waiting.remove(thread)

    def release(self) -> None:
        if not self._count or self._owner is not self._world.current:
            if is_alive(self._world):
                raise RuntimeError("cannot release un-acquired lock")
            return
        self._count -= 1
        if not self._count:
            self._owner = None
            if self._waiting:
                self._world.wake(self._waiting[0])

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()

    def _is_owned(self) -> bool:
        return bool(self._count) and self._owner is self._world.current

    def _release_save(self) -> int:
        count, self._count = self._count, 1
        self.release()
        return count

    def _acquire_restore(self, count: int) -> None:
        self.acquire()
        self._count = count


class Condition:
    """A condition; who is notified comes back in the order in which they came."""

    __slots__ = ("_lock", "_waiting", "acquire", "release")
    _world: World
    _rlock: type[RLock]

    def __init__(self, lock: Any = None) -> None:
        if lock is None:
            lock = self._rlock()
        self._lock = lock
        self.acquire = lock.acquire
        self.release = lock.release
        self._waiting: deque[tuple[list[bool], Greenthread]] = deque()

    def __enter__(self) -> bool:
        return bool(self._lock.acquire())

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def wait(self, timeout: float | None = None) -> bool:
        if not self._lock._is_owned():
            raise RuntimeError("cannot wait on un-acquired lock")
        world = self._world
        thread = world.current
        if thread is None:
            raise Killed
        until_us = deadline(world, timeout)
        if until_us <= world.now_us + 1:
            return False
        is_notified = [False]
        place = (is_notified, thread)
        self._waiting.append(place)
        saved = self._lock._release_save()
        try:
            while not is_notified[0] and world.now_us < until_us:
                world.park(until_us)
        finally:
            if not is_notified[0]:
                self._waiting.remove(place)
            self._lock._acquire_restore(saved)
        return is_notified[0]

    def wait_for(self, predicate: Callable[[], Any], timeout: float | None = None) -> Any:
        until_us = deadline(self._world, timeout)
        result = predicate()
        while not result:
            left_s = None if until_us == NEVER else (until_us - self._world.now_us) / SECOND_US
            if left_s is not None and left_s <= 0:
                break
            self.wait(left_s)
            result = predicate()
        return result

    def notify(self, n: int = 1) -> None:
        if not self._lock._is_owned() and is_alive(self._world):
            raise RuntimeError("cannot notify on un-acquired lock")
        waiting = self._waiting
        while waiting and n > 0:
            is_notified, thread = waiting.popleft()
            is_notified[0] = True
            self._world.wake(thread)
            n -= 1

    def notify_all(self) -> None:
        self.notify(len(self._waiting))


class Event:
    """Something that happens once."""

    __slots__ = ("_is_set", "_waiting")
    _world: World

    def __init__(self) -> None:
        self._is_set = False
        self._waiting: list[Greenthread] = []

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True
        for thread in self._waiting:
            self._world.wake(thread)

    def clear(self) -> None:
        self._is_set = False

    def wait(self, timeout: float | None = None) -> bool:
        world = self._world
        until_us = deadline(world, timeout)
        thread = world.current
        if thread is None:
            raise Killed
        self._waiting.append(thread)
        try:
            while not self._is_set and world.now_us < until_us:
                world.park(until_us)
        finally:
            self._waiting.remove(thread)
        return self._is_set


class Thread:
    """A thread of the process that starts it."""

    _world: World

    def __init__(
        self,
        group: None = None,
        target: Callable[..., object] | None = None,
        name: str = "thread",
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
        *,
        daemon: bool | None = None,
    ) -> None:
        self.name = name
        self.daemon = daemon
        self._target = target
        self._args = args
        self._kwargs = kwargs or {}
        self._thread: Greenthread | None = None

    @property
    def ident(self) -> int | None:
        return self._thread.ident if self._thread is not None else None

    def run(self) -> None:
        if self._target is not None:
            self._target(*self._args, **self._kwargs)

    def start(self) -> None:
        current = self._world.current
        if current is None or current.process.is_dead:
            raise Killed
        self._thread = self._world.spawn(current.process, self.run, self.name)
        self._thread.locals[0] = {"thread": self}

    def is_alive(self) -> bool:
        return self._thread is not None and not self._thread.is_done

    def join(self, timeout: float | None = None) -> None:
        world = self._world
        until_us = deadline(world, timeout)
        thread, current = self._thread, world.current
        if thread is None or current is None:
            return
        thread.joining.append(current)
        try:
            while not thread.is_done and world.now_us < until_us:
                world.park(until_us)
        finally:
            thread.joining.remove(current)


class Local:
    """Values that each thread has of its own."""

    _world: World

    def _values(self) -> dict[str, Any]:
        current = self._world.current
        if current is None:
            return {}
        return current.locals.setdefault(id(self), {})

    def __getattr__(self, name: str) -> Any:
        try:
            return self._values()[name]
        except KeyError:
            raise AttributeError(name) from None

    def __setattr__(self, name: str, value: Any) -> None:
        self._values()[name] = value


class Pool:
    """Threads that do what is submitted, in its order; the next is started when all are busy."""

    _world: World

    def __init__(self, max_workers: int = 8, thread_name_prefix: str = "worker", **_: Any) -> None:
        self._max = max_workers
        self._name = thread_name_prefix
        self._work: deque[tuple[Future[Any], Callable[..., Any], tuple[Any, ...], dict[str, Any]]] = deque()
        self._idle: deque[Greenthread] = deque()
        self._threads: list[Greenthread] = []
        self._is_closed = False

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        if self._is_closed:
            raise RuntimeError("cannot schedule new futures after shutdown")
        world = self._world
        future: Future[Any] = Future()
        self._work.append((future, fn, args, kwargs))
        if self._idle:
            world.wake(self._idle.popleft())
        elif len(self._threads) < self._max:
            current = world.current
            if current is None or current.process.is_dead:
                raise Killed
            thread = world.spawn(current.process, self._run, f"{self._name}-{len(self._threads)}")
            self._threads.append(thread)
        return future

    def _run(self) -> None:
        world = self._world
        while True:
            while not self._work:
                if self._is_closed:
                    return
                assert world.current is not None
                if world.current not in self._idle:
                    self._idle.append(world.current)
                world.park()
            future, fn, args, kwargs = self._work.popleft()
            if not future.set_running_or_notify_cancel():
                continue
            world.step_aside()
            try:
                result = fn(*args, **kwargs)
            except Killed:
                raise
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(result)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self._is_closed = True
        if cancel_futures:
            while self._work:
                self._work.popleft()[0].cancel()
        for thread in self._threads:
            self._world.wake(thread)
        if wait:
            current = self._world.current
            assert current is not None
            for thread in self._threads:
                thread.joining.append(current)
            while any(not thread.is_done for thread in self._threads):
                self._world.park()
