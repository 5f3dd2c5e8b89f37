"""The book: rows of the state for clients, rules, tokens, channels and schedules. A change is on disk, and in the
audit, when it returns."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeVar

import msgspec

from headwater.audit import Audit
from headwater.errors import Failed, HeadwaterError, ReadOnly, Unwritable
from headwater.store.state import LOSS, Rows, State
from headwater.store.state_recovery import Loss, loss_rows

T = TypeVar("T")


class Book:
    """Rows of the state that say who may do what; whoever changes them holds a lock of their own."""

    def __init__(self, state: State, *, read_only: bool = False, audit: Audit | None = None) -> None:
        self._state = state
        self._audit = audit
        self._read_only = read_only

    @property
    def is_read_only(self) -> bool:
        """Whether nothing can be written."""
        return self._read_only

    def check_writable(self) -> None:
        """ReadOnly (503) if nothing can be written."""
        if self._read_only:
            raise ReadOnly("the folder was opened to read only; change clients and rules through the bus that owns it")
        if self._state.failed is not None:
            raise Unwritable(f"nothing can be noted at the moment: {self._state.failed}; see to the disk")

    def write(self, rows: Rows) -> None:
        """All of these rows, durably."""
        self.check_writable()
        try:
            self._state.commit(rows)
        except HeadwaterError:
            raise
        except Exception as error:
            raise Failed(f"it is not on disk: the state store failed ({error})") from error

    def losses(self) -> list[Loss]:
        """Rows of the state that were lost, where rules, clients or tokens may be among them and nobody has said that
        they are right as they are: a rule that forbids something may be gone."""
        found = (msgspec.msgpack.decode(value, type=Loss) for _, value in self._state.scan(LOSS))
        return [loss for loss in found if loss.closes_access]

    def why_closed(self) -> str | None:
        """Why nobody is to be let in; None if the rules can be relied on."""
        losses = self.losses()
        if not losses:
            return None
        return (
            f"rules, clients or tokens may be lost, so that none counts: {losses[0]}; look at them with headwater acl "
            "list and headwater clients list, put right what is wrong, then: headwater acl confirm"
        )

    def confirm(self) -> int:
        """They are right as they are; answers how many losses that was about."""
        losses = self.losses()
        self.write(loss_rows([msgspec.structs.replace(loss, is_confirmed=True) for loss in losses]))
        return len(losses)

    def note(self, what: str, target: str, before: Any = None, after: Any = None) -> None:
        """Tell the audit of a change that is written; whoever calls holds the lock, so that the order is kept."""
        if self._audit is not None:
            self._audit.note(what, target, before, after)

    def keys(self, prefix: bytes) -> list[bytes]:
        """The keys of every row with a prefix."""
        return [key for key, _ in self._state.scan(prefix)]

    def get(self, key: bytes) -> bytes | None:
        """The value of a key."""
        return self._state.get(key)

    def read(self, kind: bytes, row: type[T]) -> Iterator[T]:
        """Every row of a kind."""
        for key, value in self._state.scan(kind):
            try:
                yield msgspec.msgpack.decode(value, type=row)
            except msgspec.DecodeError as error:
                raise Failed(f"row {key!r} of the state is damaged ({error}); restore the folder") from error
