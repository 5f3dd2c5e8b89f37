"""A group commit that remembers what it does."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from headwater.log.group_commit import GroupCommit
from headwater.log.items import Item

WAIT_S = 60.0


class Note(Item):
    """An item with a name."""

    name: object

    def result(self) -> object:
        return f"receipt of {self.name}"


class Recorder:
    """A group commit that remembers its groups and the threads that committed them."""

    def __init__(self, weight_max: int = 1000, items_max: int = 1000) -> None:
        self.groups: list[list[object]] = []
        self.threads: list[str] = []
        self.before: Callable[[list[Note]], None] = lambda _: None
        self.commit = GroupCommit[Note]("log", self._commit, weight_max, items_max)

    def _commit(self, items: list[Note]) -> None:
        self.groups.append([item.name for item in items])
        self.threads.append(threading.current_thread().name)
        self.before(items)
        for item in items:
            item.finish()

    @property
    def names(self) -> list[object]:
        return [name for group in self.groups for name in group]

    @contextmanager
    def held(self) -> Iterator[None]:
        """While something else is being committed: what is submitted within becomes one group."""
        inside, go_on = threading.Event(), threading.Event()

        def hold() -> None:
            inside.set()
            assert go_on.wait(WAIT_S)

        holder = threading.Thread(target=lambda: self.commit.run(hold))
        holder.start()
        assert inside.wait(WAIT_S)
        try:
            yield
        finally:
            go_on.set()
            holder.join(WAIT_S)


def raising(error: BaseException) -> Callable[[list[Note]], None]:
    def before(items: list[Note]) -> None:
        raise error

    return before
