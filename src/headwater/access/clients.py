"""The registry of clients: who may log in, and what is kept of their secrets.

Invariants:

- A secret is shown once, to whoever adds or rotates it; what is stored can check it, not reveal it.
- A name in the registry is well formed (`access.name`), so that it can stand for `%u` in a rule.
- Memory changes after the state has, one whole row at a time: readers need no lock.
- The tokens of a client that is removed go with it, in one write.
"""

from __future__ import annotations

import builtins
import secrets
from collections.abc import Callable, Collection
from operator import attrgetter

import msgspec

from headwater import threads
from headwater.access.name import check_name, quoted
from headwater.access.scram import ITERATIONS, REFUSED, Credential, Decoy, derive, is_secret_of
from headwater.audit import Audit
from headwater.book import Book
from headwater.clock import Clock
from headwater.errors import Conflict, NotAllowed, NotFound, QuotaExceeded, Unauthenticated
from headwater.store import state as rows
from headwater.store.state import State, key_words, pack
from headwater.wire.administration import Client, Registration
from headwater.wire.request import page_after

CLIENTS_MAX = 100_000
"""One more client: QuotaExceeded (429)."""
SECRET_BYTES = 32
"""Chance in a drawn secret."""
ID_BYTES = 8
DECOY_BYTES = 32


class ClientRow(msgspec.Struct, frozen=True, kw_only=True):
    """A client as it is stored."""

    info: Client
    credential: Credential


class Clients:
    """The clients that may log in; changes are durable when they return."""

    def __init__(
        self,
        state: State,
        clock: Clock,
        *,
        clients_max: int = CLIENTS_MAX,
        iterations: int = ITERATIONS,
        read_only: bool = False,
        audit: Audit | None = None,
    ) -> None:
        self._book = Book(state, read_only=read_only, audit=audit)
        self._clock = clock
        self.clients_max = clients_max
        """A setting of the server, who sets it here."""
        self.iterations = iterations
        """The same; of secrets that are set from now on, and of the decoy."""
        self._lock = threads.Lock()
        self._decoy: tuple[int, Decoy] | None = None
        """With the iterations that it asks for."""
        self._by_name: dict[str, ClientRow] = {}
        self.on_change: Callable[[Collection[str]], None] | None = None
        """Called with the names of clients that were removed or have another secret, by the thread that did it."""
        self.reload()

    # Changing

    def add(self, name: str, secret: str | None = None) -> Registration:
        """Register a client; its secret is drawn unless one is given, and cannot be seen again."""
        name = check_name(name)
        secret, credential = self._secret(secret)
        with self._lock:
            if name in self._by_name:
                raise Conflict(
                    f"there is a client {quoted(name)} already; "
                    "for a new secret use: headwater clients rotate NAME, or choose another name"
                )
            if len(self._by_name) >= self.clients_max:
                raise QuotaExceeded(
                    f"there are {len(self._by_name)} clients; remove some that are not used, or raise clients_max"
                )
            now_us = self._clock.now_us()
            info = Client(secrets.token_hex(ID_BYTES), name, now_us, now_us)
            self._put(ClientRow(info=info, credential=credential))
            self._book.note("client-added", name, None, info)
        return Registration(info.id, name, secret)

    def rotate(self, name: str, secret: str | None = None) -> Registration:
        """Give a client another secret; the one before is of no use from then on."""
        name = check_name(name)
        secret, credential = self._secret(secret)
        with self._lock:
            before = self._known(name).info
            info = msgspec.structs.replace(before, rotated_us=self._clock.now_us())
            self._put(ClientRow(info=info, credential=credential))
            self._book.note("client-rotated", name, before, info)
        self._tell((name,))
        return Registration(info.id, name, secret)

    def remove(self, name: str) -> None:
        """Let a client log in no more, and its tokens open nothing; rules that name it stay."""
        name = check_name(name)
        with self._lock:
            before = self._known(name).info
            tokens = self._book.keys(key_words(rows.TOKEN, name, ""))
            self._book.write(dict.fromkeys((key_words(rows.CLIENT, name), *tokens)))
            del self._by_name[name]
            self._book.note("client-removed", name, before)
        self._tell((name,))

    def reload(self) -> None:
        """Read the registry again, as after another process changed it."""
        with self._lock:
            before = self._by_name
            found = self._by_name = {row.info.name: row for row in self._book.read(rows.CLIENT, ClientRow)}
        changed = [name for name, row in before.items() if found.get(name) != row]
        if changed:
            self._tell(changed)

    # Looking

    def list(self) -> list[Client]:
        """Every client, by name."""
        found = tuple(self._by_name.values())  # in one step, since a writer may be at work
        return sorted((row.info for row in found), key=lambda info: info.name)

    def page(self, after: str | None, limit: int | None) -> builtins.list[Client]:
        """The next of them after a name."""
        found = tuple(self._by_name.values())
        return page_after((row.info for row in found), attrgetter("name"), after, limit)

    def get(self, name: str) -> Client | None:
        """One of them."""
        row = self._by_name.get(name)
        return None if row is None else row.info

    def credential_of(self, name: str) -> Credential | None:
        """What a login is checked against."""
        row = self._by_name.get(name)
        return None if row is None else row.credential

    def check_owner(self, name: str, id: str) -> None:
        """NotAllowed (403) if the client of this id, if it has one, is gone, though another may have its name."""
        known = self.get(name) if id else None
        if id and (known is None or known.id != id):
            raise NotAllowed(f"client {quoted(name)} was removed; what is left of it is not published")

    @property
    def decoy(self) -> Decoy:
        """Credentials for names that nobody has, the same for as long as the folder lives."""
        kept = self._decoy
        if kept is None or kept[0] != self.iterations:
            with self._lock:  # two that come at once find the same row
                kept = self._decoy = self.iterations, Decoy(self._decoy_secret(), self.iterations)
        return kept[1]

    def check_secret(self, name: str, secret: str) -> str:
        """The client that a name and a plain secret belong to (MQTT, HTTP); Unauthenticated (401) if to none.

        As slow as the iterations of its credential, for unknown names too.
        """
        name = check_name(name)
        known, decoy = self.credential_of(name), self.decoy.credential_of(name)
        if not is_secret_of(known or decoy, secret) or known is None:
            raise Unauthenticated(REFUSED)
        return name

    # Rows

    def _secret(self, secret: str | None) -> tuple[str, Credential]:
        """A secret, and its credential; made outside of the lock, since it takes a while."""
        self._book.check_writable()
        secret = secrets.token_urlsafe(SECRET_BYTES) if secret is None else secret
        return secret, derive(secret, iterations=self.iterations)

    def _known(self, name: str) -> ClientRow:
        row = self._by_name.get(name)
        if row is None:
            raise NotFound(f"there is no client {quoted(name)}; headwater clients list shows those that are")
        return row

    def _put(self, row: ClientRow) -> None:
        self._book.write({key_words(rows.CLIENT, row.info.name): pack(row)})
        self._by_name[row.info.name] = row

    def _tell(self, names: Collection[str]) -> None:
        if self.on_change is not None:
            self.on_change(names)

    def _decoy_secret(self) -> bytes:
        stored = self._book.get(rows.DECOY)
        if stored is not None:
            return stored
        drawn = secrets.token_bytes(DECOY_BYTES)
        if not self._book.is_read_only:
            self._book.write({rows.DECOY: drawn})
        return drawn
