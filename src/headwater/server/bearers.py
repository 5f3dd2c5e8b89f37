"""Clients that bring the token of an issuer: let in for as long as it counts, with what it grants.

Promise: a wrong token is answered later with each that came from the same address before it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING

from headwater.access.grant import Grant
from headwater.access.jwt import Bearer
from headwater.access.name import quoted
from headwater.access.oauthbearer import Said
from headwater.clock import SECOND_US
from headwater.errors import Failed, HeadwaterError, NotAllowed, Unauthenticated
from headwater.wire.administration import Token

if TYPE_CHECKING:
    from headwater.server.broker import Broker
    from headwater.server.connection import Connection
    from headwater.server.issuer import Issuer

WAITING_MAX = 64
"""Tokens that wait for the issuer's keys; one more of the HTTP API: TimedOut (504), as all of it is one connection."""


class Bearers:
    """Checks tokens for connections."""

    def __init__(self, loop: asyncio.AbstractEventLoop, broker: Broker, issuer: Issuer) -> None:
        self._loop = loop
        self._broker = broker
        self._issuer = issuer

    def check(
        self,
        connection: Connection,
        said: Said,
        then: Callable[[Bearer], None],
        refuse: Callable[[HeadwaterError], None],
    ) -> None:
        """Find out whose token a connection, which is held meanwhile, brings: `then` or `refuse` hears of it, on the
        loop, unless it is closed by then."""

        def checked(bearer: Bearer | None, error: HeadwaterError | None) -> None:
            if connection.is_closed:
                return
            if bearer is not None and said.user not in ("", bearer.user):
                bearer, error = None, Unauthenticated("the token is another user's than the name beside it")
            if bearer is None:
                self._refuse_later(connection, refuse, error or Failed("the token could not be checked"))
                return
            try:
                then(bearer)
            except HeadwaterError as refusal:
                refuse(refusal)

        self._issuer.check(said.token, checked)

    def _refuse_later(
        self, connection: Connection, refuse: Callable[[HeadwaterError], None], error: HeadwaterError
    ) -> None:
        guesses = self._broker.guesses
        if isinstance(error, Unauthenticated):
            guesses.failed(connection.address)
        self._loop.call_later(guesses.delay_s(connection.address), refuse, error)

    def check_for_http(self, token: str) -> Future[Token]:
        """Whose token this is, and what it opens of the HTTP API: NotAllowed (403) if nothing. From any thread."""
        closed = self._broker.acl.closed
        if closed is not None:
            raise Unauthenticated(f"no token opens anything: {closed}")
        done: Future[Token] = Future()

        def checked(bearer: Bearer | None, error: HeadwaterError | None) -> None:
            if bearer is None:
                done.set_exception(error or Failed("the token could not be checked"))
            elif bearer.role is None:
                done.set_exception(self._without_role(bearer.user))
            else:
                done.set_result(Token(id="", client=bearer.user, role=bearer.role, created_us=0))

        self._loop.call_soon_threadsafe(self._issuer.check, token, checked, WAITING_MAX)
        return done

    def _without_role(self, user: str) -> NotAllowed:
        claim = quoted(self._broker.serving.jwt_rules_claim)
        return NotAllowed(
            f"the token of {quoted(user)} has no role, and opens nothing here; its issuer may add one to the claim "
            f"{claim}: reader, operator or admin"
        )

    def let_in(self, connection: Connection, bearer: Bearer) -> None:
        """A connection is this user's, until the token expires, and may do what it grants besides what rules allow."""
        connection.user = bearer.user
        connection.grant = Grant(self._broker.acl, bearer.user, bearer.rules) if bearer.rules else None
        left_us = bearer.expires_us - self._broker.clock.now_us()
        connection.expires_s = self._loop.time() + max(0.0, left_us / SECOND_US)
