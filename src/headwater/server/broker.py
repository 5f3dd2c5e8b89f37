"""The broker: who may do what.

Everything that a session wants goes past here first: rights, quotas, and the sessions themselves. Without
authentication everybody may do everything, and the server listens on loopback alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from headwater.access.acl import Acl
from headwater.access.clients import Clients
from headwater.access.grant import Grant, Revoked
from headwater.access.jwt import looks_like_token
from headwater.access.methods import Methods
from headwater.access.name import INNER, quoted
from headwater.access.quota import Guesses, Quota
from headwater.access.tokens import Tokens
from headwater.clock import Clock
from headwater.config import Serving
from headwater.core import Core
from headwater.delivery.options import CHANNEL_PREFIX
from headwater.delivery.own_topics import subscription_of
from headwater.errors import Conflict, Malformed, NotAllowed
from headwater.log.publish import Part
from headwater.message import FROM, REPLY_TO, Headers
from headwater.requests import REPLY_ROOT
from headwater.topics.name import root_of
from headwater.wire.administration import Token
from headwater.wire.requests import Register

if TYPE_CHECKING:
    from headwater.server.bearers import Bearers
    from headwater.server.connection import Connection
    from headwater.server.extension import Extension
    from headwater.server.rechecks import Rechecks
    from headwater.server.sessions import Sessions
    from headwater.server.watch.overview import Overview


GUESS_DELAY_S = 0.25
"""How long the answer to a first wrong secret is held back; it doubles with each one after."""


class Broker:
    """Decides for the whole server."""

    sessions: Sessions
    rechecks: Rechecks
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
        self._answers = Quota(
            serving.reply_bytes_per_minute_max,
            self.clock,
            what="bytes of answers",
            setting="reply_bytes_per_minute_max",
        )
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
        if not self.methods.takes_tokens and not self.rechecks.clients:
            return self.acl
        known = self.sessions.get(session)
        if known is not None and known.row.user in self.rechecks.clients:
            objection = known.objection
            if objection is not None:
                return Revoked(self.acl, known.row.user, str(objection.args[0]))
        return self.acl if known is None or known.grant is None else known.grant

    def regrant(self, connection: Connection) -> None:
        """The client of a session has brought another token: what the one before allowed alone is over."""
        session = self.sessions.served_over(connection)
        if session is not None:
            session.grant = connection.grant
            self.rechecks.on_grant(session)

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
        rights = self._rights(session) if grant is None else grant
        self._check_reply_to(user, rights, headers_in(part, REPLY_TO))
        if part.root == REPLY_ROOT:
            self._check_reply(user, rights, part)
        else:
            self._take_topics(user, self._check_rights(user, rights, part))

    def check_later(self, user: str, session: str, part: Part) -> None:
        """The same for messages that become visible later, which no answer does."""
        if not (self._is_open or user == INNER):
            rights = self._rights(session)
            self._check_reply_to(user, rights, headers_in(part, REPLY_TO))
            self._take_topics(user, self._check_rights(user, rights, part))

    def check_again(self, user: str, session: str, part: Part) -> None:
        """NotAllowed (403) unless the user may still publish what it brought earlier."""
        if not (self._is_open or user == INNER):
            rights = self._rights(session)
            self._check_reply_to(user, rights, headers_in(part, REPLY_TO))
            self._check_rights(user, rights, part)

    def _check_rights(self, user: str, rights: Acl | Grant, part: Part) -> list[str]:
        """NotAllowed (403) unless rules let the user publish to all of these; those that are not there yet."""
        names = part.distinct
        rights.check_publish_all(user, names)
        known = self.core.roots.get(part.root)
        if known is not None and known.knows_all(names):
            return []
        fresh = [name for name in names if known is None or not known.has(name)]
        for name in fresh:
            rights.check_create(user, name)
        return fresh

    def _take_topics(self, user: str, fresh: Sequence[str]) -> None:
        if fresh:
            self._topics.take(user, len(fresh))

    def _check_reply(self, user: str, rights: Acl | Grant, part: Part) -> None:
        """Whoever was asked may answer a session that is there: the topic's name is the secret. Without a rule for it,
        so much in a minute; and none of it is retained."""
        names = part.distinct
        if part.retain is not None and any(part.retain):
            raise NotAllowed(f'"{REPLY_ROOT}" is for answers, and none of them is retained; publish it without retain')
        has_rule = True
        for name in names:
            if rights.may_publish(user, name):
                continue
            has_rule = False
            if not self._is_awaited(name):
                raise NotAllowed(
                    f'client "{user}" may not publish to {quoted(name)}: no session waits for answers there, or none '
                    "any more"
                )
        known = self.core.roots.get(REPLY_ROOT)
        self._take_topics(user, [name for name in names if known is None or not known.has(name)])
        if not has_rule:
            self._answers.take(user, part.weight)

    def _is_awaited(self, topic: str) -> bool:
        """Whether somebody listens for answers on a topic below `$reply`."""
        return self.sessions.has(topic.removeprefix(f"{REPLY_ROOT}/")) or self.core.awaits(topic)

    def _check_reply_to(self, user: str, rights: Acl | Grant, topics: Iterable[str]) -> None:
        """Who answers does so with rights of its own: it is to write nowhere that the user who asks could not."""
        for topic in topics:
            if root_of(topic) != REPLY_ROOT and not rights.may_publish(user, topic):
                raise NotAllowed(
                    f'client "{user}" may not have answers sent to {quoted(topic)}, as it may not publish there; '
                    f"ask with bus.request, which waits below {REPLY_ROOT}, or grant it the right to publish there"
                )

    def may_be_answered(self, user: str, session: str, topic: str) -> bool:
        """Whether answers to what a user asks may go to a topic: below `$reply`, or where it may publish itself."""
        is_free = self._is_open or user == INNER or root_of(topic) == REPLY_ROOT
        return is_free or self._rights(session).may_publish(user, topic)

    def check_headers(self, part: Part) -> None:
        """Malformed (422) if a message has a header that the broker alone writes."""
        for _ in headers_in(part, FROM):
            raise Malformed(f"header {FROM} is the broker's own; leave it out")

    def check_letter(self, user: str, session: str, topic: str, headers: Headers) -> None:
        """A dead letter that is handed out again, with these headers besides its own, is as good as published:
        NotAllowed (403) unless the user may publish to its topic, or looks after the whole."""
        part = Part(root_of(topic), (topic,), (), (), headers=(headers,))
        self.check_headers(part)
        if not self.is_admin(user, session):
            rights = self._rights(session)
            rights.check_publish_all(user, (topic,))
            self._check_reply_to(user, rights, headers_in(part, REPLY_TO))

    def author(self, user: str, owner_id: str) -> str:
        """Who is noted with a message that is published later, to be asked about then; nobody, where all may."""
        return "" if self._is_open or user == INNER else f"{user}/{owner_id}"

    # Subscribing

    def check_subscribe(self, user: str, session: str, filter: str) -> None:
        """NotAllowed (403) unless the user may see everything that a filter matches."""
        if not self.may_subscribe(user, session, filter):
            self._rights(session).check_subscribe(user, filter)

    def check_named(self, user: str, session: str, filter: str) -> None:
        """The same for a subscription that outlives its session: what is for that alone takes a rule."""
        if not (self._is_open or user == INNER or self._may_look_into(user, session, filter)):
            self._rights(session).check_subscribe(user, filter)

    def may_subscribe(self, user: str, session: str, filter: str) -> bool:
        """Whether the user may see everything that a filter matches; its own answers, in any case."""
        if self._is_open or user == INNER or filter == f"{REPLY_ROOT}/{session}":
            return True
        return self._rights(session).may_subscribe(user, filter) or self._may_look_into(user, session, filter)

    def _may_look_into(self, user: str, session: str, filter: str) -> bool:
        """Whether a filter is about one subscription, and the user may look after that and is not denied this."""
        name = subscription_of(filter, self.core.config)
        row = None if name is None else self.core.dispatcher.row(name)
        if row is None or name is None or not self._is_settled(name, row.number):
            return False
        rights = self._rights(session)
        may = rights.may_subscribe(user, row.options.filter) and not rights.denies(user, filter)
        return may and not self.is_of_another(user, session, name)

    def _is_settled(self, name: str, number: int) -> bool:
        """Whether nothing is about to be told of another subscription of this id, which is purged then."""
        return self.core.letterbox.is_of(name, number) and self.core.lives.is_of(name, number)

    def may_see_some(self, user: str, session: str, filter: str) -> bool:
        """Whether there may be anything among what a filter matches that the user may see."""
        if self._is_open or user == INNER or root_of(filter) == REPLY_ROOT:
            return True
        return self._rights(session).may_see_some(user, filter)

    def check_channel(self, user: str, filter: str) -> None:
        """NotAllowed (403) unless the user may have what a filter matches pushed somewhere."""
        if not (self._is_open or user == INNER):
            self.acl.check_channel(user, filter)

    def check_subscription(self, user: str, session: str, name: str) -> None:
        """Whoever may subscribe to what a subscription gets may look after it; a session's own, its user's session and
        administrators alone; what is left of one whose session is gone, the user and they."""
        kept = self.core.dead_letters.kept(name)
        if kept is not None and (user == kept.user or self.is_admin(user, session)):
            return
        if not self.may_subscribe(user, session, self.core.durables.row(name).options.filter):
            # What it is that others subscribe to is not told to those who could not.
            raise NotAllowed(
                f'client "{user}" may not look after subscription "{name}": it takes a rule that lets it subscribe to '
                "all that this one gets"
            )
        if self.is_of_another(user, session, name):
            raise NotAllowed(f'"{name}" is the own subscription of another session, or of a channel')

    def unrevealing(self, user: str, session: str, name: str, error: Conflict) -> Conflict:
        """The same error, for one who may not know what a subscription that is there gets."""
        row = self.core.dispatcher.row(name)
        if row is None or self.may_subscribe(user, session, row.options.filter):
            return error
        return Conflict(f'there is another subscription "{name}" already; choose another id')

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

    def objection(self, connection: Connection) -> NotAllowed | None:
        """Why a connection is not to be served any more: its client was removed, or has another secret."""
        held = connection.credential
        if held is None or self.clients.credential_of(connection.user) == held:
            return None
        if self.clients.get(connection.user) is None:
            return NotAllowed(f'client "{connection.user}" was removed')
        return NotAllowed(f'client "{connection.user}" has another secret by now; connect with that one')

    def owner_id(self, connection: Connection) -> str:
        """The id of a connection's client in the registry; empty if it is known by other means."""
        known = self.clients.get(connection.user) if connection.credential is not None else None
        return "" if known is None else known.id

    def is_disowned(self, user: str, owner_id: str) -> bool:
        """Whether the client that something is of was removed from the registry."""
        try:
            self.clients.check_owner(user, owner_id)
        except NotAllowed:
            return True
        return False

    def is_admin(self, user: str, session: str = "") -> bool:
        """Whether the user looks after the whole."""
        return self._is_open or user == INNER or self._rights(session).is_admin(user)


def headers_in(part: Part, name: str) -> set[str]:
    """The values that a header has in messages."""
    given = part.headers
    if given is None:
        columns = part.columns
        # Nearly always no byte of it is there, which is seen at once.
        if columns is None or not columns.columns or part.body is None or name.encode() not in part.body:
            return set()
        given = columns.headers()
    return {value for pairs in set(given) for known, value in pairs if known == name}
