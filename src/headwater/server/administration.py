"""What administrators ask for: each request is one arm that checks rights, on the loop, and gives the work that is then
done in a thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from headwater.errors import Malformed
from headwater.server.broker import Broker
from headwater.server.subscriptions import Subscriptions
from headwater.server.watch.presence import Presence
from headwater.wire import administration as wire
from headwater.wire.request import Request

if TYPE_CHECKING:
    from headwater.server.session import Session

Work = Callable[[], Any]


class Administration:
    """Looks after clients, rules, sessions and subscriptions, and tells how the broker is doing."""

    def __init__(self, loop: asyncio.AbstractEventLoop, broker: Broker) -> None:
        self._loop = loop
        self._broker = broker
        self._presence = Presence(loop, broker)
        self._subscriptions = Subscriptions(broker, self._presence)

    def work_for(self, session: Session, request: Request) -> Work:
        """What a request asks to be done, if its session may ask for it."""
        match request:
            case wire.ListLevels() | wire.Metrics() | wire.CheckHealth() | wire.ListSettings() | wire.ListPipelines():
                return self._broker.overview.work_for(session, request)
            case wire.ListSessions():
                return self._presence.list(session, request.id)
            case wire.EndSession():
                self._broker.check_admin(session.row.user, "end sessions")
                return self._presence.end(session, request)
            case (
                wire.CreateSubscription()
                | wire.ShowSubscription()
                | wire.SeekSubscription()
                | wire.PauseSubscription()
                | wire.DeleteSubscription()
            ):
                return self._subscriptions.work_for(session, request)
            case wire.AddToken() | wire.RemoveToken() | wire.ListTokens() | wire.CheckToken():
                return self._tokens(session.row.user, request)
            case _:
                return self._access(session.row.user, request)

    def _tokens(self, user: str, request: Request) -> Work:
        self._broker.check_admin(user, "look after tokens")
        tokens = self._broker.tokens
        match request:
            case wire.AddToken():
                return lambda: tokens.add(request.client, request.role)
            case wire.RemoveToken():
                return lambda: tokens.remove(request.id)
            case wire.ListTokens():
                return tokens.list
            case wire.CheckToken():
                return lambda: tokens.check(request.token)
        raise Malformed(f"a request {type(request).__name__} is not one about tokens")

    def _access(self, user: str, request: Request) -> Work:
        """Clients and rules."""
        broker = self._broker
        broker.check_admin(user, "look after clients and rules")
        clients, acl = broker.clients, broker.acl
        match request:
            case wire.AddClient():
                return lambda: _registration(clients.add(request.name, request.secret))
            case wire.RotateClient():
                return lambda: _registration(clients.rotate(request.name, request.secret))
            case wire.RemoveClient():
                return lambda: self._changed(lambda: clients.remove(request.name))
            case wire.ListClients():
                return lambda: [wire.Client(c.id, c.name, c.created_us, c.rotated_us) for c in clients.list()]
            case wire.ChangeRule():
                change = {"allow": acl.allow, "deny": acl.deny, "remove": acl.remove}[request.change]
                return lambda: self._changed(lambda: change(request.user, request.action, request.filter))  # type: ignore[arg-type]  # checked there
            case wire.ListRules():
                return lambda: [wire.Rule(r.user, r.action, r.filter, r.allow) for r in acl.list()]
        raise Malformed(f"a request {type(request).__name__} is not one for here")

    def _changed(self, work: Callable[[], object]) -> None:
        """Change clients or rules; sessions feel it at once."""
        work()
        self._loop.call_soon_threadsafe(self._broker.recheck)


def _registration(made: Any) -> wire.Registration:
    return wire.Registration(made.id, made.name, made.secret)
