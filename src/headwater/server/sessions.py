"""All sessions: made, resumed, taken over, and reclaimed by a timer once their client is gone.

What a session is stands in the state, so that it survives the server; what it is doing is its own affair. Promises: a
session's id is answered only after it is on disk, unless it ends with its connection, which a crash ends too; another
user's session and one that does not exist are told apart by the answer alone, not by its time; the timer runs only
while no connection serves the session.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import msgspec

from headwater.config import Serving
from headwater.delivery.rows import RowCommit
from headwater.errors import Malformed, NotAllowed, NotFound, QuotaExceeded
from headwater.server.answers import Answers
from headwater.server.bell import Wakes
from headwater.server.broker import Broker
from headwater.server.connection import Connection
from headwater.server.entry import Entry
from headwater.server.log import Log
from headwater.server.session import Session
from headwater.server.session_row import SessionRow, SubscriptionOf, held_key, key_of, keys_held, row_of, stored
from headwater.server.side_pools import SidePools
from headwater.server.slices import Slices
from headwater.server.workers import Workers
from headwater.store import state as rows
from headwater.store.state import State
from headwater.wire.requests import Register, Registered, Subscribed

Then = Callable[[Any, BaseException | None], None]

LATER_S = 1.0
"""How long rows of sessions that end with their connection may wait for others to go to disk with."""

log = Log("headwater.server")


class Sessions:
    """Every session of a server."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        executor: Workers,
        readers: Workers,
        broker: Broker,
        entry: Entry,
        wakes: Wakes,
        answers: Answers,
        serving: Serving,
    ) -> None:
        core = broker.core
        self.loop = loop
        self.executor = executor
        self.readers = readers
        self.side_pools = SidePools(loop)
        """For what is done out of a session's turn."""
        self.broker = broker
        self.entry = entry
        self.wakes = wakes
        self.answers = answers
        self.slices = Slices()
        self.serving = serving
        self._state: State = core.state
        self._rows: RowCommit = core.rows
        self.counts = core.roots.counts
        self._sessions: dict[str, Session] = {}
        self._by_share: Counter[str] = Counter()
        self._by_user: dict[str, dict[str, None]] = {}
        """Ids of sessions."""
        self._takers: Counter[str] = Counter()
        """How many sessions take from a named subscription, whether or not they are connected."""
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._kick: asyncio.TimerHandle | None = None
        self.is_closing = False
        """Whether the server ends, and sessions stay as they are."""

    def recover(self) -> None:
        """Go on with sessions that are stored; what is unknown to every protocol stays as it is."""
        found, changed = stored(self._state)
        if changed:
            self.write(changed)
        for row in sorted(found, key=lambda row: row.began_us):
            try:
                session = self._add(row)
            except Malformed as error:
                log.warning("session-unknown", session=row.id, error=str(error))
            else:
                self._start_timer(session)
        for extension in self.broker.extensions:
            extension.recover()
        for session in self.all():
            if self.broker.is_disowned(session.row.user, session.row.owner_id):
                self.end(session)  # its client was removed while no server ran

    def _add(self, row: SessionRow) -> Session:
        found = (extension.session_of(row) for extension in self.broker.extensions)
        session = next((session for session in found if session is not None), None)
        if session is None:
            raise Malformed("no protocol of this server has such sessions")
        self._sessions[row.id] = session
        self._by_share[row.share or row.user] += 1
        self._by_user.setdefault(row.user, {})[row.id] = None
        for one in session.subscriptions.values():
            self._count_taker(session, one, 1)
        return session

    def __len__(self) -> int:
        return len(self._sessions)

    def all(self) -> tuple[Session, ...]:
        """Every session, connected or not."""
        return tuple(self._sessions.values())

    def ids(self) -> dict[str, None]:
        """Of every session."""
        return dict.fromkeys(self._sessions)

    def ids_of(self, user: str) -> dict[str, None]:
        """Of those of a user."""
        return dict(self._by_user.get(user, ()))

    def get(self, id: str) -> Session | None:
        """One of them."""
        return self._sessions.get(id)

    def served_over(self, connection: Connection) -> Session | None:
        """The one whose connection this is."""
        return connection.session if isinstance(connection.session, Session) else None

    def has(self, id: str) -> bool:
        """Whether there is a session of this id."""
        return id in self._sessions

    def owns(self, subscription: str) -> bool:
        """Whether a subscription's id is one of a session's own."""
        return self.owner_of(subscription) is not None

    def owner_of(self, subscription: str) -> str | None:
        """The session that a subscription belongs to, going by its id."""
        session, colon, _ = subscription.partition(":")
        return session if colon and session in self._sessions else None

    # Registration

    def register(self, connection: Connection, request: Register, then: Then) -> None:
        """Give a connection a new session, or the one that it names."""
        try:
            self.check(connection)
            if request.session is None:
                self._create(connection, request, then)
            else:
                self._resume(connection, request, then)
        except Exception as error:
            then(None, error)

    def _create(self, connection: Connection, request: Register, then: Then) -> None:
        row = SessionRow(
            id=secrets.token_hex(16),
            user=connection.user,
            expire_after_s=self._expire_after_s(request),
            owner_id=self.broker.owner_id(connection),
        )

        def opened(session: Session | None, error: BaseException | None) -> None:
            if session is None:
                then(None, error)
                return
            bus = self.broker.core.id
            then(Registered(session=row.id, resumed=False, expire_after_s=row.expire_after_s, bus=bus), None)

        self.open(row, connection, opened)

    def open(self, row: SessionRow, connection: Connection, then: Then, more: rows.Rows | None = None) -> None:
        """A new session for a connection; `then` gets it once it, and more rows with it, are on disk."""
        share = connection.share
        if share and self.serving.auth == "none":  # by its name: an MQTT client has one session for each id
            share = f"{connection.address}/{connection.user}"
        if len(self._sessions) >= self.serving.sessions_max:
            raise QuotaExceeded(
                f"there are {len(self._sessions)} sessions, as many as sessions_max allows; end some, or raise it"
            )
        if share and self._by_share[share] >= self.serving.sessions_per_client_max:
            raise QuotaExceeded(
                f'client "{share}" has {self._by_share[share]} sessions, as many as sessions_per_client_max allows; '
                "resume one, end some with a GOODBYE, or raise the setting"
            )
        row = msgspec.structs.replace(row, share=share)
        session = self._add(row)
        session.attach(connection)

        def stored(_: object, error: BaseException | None) -> None:
            if error is not None:
                self._forget(session)
                connection.session = None
                then(None, error)
            else:
                session.note(logging.DEBUG, "session-registered", expire_after_s=row.expire_after_s)
                then(session, None)

        self.note(row, stored, more)

    def expire(self, session: Session) -> None:
        """End one that nobody will come back to."""
        session.row = msgspec.structs.replace(session.row, expire_after_s=0.0)
        self._start_timer(session)

    def check(self, connection: Connection) -> None:
        """NotAllowed (403) if its client was removed, or has another secret, since it was asked who it is."""
        objection = self.broker.objection(connection)
        if objection is not None:
            raise objection

    def take_up(self, session: Session, connection: Connection) -> None:
        """Have a session that is there served over this connection."""
        was_alone = session.connection is None
        self._stop_timer(session)
        owner_id = self.broker.owner_id(connection)
        if owner_id and not session.row.owner_id:
            session.row = msgspec.structs.replace(session.row, owner_id=owner_id)
            self.keep(session.row)
        session.attach(connection)
        if was_alone:
            session.note(logging.INFO, "session-resumed", subscriptions=len(session.subscriptions))

    def _resume(self, connection: Connection, request: Register, then: Then) -> None:
        session = self._sessions.get(request.session or "")
        if session is None or self.broker.is_disowned(session.row.user, session.row.owner_id):
            raise NotFound("there is no such session, or no more; register without one, and subscribe again")
        if session.row.user != connection.user:
            raise NotAllowed(f'this session is not one of client "{connection.user}"; register without one')
        if request.expire_after_s is not None:
            session.row = msgspec.structs.replace(session.row, expire_after_s=self._expire_after_s(request))
            self.keep(session.row)
        self.take_up(session, connection)
        if request.on_resume == "redrive":
            session.redrive_all()
        there = tuple(
            Subscribed(number=one.number, id=one.id, filter=one.filter, kind=one.kind, existed=True)
            for one in session.subscriptions.values()
        )
        answer = Registered(
            session=session.row.id,
            resumed=True,
            expire_after_s=session.row.expire_after_s,
            subscriptions=there,
            bus=self.broker.core.id,
            waits=request.waits,
        )
        then(answer, None)

    def _expire_after_s(self, request: Register) -> float:
        asked = request.expire_after_s
        if asked is None:
            return self.serving.session_expire_after_s
        if not asked >= 0:
            raise Malformed(f"expire_after_s is {asked}; use seconds from 0 on")
        return min(asked, self.serving.session_expire_after_s_max)

    # Stored rows

    def keep(self, row: SessionRow, then: Then | None = None, more: rows.Rows | None = None) -> None:
        """Store a session as it is now, and more rows with it."""
        self.write({**row_of(row), **(more or {})}, then)

    def note(self, row: SessionRow, then: Then, more: rows.Rows | None = None) -> None:
        """Store a session as it is now, durably only if it outlives its connection, or something stored with it does.
        The row of any other is there to find by, after a crash, what is stored of it, and is so before that."""
        if row.expire_after_s or more:
            self.keep(row, then, more)
        else:
            self._note_soon(row_of(row), then)

    def hold(self, session: Session, one: SubscriptionOf, then: Then) -> None:
        """Store, in the same way, that a session takes from a subscription."""
        if one.id not in session.subscriptions:
            self._count_taker(session, one, 1)
        session.subscriptions[one.id] = one
        changed: rows.Rows = {held_key(session.row.id, one.id): rows.pack(one)}
        if session.row.expire_after_s:
            self.write(changed, then)
        else:
            self._note_soon(changed, then)

    def let_go(self, session: Session, name: str) -> None:
        """A session takes from a subscription no more."""
        one = session.subscriptions.pop(name, None)
        if one is not None:
            self._count_taker(session, one, -1)
            self.write({held_key(session.row.id, name): None})

    def has_taker(self, name: str) -> bool:
        """Whether any session takes from a named subscription."""
        return name in self._takers

    def _count_taker(self, session: Session, one: SubscriptionOf, more: int) -> None:
        if one.kind == "named" and self._sessions.get(session.row.id) is session:
            self._takers[one.id] += more
            if not self._takers[one.id]:
                del self._takers[one.id]

    def _note_soon(self, changed: rows.Rows, then: Then) -> None:
        self._rows.enqueue(changed)
        if self._kick is None:
            self._kick = self.loop.call_later(LATER_S, self._write_noted)
        self.loop.call_soon(then, None, None)

    def _write_noted(self) -> None:
        self._kick = None
        self._rows.kick()

    def write(self, changed: rows.Rows, then: Then | None = None) -> None:
        """Store rows; `then` hears of it once they, and all that were given before, are on disk."""
        self._rows.enqueue(changed, None if then is None else self.future(then))
        self._rows.kick()

    def future(self, then: Then) -> Future[object]:
        """A future that threads complete, and the loop hears of."""
        future: Future[object] = Future()

        def done(found: Future[object]) -> None:
            if not self.loop.is_closed():
                self.loop.call_soon_threadsafe(then, None, found.exception())

        future.add_done_callback(done)
        return future

    def rows_of(self, prefix: bytes) -> list[tuple[bytes, bytes]]:
        """Stored rows, by their keys."""
        return list(self._state.scan(prefix))

    # The end of a session

    def on_alone(self, session: Session) -> None:
        """A session has lost its connection: it is kept for a while."""
        if session.row.id in self._sessions:
            self._start_timer(session)

    def waits(self, id: str) -> bool:
        """Whether a session waits for its client to come back, and ends if it does not in time."""
        return id in self._timers

    def _start_timer(self, session: Session) -> None:
        self._stop_timer(session)
        self._timers[session.row.id] = self.loop.call_later(session.row.expire_after_s, self._reclaim, session)

    def _reclaim(self, session: Session) -> None:
        """Nobody has come back for it in time."""
        reason = f"nobody came back within {session.row.expire_after_s:g} s"
        level = logging.INFO if session.row.expire_after_s else logging.DEBUG
        session.note(level, "session-reclaimed", subscriptions=len(session.subscriptions), reason=reason)
        self.end(session)

    def _stop_timer(self, session: Session) -> None:
        timer = self._timers.pop(session.row.id, None)
        if timer is not None:
            timer.cancel()

    def end(self, session: Session) -> None:
        """A session and its own subscriptions are gone; named ones stay."""
        session.note(logging.DEBUG, "session-ended")
        self._forget(session)
        session.end()

    def forget(self, session: Session) -> None:
        """Nothing is left of a session: now it is gone for good. A crash before this lets it end once more."""
        name = session.row.id
        waiting = [held_key(name, one) for one in tuple(session.subscriptions)]  # to be written, perhaps
        self.write(dict.fromkeys([*keys_held(self._state, name), *waiting, key_of(name)]))

    def subscriptions_of(self, id: str) -> list[str]:
        """A session's own subscriptions, as they are stored."""
        prefix = rows.SUBSCRIPTION + f"{id}:".encode()
        return [key[len(rows.SUBSCRIPTION) :].decode() for key, _ in self._state.scan(prefix)]

    def _forget(self, session: Session) -> None:
        self._stop_timer(session)
        for one in session.subscriptions.values():
            self._count_taker(session, one, -1)
        if self._sessions.pop(session.row.id, None) is not None:
            share = session.row.share or session.row.user
            self._by_share[share] -= 1
            if not self._by_share[share]:
                del self._by_share[share]
            its = self._by_user[session.row.user]
            del its[session.row.id]
            if not its:
                del self._by_user[session.row.user]
            session.on_forgotten()

    async def close(self) -> None:
        """The server ends: nobody takes from the bus any more, and sessions stay as they are stored."""
        if self._kick is not None:
            self._kick.cancel()
        leaves = [leave for session in self.all() for leave in session.leaves()]
        for session in self.all():
            self._stop_timer(session)

        def leave_all() -> None:
            for leave in leaves:
                leave()

        await self.loop.run_in_executor(self.executor, leave_all)
