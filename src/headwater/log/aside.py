"""Aside: work on some roots that is done while others commit, and what stays behind it.

Such work is a large group of one root, or the making of roots; one is on its way at a time. Meanwhile its roots are
closed: whatever touches one of them stays, and so do calls, which may touch anything, and other large groups. What
stays and touches several roots closes all of these. Promise: what goes to a root goes in the order in which it came. No
I/O and no locks: whoever holds the group commit's `places` calls this.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence, Set
from typing import Generic, Protocol, TypeVar

from headwater.log.items import Call, Item

T = TypeVar("T", bound=Item)
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


class InFlight(Generic[T]):
    """A large group on its way to disk, or roots that are made."""

    __slots__ = ("error", "is_written", "items", "roots", "work")

    def __init__(self, items: list[T], roots: frozenset[str]) -> None:
        self.items = items
        self.roots = roots
        self.work: Apart[T] | None = None
        self.is_written = False
        """Whether it is on disk, or why it is not is known: it is to be ended."""
        self.error: BaseException | None = None


class Aside(Generic[T]):
    """What is on its way apart, and what stays for it."""

    __slots__ = ("closed", "in_flight", "may_wait", "stays", "weight_min")

    def __init__(self, weight_min: int) -> None:
        self.weight_min = weight_min
        """What a large group weighs at least."""
        self.in_flight: InFlight[T] | None = None
        self.closed: set[str] = set()
        """Its roots, and those of what stays."""
        self.stays: list[T | Call] = []
        """What waits for it to end, and comes before all that is pending."""
        self.may_wait = False
        """Whether all that stays may wait for company, and nobody has asked for it to be committed."""

    def divide(
        self, group: list[T | Call], allowed: Sequence[str] | None
    ) -> tuple[list[T | Call], list[T], list[T | Call]]:
        """Those of a group that are committed now, the large group to begin after them, of one of these roots or of
        any, and those that somebody else is to see to at once, as he may begin another; the others stay."""
        weights: defaultdict[str, int] = defaultdict(int)
        for item in group:
            if not isinstance(item, Call) and len(item.roots) == 1:
                weights[item.roots[0]] += item.weight
        now: list[T | Call] = []
        stays: list[T | Call] = []
        large: list[T] = []
        closed = self.closed
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
            elif len(roots) != 1 or weights[roots[0]] < self.weight_min:
                now.append(item)
            elif self.in_flight is None and opened in ("", roots[0]) and (allowed is None or roots[0] in allowed):
                opened = roots[0]
                large.append(item)
            else:
                closed.update(roots)
                stays.append(item)
        if self.in_flight is None and not large:  # nothing is begun that they could wait for
            if stays:
                closed.clear()
            return now, large, stays
        if stays:
            self.stays += stays
            self.may_wait = False
        if opened:
            closed.add(opened)
        return now, large, []

    def holds(self, item: T | Call, is_any_pending: bool) -> bool:
        """Whether what has come stays, as far as that is seen at once: nobody need be woken to find out."""
        if isinstance(item, Call):
            return not is_any_pending  # or something that it comes after may stay, too
        roots = item.roots
        return len(roots) == 1 and roots[0] in self.closed

    def keep(self, item: T | Call, may_wait: bool) -> None:
        """Have what it holds stay."""
        self.may_wait = may_wait and (self.may_wait or not self.stays)
        self.stays.append(item)

    def put_off(self, waits: Sequence[T], back: Sequence[T | Call], came: Sequence[T | Call]) -> list[T | Call]:
        """Have items that wait for their roots stay, with what goes back behind them, and with those of what came
        meanwhile that are behind either; answers the others of these."""
        closed = self.closed
        closed.update(root for item in waits for root in item.roots)
        self.stays = [*back, *self.stays]
        self.may_wait = False
        others: list[T | Call] = []
        for item in came:
            if isinstance(item, Call) or not closed.isdisjoint(item.roots):
                closed.update(item.roots)
                self.stays.append(item)
            else:
                others.append(item)
        return others

    def behind(self, roots: Set[str]) -> list[T]:
        """What stays and goes to some of these roots."""
        return [item for item in self.stays if not isinstance(item, Call) and not roots.isdisjoint(item.roots)]

    def open(self) -> tuple[list[T | Call], bool]:
        """There is none any more; what stayed for it, and whether that is to be committed now."""
        self.in_flight = None
        self.closed.clear()
        stayed, self.stays = self.stays, []
        return stayed, bool(stayed) and not self.may_wait
