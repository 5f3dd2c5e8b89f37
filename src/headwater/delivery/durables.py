"""Durable subscriptions, administered by their ids without a consumer: created, moved, paused, deleted.

A consumer moves and pauses its subscription by the same way. Promises: whatever is done here is in the audit; nothing
is deleted while it has consumers unless by force, and then they get Closed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from headwater.audit import Audit
from headwater.config import Config
from headwater.delivery.dispatcher import Dispatcher
from headwater.delivery.options import Options, check_not_of_channel, stated
from headwater.delivery.rows import SubscriptionRow
from headwater.delivery.start import Start, check_start, floor_for
from headwater.delivery.subscriber import Subscriber
from headwater.errors import HeadwaterError, Malformed, NotFound
from headwater.log.root import Root
from headwater.log.roots import Roots
from headwater.message import SubscriptionInfo
from headwater.store.readers import Reader
from headwater.topics.name import check_filter, filter_covers_root


class Durables:
    """Every durable subscription of a bus."""

    def __init__(
        self, dispatcher: Dispatcher, roots: Roots, config: Config, audit: Audit, check_writable: Callable[[], None]
    ) -> None:
        self._dispatcher = dispatcher
        self._roots = roots
        self._config = config
        self._audit = audit
        self._check_writable = check_writable

    # Queries

    def row(self, id: str) -> SubscriptionRow:
        """A subscription as it is stored; NotFound (404) if there is none."""
        row = self._dispatcher.row(id)
        if row is None:
            raise NotFound(f'there is no subscription "{id}"; bus.subscriptions() lists those that are')
        return row

    def info(self, id: str) -> SubscriptionInfo:
        """A subscription as users see it."""
        return self._dispatcher.info(self.row(id))

    def infos(
        self, waiting: Sequence[Reader], after: str | None = None, limit: int | None = None
    ) -> list[SubscriptionInfo]:
        """Those that are stored, and those of readers that wait for the folder's owner, as they will be."""
        if not waiting:
            return self._dispatcher.listing.infos(after, limit)
        found = {info.id: info for info in self._dispatcher.listing.infos()}
        for reader in waiting:
            try:
                self._check(reader)
            except HeadwaterError:
                continue  # its owner will say so
            row = self._dispatcher.row(reader.id)
            if row is None:
                options = Options(id=reader.id, filter=reader.filter, expire_after_s=reader.expire_after_s)
                row = SubscriptionRow(number=0, options=options, created_us=0, used_us=0)
            if row.options.filter == reader.filter:
                found[reader.id] = self._dispatcher.info(row, self._positions(reader.filter, reader.places))
        names = sorted((name for name in found if after is None or name.encode() > after.encode()), key=str.encode)
        return [found[name] for name in names[:limit]]

    def options(self, id: str) -> dict[str, Any]:
        """What was decided about it, besides its filter."""
        return options_of(self.row(id).options)

    # Changes

    def create(self, id: str, filter: str, *, start: Start = "latest", **given: Any) -> None:
        """A named subscription without a consumer; Conflict (409) if there is one that differs."""
        self.create_for("", id, filter, start, given)

    def create_for(self, owner: str, id: str, filter: str, start: Start, given: dict[str, Any]) -> None:
        """The same, in somebody's share."""
        self._check_writable()
        check_not_of_channel(id)
        check_filter(filter, self._config)
        check_start(filter, start)
        try:
            given = stated(given)
            options = Options(id=id, filter=filter, **given)
        except TypeError:
            known = ", ".join(options_of(Options(id="", filter="")))
            raise Malformed(f"options are {sorted(given)}; those that there are: {known}") from None
        if self._dispatcher.create(options, given, start, owner):
            after = {"filter": filter, "start": start, **options_of(options)}
            self._audit.note("subscription-created", id, None, after)

    def seek(self, id: str, to: Start | Mapping[str, int]) -> None:
        """Move its cursor; with offsets by root, roots that are not named stay."""
        self._check_writable()

        def work(subscriber: Subscriber) -> tuple[dict[str, int], dict[str, int]]:
            before = subscriber.progress.floors()
            self.move(subscriber, to)
            return before, subscriber.progress.floors()

        before, after = self._dispatcher.use(id, work)
        self._audit.note("subscription-sought", id, {"floors": before}, {"to": to, "floors": after})

    def move(self, subscriber: Subscriber, to: Start | Mapping[str, int]) -> None:
        """Move the cursor of a subscription that is served."""
        wanted = subscriber.options.filter
        if isinstance(to, Mapping):
            subscriber.seek(self._positions(wanted, to))
            return
        check_start(wanted, to)
        subscriber.seek({root.stream.number: floor_for(root, wanted, to) + 1 for root in self._covered(wanted)})

    def _covered(self, filter: str) -> list[Root]:
        return [root for root in self._roots.all() if filter_covers_root(filter, root.name)]

    def _positions(self, filter: str, places: Mapping[str, int]) -> dict[int, int]:
        """By stream, the next offset; of roots that the filter covers, and not beyond their ends."""
        streams = {root.name: root.stream for root in self._covered(filter)}
        return {
            streams[root].number: max(1, min(offset, streams[root].durable + 1))
            for root, offset in places.items()
            if root in streams
        }

    def keep(self, reader: Reader) -> None:
        """Have a subscription, made if need be, stand where a reader is that keeps its own place; that counts as a
        use of it. In the committing role."""
        self._check(reader)
        given: dict[str, Any] = {}
        if reader.is_stated or self._dispatcher.row(reader.id) is None:
            given["expire_after_s"] = reader.expire_after_s
        options = Options(id=reader.id, filter=reader.filter, **given)
        ticket = object()
        subscriber = self._dispatcher.attach(options, given, "earliest", ticket)
        try:
            self.move(subscriber, reader.places)
        finally:
            self._dispatcher.detach(subscriber, ticket)

    def _check(self, reader: Reader) -> None:
        check_not_of_channel(reader.id)
        check_filter(reader.filter, self._config)

    def pause(self, id: str) -> None:
        """Stop delivery, to any consumer, until it is resumed."""
        self._pause(id, paused=True)

    def resume(self, id: str) -> None:
        """Resume delivery."""
        self._pause(id, paused=False)

    def _pause(self, id: str, *, paused: bool) -> None:
        self._check_writable()
        if self.row(id).paused == paused:
            return
        self._dispatcher.use(id, lambda subscriber: self._dispatcher.pause(subscriber, paused))
        self._audit.note("subscription-paused" if paused else "subscription-resumed", id)

    def delete(self, id: str, *, force: bool = False) -> None:
        """Delete it, its place and its dead letters; one with consumers only by force: Conflict (409)."""
        self._check_writable()
        check_not_of_channel(id)
        row = self.row(id)
        self._dispatcher.delete(id, unless_used=not force)
        self._audit.note("subscription-deleted", id, {"filter": row.options.filter, **options_of(row.options)})

    def expire(self, id: str, kept_for: str | None = None) -> None:
        """Delete one whose session is over: no change of an administrator. Its dead letters are kept for its user."""
        self._check_writable()
        self._dispatcher.delete(id, kept_for=kept_for)


def options_of(options: Options) -> dict[str, Any]:
    """Options besides those that name it."""
    return {name: value for name, value in msgspec.structs.asdict(options).items() if name not in ("id", "filter")}
