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
from heapq import nsmallest
from typing import TYPE_CHECKING, Any, TypeVar

from headwater.actor import Unfinished
from headwater.clock import SECOND_US
from headwater.errors import Closed, NotFound, TimedOut
from headwater.server.broker import Broker
from headwater.server.live_pump import LivePump
from headwater.wire import administration as wire
from headwater.wire.request import Page, rows_max

if TYPE_CHECKING:
    from headwater.server.connection import Connection
    from headwater.server.session import Session

SLICE = 200
"""Sessions that are looked at in one turn of the loop, and subscriptions of theirs: it ends with the session that
reaches this."""

Infos = list[wire.SessionInfo]
R = TypeVar("R")


class Presence:
    """The sessions of a server, as they are asked about."""

    def __init__(self, loop: asyncio.AbstractEventLoop, broker: Broker) -> None:
        self._loop = loop
        self._broker = broker
        self._began_us = broker.clock.now_us() - round(loop.time() * SECOND_US)
        """When the loop's clock was 0."""

    def list(self, asking: Session, request: wire.ListSessions) -> Callable[[], Any]:
        """Sessions that somebody may see, by id: a page of them, after an id; with an id, that one."""
        page = Page[wire.SessionInfo](request.limit)
        if request.id is not None:
            session = self._known(asking, request.id)
            return lambda: self._infos([session], page)
        return partial(self._fill, asking, page, request.after, rows_max(request.limit))

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

    def _fill(self, asking: Session, page: Page[wire.SessionInfo], after: str | None, limit: int) -> Infos | Unfinished:
        """Look at the next sessions; until a page is full, or there are no others, once more after others' turn."""
        sessions, user = self._broker.sessions, asking.row.user
        ids = sessions.ids() if self._broker.is_admin(user, asking.row.id) else sessions.ids_of(user)
        next_ids = nsmallest(limit, (one for one in ids if after is None or one > after))
        found = (session for one in next_ids if (session := sessions.get(one)) is not None)
        self._infos([session for session in found if self._sees(asking, session)], page)
        if page.is_full or len(next_ids) < limit:
            return page.rows
        return Unfinished(partial(self._fill, asking, page, next_ids[-1], limit))

    def _infos(self, sessions: Sequence[Session], page: Page[wire.SessionInfo]) -> Infos:
        """Put these on a page, as far as it has room; a few in each turn of the loop."""
        while sessions and not page.is_full:
            sessions = sessions[self._on_loop(partial(self._look, sessions, page)) :]
        return page.rows

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

    def _look(self, sessions: Sequence[Session], page: Page[wire.SessionInfo]) -> int:
        """Put the first of these on a page; how many that were."""
        work = 0
        for count, session in enumerate(sessions, 1):
            if not session.is_ended:
                page.add(self._info(session))
                work += len(session.pumps) + len(session.subscriptions)
            work += 1
            if page.is_full or work >= SLICE:
                return count
        return len(sessions)

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
