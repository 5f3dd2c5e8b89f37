"""Tokens: what opens the HTTP API for a client, as far as a role goes.

A token's text is `hwt_<id>_<secret>`. Invariants:

- The text is shown once, to whoever adds it; what is stored can check it, not reveal it.
- A token is of one registered client, and of no use from the moment that this client is removed, also if another of
  the same name is added after it.
- Checking takes as long whatever is wrong with a token of the right form.
"""

from __future__ import annotations

import builtins
import hashlib
import hmac
import secrets
from datetime import datetime
from typing import get_args

import msgspec

from headwater import threads
from headwater.access.clients import Clients
from headwater.access.name import check_name, quoted
from headwater.audit import Audit
from headwater.book import Book
from headwater.clock import Clock, to_datetime
from headwater.errors import Malformed, NotFound, QuotaExceeded, Unauthenticated
from headwater.store import state as rows
from headwater.store.state import State, key_words, pack
from headwater.wire.administration import Role
from headwater.wire.request import page_after

ROLES: tuple[Role, ...] = get_args(Role)

TOKENS_MAX = 10_000
"""One more token: QuotaExceeded (429)."""
PREFIX = "hwt"
"""By which people, and scanners for leaked secrets, know one."""
ID_BYTES = 8
SECRET_BYTES = 32
TEXT_CHARS_MAX = 128
"""A longer text is no token."""
REFUSED = "this token opens nothing; one that does: headwater tokens add CLIENT --role reader"
NOBODY = hashlib.sha256(b"").digest()
"""What a token of an id that nobody has is compared with."""


class NewToken(msgspec.Struct, frozen=True, kw_only=True):
    """A token with its text, which is shown this once."""

    id: str
    client: str
    role: Role
    token: str

    def __repr__(self) -> str:
        return f"NewToken(id={self.id!r}, client={self.client!r}, …)"  # secrets do not belong in logs


class TokenInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A token as everybody may see it."""

    id: str
    client: str
    role: Role
    created_us: int

    @property
    def created(self) -> datetime:
        """When it was added."""
        return to_datetime(self.created_us)


class TokenRow(msgspec.Struct, frozen=True, kw_only=True):
    """A token as it is stored."""

    info: TokenInfo
    client_id: str
    """Of the client in the registry: another one of the same name is not meant."""
    sha256: bytes
    """Of its whole text."""


class Tokens:
    """The tokens of registered clients; changes are durable when they return."""

    def __init__(
        self,
        state: State,
        clock: Clock,
        clients: Clients,
        *,
        tokens_max: int = TOKENS_MAX,
        read_only: bool = False,
        audit: Audit | None = None,
    ) -> None:
        self._book = Book(state, read_only=read_only, audit=audit)
        self._clock = clock
        self._clients = clients
        self.tokens_max = tokens_max
        """A setting of the server, who sets it here."""
        self._lock = threads.Lock()
        self._by_id: dict[str, TokenRow] = {}
        self._closed: str | None = None
        """Why no token counts."""
        self.reload()

    # Changing

    def add(self, client: str, role: Role) -> NewToken:
        """A token of a registered client; its text is drawn, and cannot be seen again."""
        client = check_name(client)
        if role not in ROLES:
            raise Malformed(f"{quoted(str(role))} is no role; use one of {', '.join(ROLES)}")
        self._book.check_writable()
        owner = self._clients.get(client)
        if owner is None:
            raise NotFound(f"there is no client {quoted(client)}; add it first: headwater clients add NAME")
        drawn = secrets.token_hex(ID_BYTES)
        text = f"{PREFIX}_{drawn}_{secrets.token_urlsafe(SECRET_BYTES)}"
        with self._lock:
            there = {row.info.id: row for row in self._valid()}
            if len(there) >= self.tokens_max:
                raise QuotaExceeded(
                    f"there are {len(there)} tokens; remove some that are not used, or raise tokens_max"
                )
            info = TokenInfo(id=drawn, client=client, role=role, created_us=self._clock.now_us())
            row = TokenRow(info=info, client_id=owner.id, sha256=_digest(text))
            self._book.write({_key(row): pack(row)})
            self._by_id = {**there, drawn: row}
            self._book.note("token-added", drawn, None, info)
        return NewToken(id=drawn, client=client, role=role, token=text)

    def remove(self, id: str) -> None:
        """Let a token open nothing more."""
        with self._lock:
            row = self._by_id.get(id)
            if row is None or not self._is_valid(row):
                raise NotFound(f"there is no token {quoted(id)}; headwater tokens list shows those that are")
            self._book.write({_key(row): None})
            del self._by_id[id]
            self._book.note("token-removed", id, row.info)

    def reload(self) -> None:
        """Read the tokens again, as after another process changed them."""
        with self._lock:
            self._by_id = {row.info.id: row for row in self._book.read(rows.TOKEN, TokenRow)}
            self._closed = self._book.why_closed()

    # Looking

    def list(self) -> list[TokenInfo]:
        """Every token, by client and age."""
        return sorted((row.info for row in self._valid()), key=_place)

    def page(self, after: tuple[str, int, str] | None, limit: int | None) -> builtins.list[TokenInfo]:
        """The next of them after a client, the moment of its making and an id."""
        return page_after((row.info for row in self._valid()), _place, after, limit)

    def check(self, token: str) -> TokenInfo:
        """Whose token this is; Unauthenticated (401) if it is none."""
        if self._closed is not None:
            raise Unauthenticated(f"no token opens anything: {self._closed}")
        prefix, _, rest = token[: TEXT_CHARS_MAX + 1].partition("_")
        if prefix != PREFIX or len(token) > TEXT_CHARS_MAX or not token.isascii():
            raise Unauthenticated(REFUSED)
        row = self._by_id.get(rest.partition("_")[0])
        is_right = hmac.compare_digest(_digest(token), NOBODY if row is None else row.sha256)
        if row is None or not is_right or not self._is_valid(row):
            raise Unauthenticated(REFUSED)
        return row.info

    def _valid(self) -> tuple[TokenRow, ...]:
        found = tuple(self._by_id.values())  # in one step, since a writer may be at work
        return tuple(row for row in found if self._is_valid(row))

    def _is_valid(self, row: TokenRow) -> bool:
        """Whether its client is there, and is the one that it was made for."""
        owner = self._clients.get(row.info.client)
        return owner is not None and owner.id == row.client_id


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


def _place(info: TokenInfo) -> tuple[str, int, str]:
    return info.client, info.created_us, info.id


def _key(row: TokenRow) -> bytes:
    return key_words(rows.TOKEN, row.info.client, row.info.id)
