"""Durable subscriptions as they are looked after over the wire."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from headwater.clock import to_datetime
from headwater.delivery.start import Start, check_start
from headwater.errors import Conflict, Malformed, NotAllowed
from headwater.server.broker import Broker
from headwater.server.watch.presence import Presence
from headwater.wire import administration as wire

if TYPE_CHECKING:
    from headwater.server.session import Session

Work = Callable[[], Any]


class Subscriptions:
    """Requests about durable subscriptions, whoever takes from them."""

    def __init__(self, broker: Broker, presence: Presence) -> None:
        self._broker = broker
        self._presence = presence

    def create(self, session: Session, request: wire.CreateSubscription) -> Work:
        if self._broker.sessions.owns(request.id):
            raise NotAllowed(f'"{request.id}" is a session\'s own subscription; choose another id')
        if not request.id:
            raise Malformed("a named subscription needs an id")
        self._broker.check_named(session.row.user, session.row.id, request.filter)
        start = _moment(request.start, request.start_us)
        check_start(request.filter, start)
        given: dict[str, Any] = dict(request.options)
        broker, row = self._broker, session.row
        owner = session.share

        def work() -> None:
            try:
                broker.core.durables.create_for(owner, request.id, request.filter, start, given)
            except Conflict as error:
                raise broker.unrevealing(row.user, row.id, request.id, error) from None

        return work

    def show(self, session: Session, request: wire.ShowSubscription) -> Work:
        durables, name = self._broker.core.durables, request.id
        return lambda: wire.SubscriptionDetail(
            info=durables.info(name), options=durables.options(name), sessions=self._presence.takers(session, name)
        )

    def seek(self, session: Session, request: wire.SeekSubscription) -> Work:
        durables, name = self._broker.core.durables, request.id
        if isinstance(request.to, dict):
            places = request.to
            return lambda: durables.seek(name, places)
        to = _moment(request.to, request.to_us)
        check_start(durables.row(name).options.filter, to)
        return lambda: durables.seek(name, to)

    def pause(self, session: Session, request: wire.PauseSubscription) -> Work:
        durables = self._broker.core.durables
        change = durables.pause if request.paused else durables.resume
        return lambda: change(request.id)


def _moment(place: Start, time_us: int | None) -> Start:
    return place if time_us is None else to_datetime(time_us)
