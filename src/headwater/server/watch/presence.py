"""Who is here, and who may come back: sessions as administrators see and end them.

Administrators see every session, others those of their own user; nobody sees the session of the process that serves
HTTP, who would cut off all who look. What a session is doing belongs to the loop, so it is
looked at there, a few sessions at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from headwater.clock import SECOND_US
from headwater.errors import Closed, NotFound, TimedOut
from headwater.server.broker import Broker
from headwater.server.live_pump import LivePump
from headwater.wire import administration as wire

if TYPE_CHECKING:
    from headwater.server.connection import Connection
    from headwater.server.session import Session

SLICE = 200
"""Sessions that are looked at in one turn of the loop."""

Infos = list[wire.SessionInfo]
R = TypeVar("R")


class Presence:
    """The sessions of a server, as they are asked about."""

    def __init__(self, loop: asyncio.AbstractEventLoop, broker: Broker) -> None:
        self._loop = loop
        self._broker = broker
        self._began_us = broker.clock.now_us() - round(loop.time() * SECOND_US)
        """When the loop's clock was 0."""

    def list(self, asking: Session, request: wire.ListSessions) -> Callable[[], Infos]:
        """Every session that somebody may see, by user and id; with an id, that one."""
        if request.id is not None:
            session = self._known(asking, request.id)
            return lambda: self._on_loop(partial(self._look, [session]))
        return lambda: self._infos([one for one in self._broker.sessions.all() if self._sees(asking, one)])

    def end(self, asking: Session, request: wire.EndSession) -> Callable[[], None]:
        """Cut a session's connection, or end it for good."""
        session = self._known(asking, request.id)
        end = self._end if request.for_good else self._disconnect
        return lambda: end(session)

    def takers(self, asking: Session, subscription: str) -> tuple[str, ...]:
        """Ids of the sessions that take from a durable subscription, of those that somebody may see; in any thread."""
        return tuple(
            sorted(
                one.row.id
                for one in self._broker.sessions.all()
                if any(taker.id == subscription for taker in tuple(one.pumps.values())) and self._sees(asking, one)
            )
        )

    def _sees(self, asking: Session, session: Session) -> bool:
        if session.connection is not None and session.connection.is_own:
            return False
        return session.row.user == asking.row.user or self._broker.is_admin(asking.row.user, asking.row.id)

    def _known(self, asking: Session, id: str) -> Session:
        """A session that somebody may see: of others nobody learns whether they are there."""
        session = self._broker.sessions.get(id)
        if session is None or not self._sees(asking, session):
            raise NotFound("there is no session of this id; headwater sessions list shows those that are")
        return session

    # In a thread

    def _infos(self, sessions: Sequence[Session]) -> Infos:
        slices = (sessions[first : first + SLICE] for first in range(0, len(sessions), SLICE))
        found = [info for few in slices for info in self._on_loop(partial(self._look, few))]
        return sorted(found, key=lambda info: (info.user, info.id))

    def _disconnect(self, session: Session) -> None:
        if address := self._on_loop(lambda: self._cut(session)):
            self._note("session-disconnected", session, address)

    def _end(self, session: Session) -> None:
        def end() -> str | None:
            if session.is_ended:
                return None
            address = _address(session)
            self._broker.sessions.end(session)
            return address

        address = self._on_loop(end)
        if address is not None:
            session.erase()
            self._broker.core.rows.flush()
            self._note("session-ended", session, address)

    def _note(self, what: str, session: Session, address: str) -> None:
        before = {"user": session.row.user, "address": address}
        self._broker.core.audit.note(what, session.row.id, before)

    def _on_loop(self, work: Callable[[], R]) -> R:
        """Have something done in a turn of the loop, and wait for it."""
        done: Future[R] = Future()

        def do() -> None:
            if done.set_running_or_notify_cancel():
                try:
                    done.set_result(work())
                except Exception as error:
                    done.set_exception(error)

        self._loop.call_soon_threadsafe(do)
        call_s = self._broker.serving.call_s
        try:
            return done.result(call_s)
        except TimeoutError:
            if not done.cancel():  # it is at it right now
                return done.result()
            raise TimedOut(f"the server did not come to it within {call_s} s (call_s); ask again") from None

    # On the loop

    def _cut(self, session: Session) -> str:
        connection = session.connection
        if connection is None or connection.is_closed:
            return ""
        connection.say_goodbye(Closed("an administrator has cut this connection; connect again"), reconnect=True)
        return connection.address

    def _look(self, sessions: Sequence[Session]) -> Infos:
        return [self._info(session) for session in sessions if not session.is_ended]

    def _info(self, session: Session) -> wire.SessionInfo:
        connection, row = session.connection, session.row
        served = [
            wire.SessionSubscription(kind=one.kind, filter=one.filter, id=one.id) for one in session.pumps.values()
        ]
        there = {one.id for one in served}
        served += [
            wire.SessionSubscription(kind=one.kind, filter=one.filter, id=one.id)
            for one in session.subscriptions.values()
            if one.id not in there
        ]
        return wire.SessionInfo(
            id=row.id,
            user=row.user,
            address=_address(session),
            connected_us=0 if connection is None else self._since_us(connection),
            expire_after_s=row.expire_after_s,
            subscriptions=tuple(served),
            waiting_bytes=0 if connection is None else connection.waiting_bytes,
            dropped=sum(one.live.dropped for one in session.pumps.values() if isinstance(one, LivePump)),
            client=row.client or _client_id(connection, row.user),
            **({} if connection is None else _spoken(connection)),
        )

    def _since_us(self, connection: Connection) -> int:
        return self._began_us + round(connection.begun_s * SECOND_US)


def _client_id(connection: Connection | None, user: str) -> str:
    """Of a native client: that in the registry, or what its session is known by."""
    return "" if connection is None or connection.client_id == user else connection.client_id


def _spoken(connection: Connection) -> dict[str, Any]:
    """What is told of a connection."""
    return {
        "protocol": connection.language + (", TLS" if connection.has_tls else ""),
        "host": connection.host,
        "pid": connection.pid,
        "bytes_in": connection.bytes_in,
        "bytes_out": connection.bytes_out,
    }


def _address(session: Session) -> str:
    return session.connection.address if session.connection is not None else ""
