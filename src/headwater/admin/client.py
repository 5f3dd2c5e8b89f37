"""The admin client: everything that looks after a broker, as methods.

One class serves threads and asyncio alike: over `headwater.connect` its methods return what was asked for, over
`headwater.aio.connect` an awaitable of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from datetime import datetime
from operator import attrgetter
from typing import Any, Literal

import msgspec

from headwater.admin.search.search import MOST, Asked, Search
from headwater.admin.search.wanted import Wanted
from headwater.client.admin import Acl, Ask, Channels, Clients
from headwater.client.bus import Bus
from headwater.client.pages import listed
from headwater.client.url import Address, Token
from headwater.clock import from_datetime
from headwater.config import Connecting
from headwater.wire import administration as wire
from headwater.wire.request import Change, Option, Request

Kind = Literal["broker", "root", "subscription"]
Start = Literal["earliest", "latest"] | int | datetime


def connect(url: str | Address, settings: Connecting | None = None, *, token: Token | None = None) -> Admin:
    """An admin client of a server; `with` closes it."""
    return Admin(Bus(url, settings, token=token))


class Admin:
    """Looks after a broker."""

    def __init__(self, bus: Any, by: str | None = None, check_sight: Callable[[str], None] | None = None) -> None:
        self.bus = bus
        """The bus itself: publish, subscribe, replay, dead letters."""
        self._by = by
        self._check_sight = check_sight
        ask = bus.ask if by is None else self._ask_for
        self.clients = Clients(ask)
        self.acl = Acl(ask)
        self.tokens = Tokens(ask)
        self.sessions = Sessions(ask)
        self.subscriptions = Subscriptions(ask)
        self.channels = Channels(ask)
        self.ask: Ask = ask

    def acting_for(self, by: str, check_sight: Callable[[str], None] | None = None) -> Admin:
        """The same, where the audit says that somebody else wanted it; `check_sight` raises why they may not have what
        a filter matches."""
        return Admin(self.bus, by, check_sight)

    def _ask_for(self, request: Request[Any]) -> Any:
        if self._check_sight is not None:
            for wanted in _wanted(request):
                self._check_sight(wanted)
        if isinstance(request, Change):
            request = msgspec.structs.replace(request, by=self._by)
        return self.bus.ask(request)

    def levels(self, parent: str = "", *, after: str | None = None, limit: int = 1000) -> Any:
        """The levels right below a topic, or the roots, in order, a page of them after a name."""
        return self.ask(wire.ListLevels(parent=parent, after=after, limit=limit))

    def metrics(self) -> Any:
        """Figures of the broker, as they are now: `.counters .gauges .histograms .roots .subscriptions .slow`."""
        return self.ask(wire.Metrics())

    def history(
        self, kind: Kind = "broker", name: str = "", *, since: datetime | None = None, points: int = 600
    ) -> Any:
        """What the server sampled in the last day: `.times_us .lines .values`."""
        since_us = 0 if since is None else from_datetime(since)
        return self.ask(wire.ReadHistory(kind=kind, name=name, since_us=since_us, points=points))

    def health(self) -> Any:
        """Whether the broker can do its work: `.ok .checks`."""
        return self.ask(wire.CheckHealth())

    def cluster(self) -> Any:
        """How the cluster is that the server is a node of: `.role .leader .epoch .nodes .timeline …`, or None."""
        return self.ask(wire.ShowCluster())

    def config(self) -> Any:
        """Every setting: `.name .value .default .source`."""
        return self.ask(wire.ListSettings())

    def search(
        self,
        filter: str,
        where: str | None = None,
        *,
        text: str | None = None,
        key: str | None = None,
        header: str | None = None,
        after: Mapping[str, int] | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        most: int = MOST,
    ) -> Any:
        """Messages by a condition on JSON fields (`$.sensor == "a"`), a text, a key or a header, over a range:
        `.found .gaps .looked .total .is_end`, and `.places` to go on `after`."""
        asked = Asked(filter, Wanted(where=where, text=text, key=key, header=header), after, since, until, most)
        if not hasattr(self.bus, "_readable"):
            return Search(self.bus, asked).to_its_end()
        return asyncio.to_thread(lambda: Search(self.bus._readable(), asked).to_its_end())

    def pipelines(self) -> Any:
        """How far each root is archived: `.root .first .end .lake .archived .lag`."""
        return self.ask(wire.ListPipelines())

    def jobs(self) -> Any:
        """How the pipelines are that the server runs: `.name .command .state .since_us .restarts .rows .lag .error`."""
        return self.ask(wire.ListJobs())

    def close(self) -> Any:
        """Let go of the server."""
        return self.bus.close()

    def __enter__(self) -> Admin:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _wanted(request: Request[Any]) -> list[str]:
    """The filters of what a request has kept, or pushed, for somebody."""
    match request:
        case wire.CreateSubscription():
            return [request.filter]
        case wire.AddChannels():
            return [channel.filter for channel in request.channels]
    return []


class Tokens:
    """`admin.tokens`: what opens the HTTP API."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask

    def add(self, client: str, role: wire.Role) -> Any:
        """A token of a client; its text is told this once: `.id .token`."""
        return self._ask(wire.AddToken(client=client, role=role))

    def remove(self, id: str) -> Any:
        """Let a token open nothing more."""
        return self._ask(wire.RemoveToken(id=id))

    def list(self) -> Any:
        """Every token: `.id .client .role .created_us`."""
        return listed(self._ask, wire.ListTokens, attrgetter("client", "created_us", "id"))

    def check(self, token: str) -> Any:
        """Whose token this is; Unauthenticated (401) if it is none."""
        return self._ask(wire.CheckToken(token=token))


