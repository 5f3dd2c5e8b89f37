"""The gate: who asks, and what they may.

- A token opens as far as its role goes: reader < operator < admin. What it opens is remembered for a moment, so that a
  token that was removed opens nothing a moment later.
- Where the server asks nobody who they are, those on loopback are admins without a token: by a name of loopback alone,
  so that a site whose name was made to point here stays out, and never through a proxy, which speaks for others.
- A browser's request that changes something comes from a page of ours, or is refused.
- Whoever shows wrong tokens again and again is not listened to for a while; tokens that were right lately are.
"""

from __future__ import annotations

import hashlib
import shlex
from collections import OrderedDict
from typing import get_args
from urllib.parse import urlsplit

import msgspec
from starlette.datastructures import Headers
from starlette.requests import HTTPConnection

from headwater.access.jwt import TOKEN_CHARS_MAX, looks_like_token
from headwater.access.quota import Quota
from headwater.admin.client import Admin
from headwater.clock import SECOND_US, Clock, SystemClock
from headwater.errors import HeadwaterError, NotAllowed, Unauthenticated
from headwater.log.root import CLOSED
from headwater.server.exposure import is_loopback
from headwater.serving.outside import Outside
from headwater.topics.name import filters_overlap
from headwater.wire.administration import Role

ROLES: tuple[Role, ...] = get_args(Role)
LOCAL = "local"
"""What the audit calls those on loopback who needed no token."""
LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")
REMEMBERED_US = 2 * SECOND_US
"""How long the result of checking a token is cached."""
TOKENS_MAX = 1000
"""Tokens in that cache; beyond it the least recently used leaves."""
WRONG_PER_MINUTE_MAX = 30
"""Wrong tokens from an address before it has to wait."""
SAFE_METHODS = frozenset(("GET", "HEAD", "OPTIONS"))
PROXY_HEADERS = frozenset(
    (
        *("forwarded", "forwarded-for", "via", "x-real-ip", "x-client-ip", "x-cluster-client-ip", "true-client-ip"),
        *("x-original-forwarded-for", "x-envoy-external-address", "cf-connecting-ip", "fastly-client-ip"),
    )
)
"""What proxies say of themselves, or of whom they speak for; besides all that begins so:"""
PROXY_PREFIX = "x-forwarded"
ADVICE = "make one with: headwater tokens add CLIENT --role reader, and send it as Authorization: Bearer TOKEN"


class Caller(msgspec.Struct, frozen=True):
    """Who asks."""

    name: str
    role: Role

    def may(self, role: Role) -> bool:
        """Whether it has this role, or a higher one."""
        return ROLES.index(self.role) >= ROLES.index(role)

    def check(self, role: Role) -> None:
        """NotAllowed (403) unless it has this role, or a higher one."""
        if not self.may(role):
            raise NotAllowed(
                f'the token of "{self.name}" is one of role {self.role}, and this takes {role}; '
                f"make one with: headwater tokens add {self.name} --role {role}"
            )

    def check_sight(self, filter: str) -> None:
        """NotAllowed (403) if a filter, or topic, matches what only admins see."""
        if self.role != "admin" and any(filters_overlap(filter, closed) for closed in CLOSED):
            raise NotAllowed(
                f'the token of "{self.name}" is one of role {self.role}, which does not see all that "{filter}" '
                "matches; ask for less, or with a token of role admin"
            )


