"""The registry of channels: what is pushed where. Each has a durable subscription, `channel:<id>`, which is its place.

Invariants:

- A channel's row is stored before its subscription is made, and removed after it is deleted: after a crash in between,
  whoever serves the channel makes the subscription that is missing. So no subscription is without its channel.
- Its secret is shown once, to whoever makes or changes it. It is stored sealed, with the folder's key; where that is
  gone, it stays as it is stored, and the channel waits for another.
- A destination is checked against the list before anything changes.
- Memory changes after the state has, one whole row at a time: readers need no lock.
"""

from __future__ import annotations

import builtins
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from operator import attrgetter
from typing import Any, Literal, NamedTuple

import msgspec

from headwater import threads
from headwater.access.destination import Destinations
from headwater.access.name import quoted
from headwater.book import Book
from headwater.channels.row import BATCH_MESSAGES, ChannelRow, check_row
from headwater.core import Core
from headwater.errors import Conflict, HeadwaterError, Malformed, NotFound, QuotaExceeded, SecretMissing
from headwater.message import SubscriptionInfo
from headwater.store import state as rows
from headwater.store.keys import KEY, is_sealed
from headwater.store.state import key_words, pack
from headwater.wire import webhook
from headwater.wire.administration import ChannelInfo, ChannelSpec, ChannelTrial
from headwater.wire.request import page_after

CHANNELS_MAX = 1000
"""One more channel: QuotaExceeded (429)."""
ID_BYTES = 8


class Status(NamedTuple):
    """What a channel is doing, while a server runs it."""

    state: str
    error: str
    address: str
    delivered: int


STOPPED = Status("stopped", "", "", 0)