class Sessions:
    """`admin.sessions`: who is here, and who may come back."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask

    def list(self, *, after: str | None = None, limit: int | None = None) -> Any:
        """Every session, by id: `.id .user .address .subscriptions …`; with a limit a page of them, after an id."""
        return listed(self._ask, wire.ListSessions, attrgetter("id"), limit, after=after)

    def show(self, id: str) -> Any:
        """A list of that one session."""
        return self._ask(wire.ListSessions(id=id))

    def disconnect(self, id: str) -> Any:
        """Cut a session's connection; its client may come back."""
        return self._ask(wire.EndSession(id=id))

    def end(self, id: str) -> Any:
        """End a session, and its own subscriptions with it."""
        return self._ask(wire.EndSession(id=id, for_good=True))


class Subscriptions:
    """`admin.subscriptions`: durable ones, whoever takes from them."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask

    def create(self, id: str, filter: str, *, start: Start = "latest", **options: Option) -> Any:
        """A named subscription that nobody takes from yet."""
        if isinstance(start, datetime):
            return self._ask(
                wire.CreateSubscription(id=id, filter=filter, start_us=from_datetime(start), options=options)
            )
        return self._ask(wire.CreateSubscription(id=id, filter=filter, start=start, options=options))

    def show(self, id: str) -> Any:
        """A subscription: `.info .options .sessions`."""
        return self._ask(wire.ShowSubscription(id=id))

    def seek(self, id: str, to: Start | Mapping[str, int]) -> Any:
        """Have it go on from elsewhere."""
        if isinstance(to, datetime):
            return self._ask(wire.SeekSubscription(id=id, to_us=from_datetime(to)))
        return self._ask(wire.SeekSubscription(id=id, to=dict(to) if isinstance(to, Mapping) else to))

    def pause(self, id: str) -> Any:
        """Have it hand out nothing."""
        return self._ask(wire.PauseSubscription(id=id, paused=True))

    def resume(self, id: str) -> Any:
        """Have it go on."""
        return self._ask(wire.PauseSubscription(id=id, paused=False))

    def delete(self, id: str, *, force: bool = False) -> Any:
        """Delete it; one that somebody takes from only by force."""
        return self._ask(wire.DeleteSubscription(id=id, force=force))
