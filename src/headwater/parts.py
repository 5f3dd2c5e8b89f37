"""Parts of a bus that administrators look after, as type checkers know them: `bus.clients`, `bus.acl`, `bus.channels`.

Embedded and served are other classes, which do it or ask for it. With asyncio the same methods are coroutines.
"""

from __future__ import annotations

import builtins
from collections.abc import Awaitable, Mapping, Sequence
from typing import Any, Literal, Protocol, TypedDict, Unpack

from headwater.access.acl import Action
from headwater.access.tokens import NewToken, TokenInfo
from headwater.delivery.start import Start
from headwater.message import SubscriptionInfo
from headwater.wire.administration import ChannelInfo, ChannelSpec, ChannelTrial, Client, Registration, Role

Kind = Literal["tcp", "http"]


class Rule(Protocol):
    """Who may do what, or may not, as `bus.acl.list()` has it."""

    @property
    def user(self) -> str: ...
    @property
    def action(self) -> str: ...
    @property
    def filter(self) -> str: ...
    @property
    def allow(self) -> bool: ...


class NewChannel(TypedDict, total=False):
    """What may be stated of a channel besides its name, its filter and its destination."""

    id: str | None
    path: str
    secret: str | None
    start: Literal["earliest", "latest"]
    batch_messages_max: int | None
    options: dict[str, Any]
    """Of its durable subscription, as `subscribe` takes them."""


class ChangedChannel(TypedDict, total=False):
    """What may be changed of a channel."""

    name: str
    destination_host: str
    destination_port: int
    path: str
    secret: str
    batch_messages_max: int
    paused: bool


# For threads


class Clients(Protocol):
    """`bus.clients`: who may log in."""

    def add(self, name: str, secret: str | None = None) -> Registration: ...
    def rotate(self, name: str, secret: str | None = None) -> Registration: ...
    def remove(self, name: str) -> None: ...
    def list(self) -> list[Client]: ...


class Acl(Protocol):
    """`bus.acl`: who may do what."""

    def allow(self, user: str, action: Action, filter: str) -> None: ...
    def deny(self, user: str, action: Action, filter: str) -> None: ...
    def remove(self, user: str, action: Action, filter: str) -> None: ...
    def list(self) -> Sequence[Rule]: ...


class Channels(Protocol):
    """`bus.channels`: what is pushed where."""

    def add(
        self,
        name: str,
        filter: str,
        destination_host: str,
        destination_port: int,
        kind: Kind = "tcp",
        **others: Unpack[NewChannel],
    ) -> builtins.list[ChannelInfo]: ...
    def add_many(self, specs: Sequence[ChannelSpec], *, check: bool = False) -> builtins.list[ChannelInfo]: ...
    def change(self, id: str, **changes: Unpack[ChangedChannel]) -> ChannelInfo: ...
    def remove(self, id: str, *, force: bool = False) -> None: ...
    def list(self, id: str | None = None) -> builtins.list[ChannelInfo]: ...
    def test(self, id: str) -> ChannelTrial: ...


# For asyncio


class AwaitedClients(Protocol):
    """`bus.clients`: who may log in."""

    def add(self, name: str, secret: str | None = None) -> Awaitable[Registration]: ...
    def rotate(self, name: str, secret: str | None = None) -> Awaitable[Registration]: ...
    def remove(self, name: str) -> Awaitable[None]: ...
    def list(self) -> Awaitable[list[Client]]: ...


class AwaitedAcl(Protocol):
    """`bus.acl`: who may do what."""

    def allow(self, user: str, action: Action, filter: str) -> Awaitable[None]: ...
    def deny(self, user: str, action: Action, filter: str) -> Awaitable[None]: ...
    def remove(self, user: str, action: Action, filter: str) -> Awaitable[None]: ...
    def list(self) -> Awaitable[Sequence[Rule]]: ...


class AwaitedChannels(Protocol):
    """`bus.channels`: what is pushed where."""

    def add(
        self,
        name: str,
        filter: str,
        destination_host: str,
        destination_port: int,
        kind: Kind = "tcp",
        **others: Unpack[NewChannel],
    ) -> Awaitable[builtins.list[ChannelInfo]]: ...
    def add_many(
        self, specs: Sequence[ChannelSpec], *, check: bool = False
    ) -> Awaitable[builtins.list[ChannelInfo]]: ...
    def change(self, id: str, **changes: Unpack[ChangedChannel]) -> Awaitable[ChannelInfo]: ...
    def remove(self, id: str, *, force: bool = False) -> Awaitable[None]: ...
    def list(self, id: str | None = None) -> Awaitable[builtins.list[ChannelInfo]]: ...
    def test(self, id: str) -> Awaitable[ChannelTrial]: ...


class AwaitedTokens(Protocol):
    """`bus.tokens`: what opens the HTTP API."""

    def add(self, client: str, role: Role) -> Awaitable[NewToken]: ...
    def remove(self, id: str) -> Awaitable[None]: ...
    def list(self) -> Awaitable[list[TokenInfo]]: ...


class AwaitedDurables(Protocol):
    """`bus.durables`: durable subscriptions, administered by their ids."""

    def info(self, id: str) -> Awaitable[SubscriptionInfo]: ...
    def options(self, id: str) -> Awaitable[dict[str, Any]]: ...
    def seek(self, id: str, to: Start | Mapping[str, int]) -> Awaitable[None]: ...
    def pause(self, id: str) -> Awaitable[None]: ...
    def resume(self, id: str) -> Awaitable[None]: ...
    def delete(self, id: str, *, force: bool = False) -> Awaitable[None]: ...
