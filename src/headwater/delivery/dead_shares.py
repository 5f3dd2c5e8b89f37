"""Shares of dead letters: how many the subscriptions of each client of a server have, and how large they are.

A letter is a copy of its message, so that whoever rejects what it gets would fill the disk for everybody. Counted are
letters, and those that were redriven and are not done. Promises: those of a subscription are counted when it is loaded,
or by upkeep soon after the bus was opened, and kept up to date from then on; what nobody's subscriptions have is not
limited.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from headwater import threads
from headwater.config import Config


class DeadShares:
    """Dead letters of all subscriptions, by the clients that made them."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._lock = threads.Lock()
        self._known: dict[int, tuple[str, int, int]] = {}
        """By subscription: whose it is, letters and bytes, without"""
        self._redriven: dict[int, tuple[int, int]] = {}
        """those that were redriven, and are not done."""
        self._letters: Counter[str] = Counter()
        self._bytes: Counter[str] = Counter()

    def is_known(self, number: int) -> bool:
        """Whether a subscription's letters were counted."""
        return number in self._known

    def load(self, number: int, owner: str, letters: int, size: int) -> None:
        """So many are a subscription's, whatever was known of it before."""
        if owner:
            with self._lock:
                self._set(number, owner, letters, size)

    def change(self, number: int, letters: int, size: int) -> None:
        """There are so many more, or fewer."""
        with self._lock:
            known = self._known.get(number)
            if known is not None:
                owner, before, bytes_before = known
                self._set(number, owner, max(0, before + letters), max(0, bytes_before + size))

    def redrive(self, number: int, letters: int, size: int) -> None:
        """So many are handed out again, and count until they are done."""
        with self._lock:
            if letters and number in self._known:
                before, bytes_before = self._redriven.get(number, (0, 0))
                self._redriven[number] = before + letters, bytes_before + size
                owner, known, bytes_known = self._known[number]
                self._known[number] = owner, max(0, known - letters), max(0, bytes_known - size)

    def done(self, number: int, copies: int) -> None:
        """So many copies of a subscription are done; the redriven ones are taken to be as large as each other."""
        with self._lock:
            if number in self._redriven:
                letters, size = self._redriven[number]
                fewer = min(copies, letters)
                self._take_redriven(number, fewer, size * fewer // letters)

    def redriven(self, number: int) -> int:
        """How many of a subscription were redriven, and are not done."""
        return self._redriven.get(number, (0, 0))[0]

    def drop(self, number: int) -> None:
        """A subscription is gone."""
        self.drop_redriven(number)
        with self._lock:
            known = self._known.get(number)
            if known is not None:
                self._set(number, known[0], 0, 0)
                del self._known[number]

    def drop_redriven(self, number: int) -> None:
        """Its copies are gone."""
        with self._lock:
            if number in self._redriven:
                self._take_redriven(number, *self._redriven[number])

    def _take_redriven(self, number: int, letters: int, size: int) -> None:
        owner = self._known[number][0]
        before, bytes_before = self._redriven.pop(number)
        if letters < before:
            self._redriven[number] = before - letters, bytes_before - size
        self._add(owner, -letters, -size)

    def room(self, owner: str, sizes: Iterable[int]) -> int:
        """How many letters of these sizes, the first of them, a client may have besides those that it has."""
        letters, size = self._letters[owner], self._bytes[owner]
        room = 0
        for one in sizes:
            letters, size = letters + 1, size + one
            if owner and (
                letters > self._config.dead_letters_per_client_max
                or size > self._config.dead_letter_bytes_per_client_max
            ):
                break
            room += 1
        return room

    def _set(self, number: int, owner: str, letters: int, size: int) -> None:
        _, before, bytes_before = self._known.get(number, (owner, 0, 0))
        self._known[number] = (owner, letters, size)
        self._add(owner, letters - before, size - bytes_before)

    def _add(self, owner: str, letters: int, size: int) -> None:
        for counter, more in ((self._letters, letters), (self._bytes, size)):
            counter[owner] += more
            if not counter[owner]:
                del counter[owner]
