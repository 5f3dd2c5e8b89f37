"""Visits: who is at the dashboard, from log-in to log-out.

A visit is a number drawn at random that the browser keeps in a cookie; what it stands for stays here, in memory, and is
gone with this process. The token behind it is looked at again with every page and every change, so a token that was
removed opens nothing more, in pages that are open already too.
"""

from __future__ import annotations

import secrets
from collections import OrderedDict

from starlette.requests import HTTPConnection

from headwater.admin.client import Admin
from headwater.admin.gate import Caller, Gate, address_of
from headwater.clock import SECOND_US, SystemClock
from headwater.errors import Unauthenticated
from headwater.wire.administration import Role

VISITS_MAX = 1000
"""Browsers that are logged in; beyond it the one unused for longest is logged out."""
VISITS_PER_CLIENT_MAX = 50
"""Of them, those of one client; beyond it the one of its own that is unused for longest."""
IDLE_US_MAX = 12 * 3600 * SECOND_US
"""How long a browser stays logged in without asking for anything."""
KEY_BYTES = 32


class Visit:
    """Somebody who may look at the dashboard, and do there what their role allows."""

    def __init__(self, gate: Gate, connection: HTTPConnection, token: str | None, caller: Caller) -> None:
        self._gate = gate
        self._connection = connection
        self._token = token
        self.caller = caller
        self.is_over = False
        """Whether they logged out."""
        self.used_us = 0

    @property
    def has_token(self) -> bool:
        """Whether they logged in; those on loopback of an open server need not."""
        return self._token is not None

    async def look(self) -> Caller:
        """Who this is as of now: Unauthenticated (401) if nobody any more."""
        if self.is_over:
            raise Unauthenticated("you are logged out; log in again")
        self.caller = await self._gate.admit(self._connection, self._token)
        return self.caller

    async def acting(self, admin: Admin, role: Role) -> Admin:
        """What changes a broker for this visitor, if they have this role as of now."""
        caller = await self.look()
        caller.check(role)
        return admin.acting_for(caller.name, caller.check_sight)


class Visits:
    """Everybody who is logged in."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self._clock = SystemClock()
        self._visits: OrderedDict[str, Visit] = OrderedDict()
        """By key, the one used last at the end."""

    async def begin(self, connection: HTTPConnection, token: str) -> str:
        """Log in; the key of the visit."""
        visit = Visit(self._gate, connection, token, await self._gate.check(token, address_of(connection)))
        own = [known for known, one in self._visits.items() if one.caller.name == visit.caller.name]
        if len(own) >= VISITS_PER_CLIENT_MAX:
            self.end(own[0])
        elif len(self._visits) >= VISITS_MAX:
            self.end(next(iter(self._visits)))
        key = secrets.token_urlsafe(KEY_BYTES)
        self._visits[key] = visit
        visit.used_us = self._clock.monotonic_us()
        return key

    async def find(self, connection: HTTPConnection, key: str | None) -> Visit:
        """Who asks: the visitor of this key, or somebody who needs none; else Unauthenticated (401)."""
        visit = self._visits.get(key) if key else None
        if visit is None:
            return Visit(self._gate, connection, None, await self._gate.admit(connection))
        now_us = self._clock.monotonic_us()
        if now_us - visit.used_us > IDLE_US_MAX:
            self.end(key)
            raise Unauthenticated("you were away for long; log in again")
        await visit.look()
        visit.used_us = now_us
        self._visits.move_to_end(str(key))
        return visit

    def end(self, key: str | None) -> None:
        """Log out, in every page that is open."""
        visit = self._visits.pop(key, None) if key else None
        if visit is not None:
            visit.is_over = True
