"""Admission: which publishes of a group are stored, decided before anything of it is.

Promises: what a call brings to one root is admitted whole or not at all; nothing admitted goes over a limit, others of
its group counted; what an idempotent producer sent before is not stored again, and is answered as it was then.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from headwater.errors import Conflict, HeadwaterError
from headwater.log.due_rows import DueRows
from headwater.log.free_room import LOOK_AFTER_BYTES, FreeRoom
from headwater.log.group import CommitGroup, Singles
from headwater.log.new_roots import NewRoots
from headwater.log.publish import Part, Publish
from headwater.log.refusals import Refusals
from headwater.log.root import UNCOUNTED, Root
from headwater.log.root_limits import RootLimits, check_open
from headwater.log.showing import Shown


class Admission:
    """Who is let into a group; by the thread that commits."""

    def __init__(
        self,
        roots: Mapping[str, Root],
        new_roots: NewRoots,
        room: FreeRoom,
        limits: RootLimits,
        due_rows: DueRows,
        refusals: Refusals,
    ) -> None:
        self._roots = roots
        self._new_roots = new_roots
        self._room = room
        self._limits = limits
        self._due_rows = due_rows
        self._refusals = refusals

    def admit(self, items: Sequence[Publish], group: CommitGroup) -> None:
        """Give calls their places in a group; those that get none are refused, or wait until roots of them are made,
        and the others do not notice."""
        room, roots, admitted, waits = self._room, self._roots, group.admitted, group.waits
        if room.since_bytes >= LOOK_AFTER_BYTES or not room.is_left:
            room.look()
        for item in items:
            if waits and not group.closed.isdisjoint(item.roots):
                group.put_off(item)
                continue
            if item.is_plain and room.is_left:
                part = item.parts[0]
                root = roots.get(part.root)
                if root is not None and root.stream.failed is None and root.knows(part.topics[0]):
                    singles = group.singles.get(root)
                    if singles is None:
                        singles = group.singles[root] = Singles(item.flags, False)
                    elif singles.is_shown or singles.flags != item.flags:
                        singles = group.next_singles(root, item.flags)
                    singles.parts.append(part)
                    singles.items.append(item)
                    admitted.append(item)
                    continue
            if self._new_roots.keep_waiting(item):
                group.put_off(item)
                continue
            try:
                if isinstance(item, Shown):
                    self._admit_shown(item, group)
                elif not self._admit(item, group):
                    continue
            except HeadwaterError as error:
                self._refusals.refuse(item, error)
                continue
            admitted.append(item)
            if item.producer is not None and len(item.runs) == len(item.parts):
                group.repeats.append(item)  # it is stored, whatever becomes of the others

    def forget_promises(self, group: CommitGroup) -> None:
        """A group was appended, or was not."""
        for root in group.promised:
            root.forget_promises()
        self._due_rows.forget_promises()

    def _admit(self, item: Publish, group: CommitGroup) -> bool:
        """Give a call its places in the group, each root's messages on their own: all of them, or none; whether all
        roots' are admitted."""
        parts = item.parts
        if len(parts) == 1:
            self._admit_parts(item, parts, self._familiar(item, parts), group)
            return True
        roots = self._familiar(item, parts)
        if roots is not None and item.producer is None:
            self._admit_parts(item, parts, roots, group)
            return True
        refusals = []
        for part in parts:
            try:
                if part.misfit is not None:
                    raise part.misfit
                self._admit_parts(item, [part], self._familiar(item, (part,)), group)
            except HeadwaterError as error:
                refusals.append((part, error))
        item.refusals = refusals
        if len(refusals) == len(parts):
            raise refusals[0][1]
        if refusals:
            group.partly.append(item)
        return not refusals

    def _admit_parts(self, item: Publish, parts: list[Part], roots: list[Root] | None, group: CommitGroup) -> None:
        """Give parts their places, all of them or none; with their roots, if they can go over no limit."""
        fresh = self._unrepeated(item, parts, group)
        if fresh and not self._room.is_left and not item.is_urgent:
            raise self._room.refusal()
        if len(fresh) < len(parts) and roots is not None:
            roots = self._familiar(item, fresh)
        if roots is None:
            roots = self._promised(item, fresh, group)
        for root, part in zip(roots, fresh, strict=True):
            if item.producer is None and len(part.payloads) == 1 and (part.body is None or item.is_plain):
                group.add_single(root, item, part)
                continue
            group.add_batch(root, item, part)
            if item.producer is not None:
                group.coming.setdefault((part.root, item.producer), {})[item.sequence] = (item, part)

    def _admit_shown(self, item: Shown, group: CommitGroup) -> None:
        """Give what was shown of a root its places: nothing is shown that may be refused, if the disk does not."""
        if not self._room.is_left:
            raise self._room.refusal()
        root = self._new_roots.open(item.root, item)
        check_open(root)
        for part in item.parts:
            if part.is_plain:
                group.add_single(root, item, part, is_shown=True)
            else:
                group.add_batch(root, item, part, is_shown=True)

    def _familiar(self, item: Publish, parts: Sequence[Part]) -> list[Root] | None:
        """The roots of parts that can go over no limit, as all their topics are known; None if some may."""
        if item.is_delayed:
            return None
        roots = []
        for part in parts:
            root = self._roots.get(part.root)
            if root is None or root.stream.failed is not None or part.retain is not None or part.misfit is not None:
                return None
            if not root.knows_all(part.names):
                return None
            roots.append(root)
        return roots

    def _promised(self, item: Publish, parts: list[Part], group: CommitGroup) -> list[Root]:
        """The roots of parts that go over no limit, made if they are new; others of the group are admitted with these
        parts in mind."""
        self._limits.check(parts, item.owner, may_make=not item.is_delayed)
        if item.is_delayed:
            self._due_rows.promise(item.owner)
        roots = [self._new_roots.open(part.root, item) for part in parts]
        for root, part in zip(roots, parts, strict=True):
            if part.retain is not None or not root.knows_all(part.names):
                group.promised.append(root)
                root.promise(part.names, part.retains(), item.owner)
        return roots

    def _unrepeated(self, item: Publish, parts: list[Part], group: CommitGroup) -> list[Part]:
        """The parts that are to be stored; what an idempotent producer sent before is answered as it was then."""
        if item.producer is None or item.producer.startswith(UNCOUNTED):
            return parts
        self._refusals.check_order(item, parts)
        fresh = []
        for part in parts:
            coming = group.coming.get((part.root, item.producer), {})
            if item.sequence in coming:
                _check_same(item, part, len(coming[item.sequence][1].topics))
                group.echoes.append((item, part, *coming[item.sequence]))
                continue
            root = self._roots.get(part.root)
            stored = root.producers.repeated(item.producer, item.sequence) if root is not None else None
            if stored is not None:
                _check_same(item, part, stored.count)
                item.runs.append((part.positions, stored.first_offset, stored.time_us, True))
                continue
            if coming and item.sequence < max(coming):
                raise Conflict(
                    f'sequence {item.sequence} of producer "{item.producer}" comes after {max(coming)}; '
                    "a producer's sequences grow with each publish"
                )
            fresh.append(part)
        return fresh


def _check_same(item: Publish, part: Part, count: int) -> None:
    if count != len(part.topics):
        raise Conflict(
            f'sequence {item.sequence} of producer "{item.producer}" was {count} messages to "{part.root}" the first '
            f"time and is {len(part.topics)} now; give what is new a new sequence"
        )
