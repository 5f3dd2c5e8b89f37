"""Clients that bring the token of an issuer: let in for as long as it counts, with what it grants.

Promise: a wrong token is answered later with each that came from the same address before it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
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

    def check_for_http(self, token: str) -> Token:
        """Whose token this is, and what it opens of the HTTP API: NotAllowed (403) if nothing. In any thread but the
        loop's."""
        closed = self._broker.acl.closed
        if closed is not None:
            raise Unauthenticated(f"no token opens anything: {closed}")
        bearer = self._issuer.check_here(token)
        if bearer.role is None:
            claim = self._broker.serving.jwt_rules_claim
            raise NotAllowed(
                f"the token of {quoted(bearer.user)} has no role, and opens nothing here; its issuer may add one to "
                f"the claim {quoted(claim)}: reader, operator or admin"
            )
        return Token(id="", client=bearer.user, role=bearer.role, created_us=0)

    def let_in(self, connection: Connection, bearer: Bearer) -> None:
        """A connection is this user's, until the token expires, and may do what it grants besides what rules allow."""
        connection.user = bearer.user
        connection.grant = Grant(self._broker.acl, bearer.user, bearer.rules) if bearer.rules else None
        left_us = bearer.expires_us - self._broker.clock.now_us()
        connection.expires_s = self._loop.time() + max(0.0, left_us / SECOND_US)
