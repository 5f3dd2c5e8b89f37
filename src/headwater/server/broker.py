"""The broker: who may do what.

Everything that a session wants goes past here first: rights, quotas, and the sessions themselves. Without
authentication everybody may do everything, and the server listens on loopback alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from headwater.access.acl import Acl
from headwater.access.clients import Clients
from headwater.access.grant import Grant
from headwater.access.jwt import looks_like_token
from headwater.access.methods import Methods
from headwater.access.name import INNER
from headwater.access.quota import Guesses, Quota
from headwater.access.tokens import Tokens
from headwater.clock import Clock
from headwater.config import Serving
from headwater.core import Core
from headwater.delivery.options import CHANNEL_PREFIX
from headwater.errors import NotAllowed
from headwater.log.publish import Part
from headwater.requests import REPLY_ROOT
from headwater.wire.administration import Token
from headwater.wire.requests import Register

if TYPE_CHECKING:
    from headwater.server.bearers import Bearers
    from headwater.server.connection import Connection
    from headwater.server.extension import Extension
    from headwater.server.sessions import Sessions
    from headwater.server.watch.overview import Overview


GUESS_DELAY_S = 0.25
"""How long the answer to a first wrong secret is held back; it doubles with each one after."""


class Broker:
    """Decides for the whole server."""

    sessions: Sessions
    overview: Overview

    def __init__(self, core: Core, serving: Serving) -> None:
        self.core = core
        self.serving = serving
        self.clock: Clock = core.clock
        self.clients: Clients = core.clients
        self.clients.iterations = serving.scram_iterations
        self.clients.clients_max = serving.clients_max
        self.acl: Acl = core.acl
        self.acl.rules_max = serving.rules_max
        self.tokens: Tokens = core.tokens
        self.tokens.tokens_max = serving.tokens_max
        longest_s = serving.guess_delay_s_max
        self.guesses = Guesses(self.clock, delay_s=min(GUESS_DELAY_S, longest_s), delay_s_max=longest_s)
        self._topics = Quota(serving.topics_created_per_minute_max, self.clock, setting="topics_created_per_minute_max")
        self.extensions: Sequence[Extension] = ()
        """Protocols and channels, who are asked where this server has no answer."""
        self.methods = Methods(serving)
        self.bearers: Bearers | None = None
        """Lets those in who bring a token of an issuer, where that is on."""
        self._is_open = self.methods.is_open

    def register(
        self, connection: Connection, request: Register, then: Callable[[Any, BaseException | None], None]
    ) -> None:
        """A session for a connection whose user is known."""
        self.sessions.register(connection, request, then)

    def _rights(self, session: str) -> Acl | Grant:
        """What says what a session may: the rules, and beside them what its client's token grants."""
        if not self.methods.takes_tokens:
            return self.acl
        known = self.sessions.get(session)
        return self.acl if known is None or known.grant is None else known.grant

    def regrant(self, connection: Connection) -> None:
        """The client of a session has brought another token: what the one before allowed alone is over."""
        for session in self.sessions.all():
            if session.connection is connection:
                session.grant = connection.grant
                session.recheck()

    def eyes(self, user: str, session: str) -> str:
        """What is the same for sessions that see the same topics."""
        rights = self._rights(session)
        return f"{self.acl.version} {user} {rights.key if isinstance(rights, Grant) else ''}"

    def check_token(self, token: str) -> Token | Future[Token]:
        """Whose token of the HTTP API this is, one of ours or of an issuer, which may take a while; from any thread."""
        if self.bearers is not None and looks_like_token(token.encode(errors="replace")):
            return self.bearers.check_for_http(token)
        found = self.tokens.check(token)
        return Token(id=found.id, client=found.client, role=found.role, created_us=found.created_us)

    # Publishing

    def producer_of(self, user: str, producer: str) -> str:
        """A producer as it is stored: one of the same name of another user is another one, whose sequences are its own
        affair. A user's name has no "/"."""
        return producer if self._is_open else f"{user}/{producer}"

    def check_publish(self, user: str, session: str, part: Part, grant: Grant | None = None) -> None:
        """NotAllowed (403) unless the user may publish to all of these, QuotaExceeded (429) if it makes too many.

        `grant` is that of a connection that has no session yet."""
        if self._is_open or user == INNER:
            return
        root, names = part.root, part.distinct
        if root == REPLY_ROOT:
            self._check_reply(user, names)
            return
        rights = self._rights(session) if grant is None else grant
        rights.check_publish_all(user, names)
        known = self.core.roots.get(root)
        if known is not None and known.knows_all(names):
            return
        fresh = [name for name in names if known is None or not known.has(name)]
        for name in fresh:
            rights.check_create(user, name)
        if fresh:
            self._topics.take(user, len(fresh))

    def _check_reply(self, user: str, names: tuple[str, ...]) -> None:
        """Whoever was asked may answer: the topic's name is the secret. Others count as topics that it makes."""
        known = self.core.roots.get(REPLY_ROOT)
        asked = f"{REPLY_ROOT}/"
        fresh = [
            name
            for name in names
            if not (known is not None and known.has(name)) and not self.sessions.has(name.removeprefix(asked))
        ]
        if fresh:
            self._topics.take(user, len(fresh))

    # Subscribing

    def check_subscribe(self, user: str, session: str, filter: str) -> None:
        """NotAllowed (403) unless the user may see everything that a filter matches."""
        if not self.may_subscribe(user, session, filter):
            self._rights(session).check_subscribe(user, filter)

    def may_subscribe(self, user: str, session: str, filter: str) -> bool:
        """Whether the user may see everything that a filter matches; its own answers, in any case."""
        if self._is_open or user == INNER or filter == f"{REPLY_ROOT}/{session}":
            return True
        return self._rights(session).may_subscribe(user, filter)

    def check_channel(self, user: str, filter: str) -> None:
        """NotAllowed (403) unless the user may have what a filter matches pushed somewhere."""
        if not (self._is_open or user == INNER):
            self.acl.check_channel(user, filter)

    def recheck(self) -> None:
        """Rules or clients have changed: whoever has lost a right loses what it was for, now."""
        self.sessions.recheck()
        for extension in self.extensions:
            extension.recheck()

    def check_subscription(self, user: str, session: str, name: str) -> None:
        """Whoever may subscribe to what a subscription gets may look after it; a session's own, its user's session and
        administrators alone."""
        self.check_subscribe(user, session, self.core.durables.row(name).options.filter)
        if self.is_of_another(user, session, name):
            raise NotAllowed(f'"{name}" is the own subscription of another session, or of a channel')

    def is_of_another(self, user: str, session: str, name: str) -> bool:
        """Whether a subscription is of another session, whose id is nobody else's business, or of a channel."""
        if name.startswith(CHANNEL_PREFIX):
            is_owner = any(extension.is_owner(user, name) for extension in self.extensions)
            return not is_owner and not self.is_admin(user, session)
        owner = self.sessions.owner_of(name)
        return owner is not None and owner != session and not self.is_admin(user, session)

    def check_admin(self, user: str, what: str, session: str = "") -> None:
        """NotAllowed (403) unless the user looks after the whole."""
        if not self.is_admin(user, session):
            raise NotAllowed(
                f'client "{user}" may not {what} (rule: none); grant it with: headwater acl allow {user} admin "#"'
            )

    def is_gone(self, connection: Connection) -> bool:
        """Whether the client of a connection was removed."""
        return connection.has_secret and self.clients.get(connection.user) is None

    def is_admin(self, user: str, session: str = "") -> bool:
        """Whether the user looks after the whole."""
        return self._is_open or user == INNER or self._rights(session).is_admin(user)
