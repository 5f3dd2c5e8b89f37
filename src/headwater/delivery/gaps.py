"""Gaps: messages that were lost to a subscription, as its consumers are told of them.

Promise: a hole in a stream is an event for whoever watches, and once a `Gap` for a consumer, before anything that lies
behind it; unless the subscription has on_gap="skip". No locks: whoever serves the subscription holds its own.
"""

from __future__ import annotations

from collections.abc import Callable

from headwater.delivery.options import Options
from headwater.errors import Gap
from headwater.store.log import Hole


class Gaps:
    """Those of one subscription."""

    __slots__ = ("_on_event", "_options", "untold")

    def __init__(self, options: Options, on_event: Callable[[str, str], None]) -> None:
        self._options = options
        self._on_event = on_event
        self.untold: Gap | None = None
        """The last one, until a consumer was told; nothing more is handed out before that."""

    def meet(self, root: str, hole: Hole) -> None:
        """Messages of a root are gone."""
        self._on_event(
            "gap",
            f'subscription "{self._options.id}" lost messages {hole.first} to {hole.last} of "{root}": {hole.reason}',
        )
        if self._options.on_gap == "raise":
            self.untold = Gap(root, hole.first, hole.last, hole.reason)

    def tell(self) -> None:
        """Raise the one that is untold, if there is one."""
        if self.untold is not None:
            gap, self.untold = self.untold, None
            raise gap
