"""The wills of all MQTT clients, as they are stored.

    CONNECT ──▶ stored ──────── its client is gone ───────▶ due ──▶ published: the batch takes the row with it
                  └── leave, or the session goes on in time ──▶ dropped

A will is a row of the state before its CONNACK leaves, in the same write as its session, and stays one until it is
decided what becomes of it. Promises: the will of a client that was connected when the server was killed is published
after the next start, once its delay is over, unless its session goes on before; a will is published once, whenever the
server is killed, as the batch names the will, and whoever applies a batch, recovery too, deletes the row; what its
client may publish is looked at when it is published; how many there are, and how much they are, is bounded.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from headwater.access.grant import Grant
from headwater.errors import Closed, DiskFull, Failed, HeadwaterError, QuotaExceeded, ReadOnly
from headwater.log.root import WILLS
from headwater.message import FROM
from headwater.mqtt.packets import Will
from headwater.mqtt.publishing import FLAGS
from headwater.mqtt.translation import headers_of
from headwater.server.log import Log
from headwater.store import state as rows

if TYPE_CHECKING:
    from headwater.log.checks import Checks
    from headwater.log.publish import Publish
    from headwater.message import Headers
    from headwater.mqtt.refused import Refused
    from headwater.server.broker import Broker
    from headwater.server.session_row import SessionRow
    from headwater.server.sessions import Sessions, Then
    from headwater.store.state import Rows

AT_ONCE_MAX = 1000
"""Wills that are published in one commit, where many clients are gone at once."""
AGAIN_S = 10.0
"""How long a will waits for another try if the disk did not take it."""
NOT_YET = (Closed, DiskFull, Failed, ReadOnly)
"""What keeps a will from being stored now, and not for ever."""

log = Log("headwater.mqtt")


class WillRow(msgspec.Struct, frozen=True, array_like=True):
    """A will as it is stored."""

    session: str
    user: str
    client: str
    will: Will
    due_us: int = 0
    """When it is to be published; 0 while its client is connected."""
    owner_id: str = ""
    """That of its session."""


class KeptWill(msgspec.Struct, eq=False):
    """A will whose row is stored, or is about to be."""

    id: str
    row: WillRow
    size: int
    grant: Grant | None = None
    """What the token of its client allows, besides rules; it is stored nowhere."""

    @property
    def delay_s(self) -> float:
        """How long it is to wait once its client is gone."""
        return float(self.row.will.properties.will_delay_interval or 0)


class Wills:
    """Every will of a server."""

    def __init__(self, sessions: Sessions, refused: Refused) -> None:
        self._sessions = sessions
        self._refused = refused
        self._kept: dict[str, KeptWill] = {}
        self._bytes = 0
        self._due: deque[KeptWill] = deque()
        """Those that are to be published now."""
        self._is_publishing = False
        self._is_idle = asyncio.Event()

    def __len__(self) -> int:
        return len(self._kept)

    # Rows

    def recover(self) -> list[KeptWill]:
        """Those that an earlier server has left."""
        for key, value in self._sessions.rows_of(rows.WILL):
            self._add(KeptWill(key[1:].decode(), msgspec.msgpack.decode(value, type=WillRow), len(value)))
        return list(self._kept.values())

    def take(self, will: Will, session: SessionRow, grant: Grant | None = None) -> KeptWill:
        """A will that comes with a CONNECT, to be stored with it; QuotaExceeded (429) if there are too many."""
        serving = self._sessions.serving
        row = WillRow(session.id, session.user, session.client or "", will, owner_id=session.owner_id)
        kept = KeptWill(secrets.token_urlsafe(12), row, len(rows.pack(row)), grant)
        if len(self._kept) >= serving.mqtt_wills_max:
            raise QuotaExceeded(f"{len(self._kept)} wills are stored, as many as mqtt_wills_max allows")
        if self._bytes + kept.size > serving.mqtt_wills_bytes_max:
            raise QuotaExceeded(f"the wills that are stored have {self._bytes} bytes (mqtt_wills_bytes_max)")
        self._add(kept)
        return kept

    def rows(self, kept: KeptWill | None) -> Rows:
        """What stores a will, if there is one."""
        return {} if kept is None else {_key(kept): rows.pack(kept.row)}

    def delay(self, kept: KeptWill, due_us: int) -> None:
        """Its client is gone: note when it is due, which counts though the server ends meanwhile."""
        kept.row = msgspec.structs.replace(kept.row, due_us=due_us)
        self._write(self.rows(kept))

    def drop(self, kept: KeptWill, then: Then | None = None) -> None:
        """It is not to be published; `then` hears of it once that is on disk, or cannot be."""
        self.forget(kept)
        self._write({_key(kept): None}, then)

    def _write(self, changed: Rows, then: Then | None = None) -> None:
        try:
            self._sessions.write(changed, then)
        except HeadwaterError as error:  # nothing can be noted any more, which others have said
            if then is not None:
                self._sessions.loop.call_soon(then, None, error)

    def forget(self, kept: KeptWill) -> None:
        """Nothing of it is stored, or to be counted, any more."""
        if self._kept.pop(kept.id, None) is not None:
            self._bytes -= kept.size

    def _add(self, kept: KeptWill) -> None:
        self._kept[kept.id] = kept
        self._bytes += kept.size

    # Publishing

    def publish(self, kept: KeptWill) -> None:
        """Publish one, with others of this moment."""
        self._due.append(kept)
        self._begin()

    def _begin(self) -> None:
        if self._is_publishing or not self._due:
            return
        some = [self._due.popleft() for _ in range(min(AT_ONCE_MAX, len(self._due)))]
        self._sessions.entry.give_places()  # what its client published comes before its will
        try:
            publishing = self._sessions.loop.run_in_executor(self._sessions.executor, self._publish, some)
        except RuntimeError:  # the server has ended: the rows are there for the next one
            self._due.clear()
            return
        self._is_publishing = True
        self._is_idle.clear()
        publishing.add_done_callback(lambda done: self._published(some, done))

    def _publish(self, some: Sequence[KeptWill]) -> list[BaseException | None]:
        """Publish these, in a thread; what went wrong with each."""
        broker = self._sessions.broker
        core = broker.core
        # What was noted about them is in the state before the batch that deletes it, and does not come back after.
        core.rows.flush()
        met: dict[str, BaseException] = {}
        items: list[tuple[KeptWill, Publish]] = []
        for kept in some:
            row = kept.row
            try:
                item = item_of(
                    row.will, core.checks, broker, (row.user, row.session), ((FROM, f"{row.user}/{row.client}"),)
                )
                broker.clients.check_owner(row.user, row.owner_id)
                broker.check_publish(row.user, row.session, item.parts[0], kept.grant)
                item.producer, item.is_plain = f"{WILLS}/{kept.id}", False
                items.append((kept, item))
            except HeadwaterError as error:
                met[kept.id] = error
        if items:
            core.roots.commit.submit_all([item for _, item in items])
        for kept, item in items:
            try:
                item.wait()
            except Exception as error:
                met[kept.id] = error
        return [met.get(kept.id) for kept in some]

    def _published(self, some: Sequence[KeptWill], done: asyncio.Future[list[BaseException | None]]) -> None:
        self._is_publishing = False
        failed = done.exception()
        for kept, error in zip(some, done.result() if failed is None else [failed] * len(some), strict=True):
            if error is None:
                self.forget(kept)  # its row is gone with the batch
            elif isinstance(error, NOT_YET) or not isinstance(error, HeadwaterError):
                self._wait(kept, error)
            else:
                self.drop(kept)
                self._refused.will(kept.row.user, kept.row.client, error)
        self._begin()
        if not self._is_publishing:
            self._is_idle.set()

    def _wait(self, kept: KeptWill, error: BaseException) -> None:
        """The disk did not take it: its row stays, and it is tried again."""
        log.at_will(logging.WARNING, "will-waits", session=kept.row.session, reason=str(error))
        if not self._sessions.is_closing:
            self._sessions.loop.call_later(AGAIN_S, self.publish, kept)

    async def close(self) -> None:
        """Return once those that are due are published, or are left to the next server."""
        if self._is_publishing:
            await self._is_idle.wait()


def _key(kept: KeptWill) -> bytes:
    return rows.WILL + kept.id.encode()


def item_of(will: Will, checks: Checks, broker: Broker, of: tuple[str, str], tag: Headers = ()) -> Publish:
    """The will of a user's session, ready to be published with headers of the server's own; raises what is wrong."""
    headers, key = headers_of(will.properties, partial(broker.may_be_answered, *of))
    ttl_s = will.properties.message_expiry_interval
    item = checks.one(
        will.topic, will.payload, will.retain, key, headers, float(ttl_s) if ttl_s else None, None, None, None
    )
    item.flags = FLAGS[will.qos]
    if tag:
        item.parts[0].headers = ((*headers, *tag),)
    return item
