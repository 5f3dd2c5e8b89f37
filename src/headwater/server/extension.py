"""Extensions: what a server is extended by without knowing of it. Each protocol is one, and so are channels.

A server makes its extensions when it starts, in the order in which it was given them, and asks each of them where it
has no answer of its own: the first to answer is the one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headwater.server.server import Server
    from headwater.server.session import Session
    from headwater.server.session_row import SessionRow


class Extension:
    """A protocol that clients speak, or something else that takes part in serving."""

    def __init__(self, server: Server) -> None:
        self.server = server

    # Sessions of a protocol

    def session_of(self, row: SessionRow) -> Session | None:
        """The session that this row stores, new or of an earlier server; None if it is not one of this protocol."""
        return None

    def recover(self) -> None:
        """Go on with what an earlier server has left: every stored session is there."""

    # Coming and going

    async def start(self) -> None:
        """Begin, with everything else there; OSError if it cannot listen."""

    async def close(self) -> None:
        """End; what is stored stays."""

    # Requests and rights

    def work_to_remove(self, session: Session, name: str) -> Callable[[], Any] | None:
        """What removes a subscription by its name; None if it is not one of this extension's."""
        return None

    def is_owner(self, user: str, subscription: str) -> bool:
        """Whether a subscription is one of this extension's, and of this user's."""
        return False

    def recheck(self, users: Collection[str]) -> None:
        """Rules or clients have changed, which concerns these users, or all if EVERYONE is among them: whoever has lost
        a right loses what it was for, now."""
