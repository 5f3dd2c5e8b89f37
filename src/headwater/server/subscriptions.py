"""Durable subscriptions as they are looked after over the wire: who may, and what is then done.

Whoever may subscribe to what a subscription gets may look after it; a session's own is for that session and for
administrators alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from headwater.clock import to_datetime
from headwater.delivery.start import Start, check_start
from headwater.errors import Malformed, NotAllowed
from headwater.server.broker import Broker
from headwater.server.watch.presence import Presence
from headwater.topics.name import check_filter
from headwater.wire import administration as wire

if TYPE_CHECKING:
    from headwater.server.session import Session

Work = Callable[[], Any]
AboutOne = wire.ShowSubscription | wire.SeekSubscription | wire.PauseSubscription | wire.DeleteSubscription


class Subscriptions:
    """Requests about durable subscriptions, whoever takes from them."""

    def __init__(self, broker: Broker, presence: Presence) -> None:
        self._broker = broker
        self._presence = presence

    def work_for(self, session: Session, request: AboutOne | wire.CreateSubscription) -> Work:
        """What a request asks to be done, if its session may ask for it."""
        durables = self._broker.core.durables
        if isinstance(request, wire.CreateSubscription):
            return self._create(session, request)
        name = request.id
        self._broker.check_subscription(session.row.user, session.row.id, name)
        match request:
            case wire.ShowSubscription():
                return lambda: wire.SubscriptionDetail(
                    info=durables.info(name),
                    options=durables.options(name),
                    sessions=self._presence.takers(session, name),
                )
            case wire.SeekSubscription():
                if isinstance(request.to, dict):
                    places = request.to
                    return lambda: durables.seek(name, places)
                to = _moment(request.to, request.to_us)
                check_start(durables.row(name).options.filter, to)
                return lambda: durables.seek(name, to)
            case wire.PauseSubscription():
                return lambda: durables.pause(name) if request.paused else durables.resume(name)
            case wire.DeleteSubscription():
                return lambda: durables.delete(name, force=request.force)

    def _create(self, session: Session, request: wire.CreateSubscription) -> Work:
        broker = self._broker
        check_filter(request.filter, broker.core.config)
        broker.check_subscribe(session.row.user, session.row.id, request.filter)
        if broker.sessions.owns(request.id):
            raise NotAllowed(f'"{request.id}" is a session\'s own subscription; choose another id')
        if not request.id:
            raise Malformed("a named subscription needs an id")
        start = _moment(request.start, request.start_us)
        check_start(request.filter, start)
        given: dict[str, Any] = {name: value for name, value in request.options.items() if value is not None}
        return lambda: broker.core.durables.create(request.id, request.filter, start=start, **given)


def _moment(place: Start, time_us: int | None) -> Start:
    return place if time_us is None else to_datetime(time_us)
