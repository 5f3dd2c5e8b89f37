"""The session of an embedded bus: it lasts as long as the bus is open, and what was subscribed in it goes with it.

A process that is killed cannot end it. So such a subscription is one that expires; while the bus is open, it does not.
"""

from __future__ import annotations

import secrets
from contextlib import suppress
from typing import Any

from headwater.delivery.dispatcher import Dispatcher
from headwater.errors import HeadwaterError

ID_BYTES = 16
LEFT_S = 300.0
"""How long what a killed process has left is kept, as by default a server keeps what a client has left."""


class OwnSession:
    """That of one bus."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self._dispatcher = dispatcher
        self._id = ""

    @property
    def id(self) -> str:
        """Drawn when it is asked for: most have no use for it."""
        self._id = self._id or secrets.token_hex(ID_BYTES)
        return self._id

    def own(self, filter: str, given: dict[str, Any]) -> str:
        """The id of its subscription to a filter; what is stated of that is completed."""
        name = f"{self.id}:{filter}"
        given.setdefault("expire_after_s", LEFT_S)
        self._dispatcher.in_session.add(name)
        return name

    def end(self) -> None:
        """The bus is about to be closed: they go, and their dead letters are kept for a while."""
        for name in tuple(self._dispatcher.in_session):
            with suppress(HeadwaterError):  # it was deleted, or nothing can be written any more: then it expires
                self._dispatcher.delete(name, kept_for="")
            self._dispatcher.in_session.discard(name)