class ChannelRegistry:
    """The channels of a bus; changes are durable when they return."""

    def __init__(self, core: Core) -> None:
        self._book = Book(core.state, read_only=core.is_read_only, audit=core.audit)
        self._clock = core.clock
        self._key = core.data.key
        self._on_trouble = core.events.trouble
        self._config = core.config
        self._dispatcher = core.dispatcher
        self.channels_max = CHANNELS_MAX
        """A setting of the server, who sets it here."""
        self.channels_per_client_max = CHANNELS_MAX
        """The same."""
        self.destinations = Destinations()
        """The same."""
        self.on_change: Callable[[str], None] | None = None
        """Called with the id after each change of a channel, by the thread that made it."""
        self.status: Callable[[str], Status] = lambda _: STOPPED
        """Asks whoever serves the channels."""
        self.trial: Callable[[str], ChannelTrial] | None = None
        """The same, to reach one's destination."""
        self._lock = threads.Lock()
        self._by_id: dict[str, ChannelRow] = {}
        self.reload()

    # Changing

    def add(
        self,
        name: str,
        filter: str,
        destination_host: str,
        destination_port: int,
        kind: Literal["tcp", "http"] = "tcp",
        **others: Any,
    ) -> list[ChannelInfo]:
        """A channel; a list of the one that was made, with its secret if it has one, shown this once."""
        spec = ChannelSpec(
            name=name,
            filter=filter,
            destination_host=destination_host,
            destination_port=destination_port,
            kind=kind,
            **others,
        )
        return self.add_many([spec])

    def add_many(
        self, specs: Sequence[ChannelSpec], owner: str = "", owner_id: str = "", *, check: bool = False
    ) -> list[ChannelInfo]:
        """All of these channels, or none; with check=True, only see whether they could be added."""
        self._book.check_writable()
        fresh: list[ChannelRow] = []
        for place, spec in enumerate(specs, 1):
            with _one_of(place, len(specs)):
                fresh.append(self._row(spec, owner, owner_id))
        with self._lock:
            self._check_room(fresh, owner)
            if check:
                return []
            self._book.write({_key(row.id): self._packed(row) for row in fresh})
            try:
                for row in fresh:
                    self._dispatcher.create(row.subscribed, {}, row.start)
            except BaseException:
                self._withdraw(fresh)
                raise
            self._by_id.update({row.id: row for row in fresh})
            for row in fresh:
                self._book.note("channel-added", row.id, None, _shown(row))
        self._tell(fresh)
        return [self._info(row, row.secret or None) for row in fresh]

    def change(self, id: str, **changes: Any) -> ChannelInfo:
        """Change what is named: name, destination_host, destination_port, path, secret (empty: one that is drawn),
        batch_messages_max, paused. The rest stays."""
        given = {name: value for name, value in changes.items() if value is not None}
        paused = given.pop("paused", None)
        secret = given.get("secret")
        if secret == "":
            given["secret"] = secret = _drawn_secret()
        unknown = given.keys() - CHANGES
        if unknown:
            raise Malformed(
                f"{quoted(min(unknown))} of a channel cannot be changed; {', '.join(CHANGES)} and paused can"
            )
        self._book.check_writable()
        before = self._known(id)
        if given:
            self._check(msgspec.structs.replace(before, **given))
        with self._lock:
            before = self._known(id)
            row = msgspec.structs.replace(before, **given)
            if row != before:
                self._book.write({_key(id): self._packed(row)})
                self._by_id[id] = row
                after = _shown(row) | ({"secret": "another"} if row.secret != before.secret else {})
                self._book.note("channel-changed", id, _shown(before), after)
            if paused is not None:
                self._pause(row, bool(paused))
        self._tell([row])
        return self._info(row, secret)

    def remove(self, id: str, *, force: bool = False) -> None:
        """Push no more; one that has messages to deliver yet, or dead letters: Conflict (409), unless forced."""
        self._book.check_writable()
        with self._lock:
            row = self._known(id)
            info = self._info(row)
            if (info.lag or info.dead) and not force:
                raise Conflict(
                    f"channel {quoted(id)} is not done (messages to deliver: {info.lag}, dead letters: {info.dead}); "
                    "wait until it is, or remove it with force, which drops them"
                )
            self._unsubscribe(row)
            self._book.write({_key(id): None})
            del self._by_id[id]
            self._book.note("channel-removed", id, {**_shown(row), "lag": info.lag, "dead": info.dead})
        self._tell([row])

    def reload(self) -> None:
        """Read the registry again, as after another process changed it."""
        with self._lock:
            self._by_id = {row.id: self._opened(row) for row in self._book.read(rows.CHANNEL, ChannelRow)}
        lacking = [row.id for row in self.rows() if is_sealed(row.secret)]
        if lacking and not self._book.is_read_only:
            names = ", ".join(map(quoted, lacking))
            self._on_trouble(f"these channels push nothing, as they need their secret again: {names}")

    def subscribe_to(self, spec: ChannelSpec, owner: str, owner_id: str) -> ChannelInfo:
        """A channel of a client; the one that it has for the same filter and destination, if there is one."""
        wanted = (spec.filter, spec.destination_host, spec.destination_port)
        own = [row for row in self.rows() if row.owner == owner]
        for row in own:
            there = (row.filter, row.destination_host, row.destination_port)
            if there == wanted and spec.id in (None, row.id):
                return self._info(row)
        if len(own) >= self.channels_per_client_max:
            raise QuotaExceeded(
                f"client {quoted(owner)} has {len(own)} channels, as many as channels_per_client_max allows; "
                "unsubscribe some"
            )
        return self.add_many([spec], owner, owner_id)[0]

    # Looking

    def rows(self) -> list[ChannelRow]:
        """Every channel as it is stored, by id."""
        return sorted(self._by_id.copy().values(), key=lambda row: row.id)

    def get(self, id: str) -> ChannelRow | None:
        """One of them."""
        return self._by_id.get(id)

    def list(self, id: str | None = None) -> list[ChannelInfo]:
        """Every channel, or the one of this id."""
        return [self._info(row) for row in (self.rows() if id is None else [self._known(id)])]

    def page(self, id: str | None, after: str | None, limit: int | None) -> builtins.list[ChannelInfo]:
        """The next of them after an id, or the one of this id."""
        if id is not None:
            return self.list(id)
        rows = page_after(self._by_id.copy().values(), attrgetter("id"), after, limit)
        return [self._info(row) for row in rows]

    def check_secret(self, row: ChannelRow) -> None:
        """SecretMissing (409) if a channel's secret is stored, and cannot be opened."""
        if is_sealed(row.secret):
            try:
                self._key.open(row.secret, _key(row.id))
            except SecretMissing as error:
                raise SecretMissing(
                    f"channel {quoted(row.id)} needs its secret again ({error.args[0]}); give it with: headwater "
                    f"channels change {row.id} --secret-stdin, or bring the folder's {KEY} back and start anew"
                ) from None

    def test(self, id: str) -> ChannelTrial:
        """Try to reach its destination."""
        self.check_secret(self._known(id))
        if self.trial is None:
            raise Conflict("no server runs the channels of this folder; start one with: headwater serve")
        return self.trial(id)

    # Subscriptions

    def serve(self, row: ChannelRow, ticket: object) -> Any:
        """Take from a channel's subscription; one that a crash kept from being made is made."""
        return self._dispatcher.attach(row.subscribed, {}, row.start, ticket)

    def _unsubscribe(self, row: ChannelRow) -> None:
        try:
            self._dispatcher.delete(row.subscription)
        except NotFound:
            pass

    def _withdraw(self, fresh: Sequence[ChannelRow]) -> None:
        for row in fresh:
            self._unsubscribe(row)
        self._book.write({_key(row.id): None for row in fresh})

    def _pause(self, row: ChannelRow, paused: bool) -> None:
        dispatcher = self._dispatcher
        stored = dispatcher.row(row.subscription)
        if stored is not None and stored.paused != paused:
            dispatcher.use(row.subscription, lambda subscriber: dispatcher.pause(subscriber, paused))
            self._book.note("channel-paused" if paused else "channel-resumed", row.id)

    def pause(self, id: str) -> None:
        """Push nothing until it is resumed, as its destination wants it."""
        with self._lock:
            self._pause(self._known(id), True)

    # Rows

    def _row(self, spec: ChannelSpec, owner: str, owner_id: str) -> ChannelRow:
        """A channel that can be; Malformed (422), or NotAllowed (403), says what is wrong with any other."""
        is_http = spec.kind == "http"
        if spec.secret is not None and not is_http:
            raise Malformed("a tcp channel has no secret; leave it out, or make it an http channel")
        row = ChannelRow(
            id=secrets.token_hex(ID_BYTES) if spec.id is None else spec.id,
            **{name: getattr(spec, name) for name in AS_ASKED},
            secret=(spec.secret or _drawn_secret()) if is_http else "",
            batch_messages_max=spec.batch_messages_max or BATCH_MESSAGES.get(spec.kind, 1),
            options=dict(spec.options),
            created_us=self._clock.now_us(),
            owner=owner,
            owner_id=owner_id,
        )
        self._check(row)
        return row

    def _packed(self, row: ChannelRow) -> bytes:
        """A channel as it is stored: with its secret sealed."""
        if row.secret and not is_sealed(row.secret):
            row = msgspec.structs.replace(row, secret=self._key.seal(row.secret, _key(row.id)))
        return pack(row)

    def _opened(self, row: ChannelRow) -> ChannelRow:
        """The same with its secret, if that can be opened."""
        try:
            return msgspec.structs.replace(row, secret=self._key.open(row.secret, _key(row.id)))
        except SecretMissing:
            return row

    def _check(self, row: ChannelRow) -> None:
        check_row(row, self._config)
        self.destinations.resolve(row.destination_host, row.destination_port)

    def _check_room(self, fresh: Sequence[ChannelRow], owner: str) -> None:
        seen: dict[str, ChannelRow] = {}
        for place, row in enumerate(fresh, 1):
            there = self._by_id.get(row.id) or seen.get(row.id)
            if there is not None:
                what = f" ({there})" if owner in ("", there.owner) else ""  # another client's is nobody's business
                with _one_of(place, len(fresh)):
                    raise Conflict(
                        f"there is a channel {quoted(row.id)} already{what}; change that one, or choose another id"
                    )
            seen[row.id] = row
        if len(self._by_id) + len(fresh) > self.channels_max:
            raise QuotaExceeded(
                f"there are {len(self._by_id)} channels, and channels_max is {self.channels_max}; remove some that are "
                "not used, or raise the setting"
            )

    def _known(self, id: str) -> ChannelRow:
        row = self._by_id.get(id)
        if row is None:
            raise NotFound(f"there is no channel {quoted(id)}; headwater channels list shows those that are")
        return row

    def _info(self, row: ChannelRow, secret: str | None = None) -> ChannelInfo:
        status = self.status(row.id)
        there = self._subscription(row)
        return ChannelInfo(
            **{name: getattr(row, name) for name in ChannelInfo.__struct_fields__ if name in AS_STORED},
            state="paused" if there is not None and there.paused else status.state,
            error=status.error,
            address=status.address,
            delivered=status.delivered,
            lag=0 if there is None else there.lag,
            retrying=0 if there is None else there.retrying,
            dead=0 if there is None else there.dead,
            secret=secret,
        )

    def _subscription(self, row: ChannelRow) -> SubscriptionInfo | None:
        """None if it is not made yet, or was just deleted."""
        stored = self._dispatcher.row(row.subscription)
        try:
            return None if stored is None else self._dispatcher.info(stored)
        except NotFound:
            return None

    def _tell(self, changed: Sequence[ChannelRow]) -> None:
        if self.on_change is not None:
            for row in changed:
                self.on_change(row.id)


AS_ASKED = ("name", "filter", "kind", "destination_host", "destination_port", "path", "start")
"""What of a channel is stored as it is asked for."""
AS_STORED = frozenset(ChannelRow.__struct_fields__) - {"secret"}
"""What is shown of a channel, if it is shown at all, as it is stored."""
CHANGES = ("name", "destination_host", "destination_port", "path", "secret", "batch_messages_max")
"""What of a channel may be changed, besides whether it is paused."""


def _shown(row: ChannelRow) -> dict[str, Any]:
    """A channel without its secret, for the audit."""
    return {name: value for name, value in msgspec.structs.asdict(row).items() if name not in ("id", "secret")}


@contextmanager
def _one_of(place: int, count: int) -> Iterator[None]:
    """An error in here says which of several channels it is about."""
    try:
        yield
    except HeadwaterError as error:
        if count == 1:
            raise
        raise type(error)(f"channel {place} of {count}: {error.args[0]}") from None


def _key(id: str) -> bytes:
    return key_words(rows.CHANNEL, id)


def _drawn_secret() -> str:
    return webhook.secret_text(secrets.token_bytes(webhook.SECRET_BYTES))
