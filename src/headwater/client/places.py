"""Where a client finds its server: the places that its address names, and whose turn it is.

With several, the nodes of a cluster, each is tried in turn, beginning with the one after that which was lost; a server
that says where to go on is believed for the next try.
"""

from __future__ import annotations

import random
from urllib.parse import urlsplit

from headwater.client.url import Address, place_text
from headwater.wire.requests import Goodbye


class Places:
    """The places of one server, or of the nodes of one cluster."""

    def __init__(self, address: Address) -> None:
        self._places = address.places
        self._turn = random.randrange(self.count) if address.reads_any else 0
        """Those who only read spread over all nodes."""
        self._told: Address | None = None
        """Where the last server said to go on."""

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self._places)

    @property
    def now(self) -> Address:
        """The one whose turn it is."""
        return self._told or self._places[self._turn]

    def next(self) -> None:
        """The one whose turn it is was no good."""
        if self._told is None:
            self._turn = (self._turn + 1) % len(self._places)
        self._told = None

    def on_lost(self, goodbye: Goodbye | None) -> None:
        """A connection was lost, and this was said before."""
        self.next()
        if goodbye is not None and goodbye.address:
            self._go_to(goodbye.address)

    def _go_to(self, place: str) -> None:
        first = self._places[0]
        try:
            parts = urlsplit(f"//{place}")
            host, port = parts.hostname, parts.port
        except ValueError:
            return
        if not host or not port or first.is_unix:
            return
        known = {place_text(one.host, one.port): turn for turn, one in enumerate(self._places)}
        turn = known.get(place_text(host, port))
        if turn is not None:
            self._turn = turn
        else:
            self._told = first.at(host, port)