class Gate:
    """Lets in those who may come in."""

    def __init__(self, admin: Admin, outside: Outside, clock: Clock | None = None) -> None:
        self._admin = admin
        self._is_open = outside.is_open
        self._folder = outside.folder
        self._clock = clock or SystemClock()
        self._wrong = Quota(WRONG_PER_MINUTE_MAX, self._clock, what="wrong tokens")
        self._known: OrderedDict[bytes, tuple[Caller, int]] = OrderedDict()
        """By a token's hash: whose it is, and until when that needs no asking."""

    async def admit(self, connection: HTTPConnection, token: str | None = None) -> Caller:
        """Who asks through a connection, with its bearer token or the one given: Unauthenticated (401) if unknown."""
        token = token or bearer(connection.headers)
        if token is not None:
            return await self.check(token, address_of(connection))
        if self.needs_token(connection):
            raise Unauthenticated(f"this needs a token; {ADVICE}")
        return Caller(LOCAL, "admin")

    def needs_token(self, connection: HTTPConnection) -> bool:
        """Whether somebody has to show a token: all but those on loopback of a server that is open to them."""
        return not self._is_open or not is_local(connection)

    def first_steps(self, connection: HTTPConnection) -> tuple[str, str]:
        """The commands that make the first token, and another one; where the data is, only this machine is told."""
        where = f" --data {shlex.quote(self._folder)}" if self._folder and is_local(connection) else ""
        return f"headwater init{where}", f"headwater tokens add CLIENT --role reader{where}"

    async def check(self, token: str, address: str) -> Caller:
        """Whose token this is: Unauthenticated (401) if nobody's, QuotaExceeded (429) after too many of those."""
        hashed = hashlib.sha256(token.encode(errors="replace")).digest()
        caller, until_us = self._known.get(hashed, (None, 0))
        if caller is not None and self._clock.monotonic_us() < until_us:
            self._known.move_to_end(hashed)
            return caller
        if caller is None:
            self._wrong.check(address)
        return await self._ask(token, hashed, address)

    async def _ask(self, token: str, hashed: bytes, address: str) -> Caller:
        try:
            if len(token) > TOKEN_CHARS_MAX:
                raise Unauthenticated("no token is as long as this")
            found = await self._admin.tokens.check(token)
        except HeadwaterError as error:
            if not isinstance(error, Unauthenticated):
                raise
            self._known.pop(hashed, None)
            self._wrong.take(address)
            if looks_like_token(token.encode(errors="replace")):
                raise
            raise Unauthenticated(f"this token opens nothing, or no more; {ADVICE}") from None
        caller = Caller(found.client, found.role)
        self._known[hashed] = caller, self._clock.monotonic_us() + REMEMBERED_US
        self._known.move_to_end(hashed)
        if len(self._known) > TOKENS_MAX:
            self._known.popitem(last=False)
        return caller

    def forget(self) -> None:
        """Ask about every token anew: some were removed."""
        self._known.clear()

    def check_site(self, connection: HTTPConnection, method: str) -> None:
        """NotAllowed (403) if a page of another site has a browser ask for this."""
        if self._is_open and not is_ours(connection.headers.get("host", "")):
            raise NotAllowed("this server is asked by a name of loopback: http://127.0.0.1 or http://localhost")
        if method not in SAFE_METHODS and is_cross_site(connection):
            raise NotAllowed("a page of another site may not ask for this; ask from one of this server, or with curl")


def bearer(headers: Headers) -> str | None:
    """The token of a request, if it has one."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    return token.strip() or None if scheme.lower() == "bearer" else None


def address_of(connection: HTTPConnection) -> str:
    """Whom a connection comes from."""
    return connection.client.host if connection.client else ""


def is_local(connection: HTTPConnection) -> bool:
    """Whether somebody on this machine asks, for themselves, by a name of loopback."""
    names = {name.lower() for name in connection.headers}
    is_proxied = not names.isdisjoint(PROXY_HEADERS) or any(name.startswith(PROXY_PREFIX) for name in names)
    return is_loopback(address_of(connection)) and not is_proxied and is_ours(connection.headers.get("host", ""))


def is_ours(host: str) -> bool:
    """Whether a Host header names loopback."""
    try:
        return urlsplit(f"//{host}").hostname in LOOPBACK_NAMES
    except ValueError:
        return False


def is_cross_site(connection: HTTPConnection) -> bool:
    """Whether a browser says that a page of another origin asks. What is no browser says nothing of the kind."""
    headers = connection.headers
    fetched = headers.get("sec-fetch-site")
    if fetched is not None:
        return fetched not in {"same-origin", "none"}
    origin = headers.get("origin")
    return origin is not None and origin.lower().partition("://")[2] != headers.get("host", "").lower()
