"""Clients, rules and channels of a server, as its administrators change them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any, Literal

from headwater.client.pages import listed
from headwater.wire import administration
from headwater.wire.request import Request

Kind = Literal["tcp", "http"]
Ask = Callable[[Request[Any]], Any]
"""Answers with what a request is answered with: for asyncio, an awaitable of it."""


class Asking:
    """A part of a served bus, whose methods are requests."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask


class Clients(Asking):
    """`bus.clients`: who may log in."""

    def add(self, name: str, secret: str | None = None) -> Any:
        """Register a client; its id and its secret, which is generated unless given, and shown this once."""
        return self._ask(administration.AddClient(name=name, secret=secret))

    def rotate(self, name: str, secret: str | None = None) -> Any:
        """Give a client another secret."""
        return self._ask(administration.RotateClient(name=name, secret=secret))

    def remove(self, name: str) -> Any:
        """Remove a client: it can log in no more."""
        return self._ask(administration.RemoveClient(name=name))

    def list(self) -> Any:
        """Every client: `.id .name .created_us .rotated_us`."""
        return listed(self._ask, administration.ListClients, attrgetter("name"))


class Acl(Asking):
    """`bus.acl`: who may do what."""

    def allow(self, user: str, action: str, filter: str) -> Any:
        """Grant an action (publish, subscribe, create, channel, admin) on what a filter matches."""
        return self._change("allow", user, action, filter)

    def deny(self, user: str, action: str, filter: str) -> Any:
        """Forbid it, whatever else grants it."""
        return self._change("deny", user, action, filter)

    def remove(self, user: str, action: str, filter: str) -> Any:
        """Take a rule back."""
        return self._change("remove", user, action, filter)

    def list(self) -> Any:
        """Every rule: `.user .action .filter .allow`."""
        return listed(self._ask, administration.ListRules, attrgetter("user", "action", "filter"))

    def _change(self, change: Literal["allow", "deny", "remove"], user: str, action: str, filter: str) -> Any:
        return self._ask(administration.ChangeRule(change=change, user=user, action=action, filter=filter))


class Channels(Asking):
    """`bus.channels`: push destinations."""

    def add(
        self, name: str, filter: str, destination_host: str, destination_port: int, kind: Kind = "tcp", **others: Any
    ) -> Any:
        """A channel; a list of the one that was made, with its secret if it has one, shown this once."""
        to: dict[str, Any] = {"destination_host": destination_host, "destination_port": destination_port, "kind": kind}
        return self.add_many([administration.ChannelSpec(name=name, filter=filter, **to, **others)])

    def add_many(self, specs: Sequence[administration.ChannelSpec], *, check: bool = False) -> Any:
        """All of these channels, or none; with check=True, only see whether they could be added."""
        return self._ask(administration.AddChannels(channels=tuple(specs), check=check))

    def change(self, id: str, **changes: Any) -> Any:
        """Change what is named; the rest stays."""
        return self._ask(administration.ChangeChannel(id=id, **changes))

    def remove(self, id: str, *, force: bool = False) -> Any:
        """Push no more; what has messages to deliver yet only by force."""
        return self._ask(administration.RemoveChannel(id=id, force=force))

    def list(self, id: str | None = None) -> Any:
        """Every channel, or the one of this id: `.id .name .filter .state .lag …`."""
        if id is not None:
            return self._ask(administration.ListChannels(id=id))
        return listed(self._ask, administration.ListChannels, attrgetter("id"))

    def test(self, id: str) -> Any:
        """Try to reach its destination: `.ok .detail .took_s`."""
        return self._ask(administration.TryChannel(id=id))
