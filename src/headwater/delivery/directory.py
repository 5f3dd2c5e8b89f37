"""The directory: which durable subscriptions there are, as they are stored, and whose.

Promises: none is made beyond `subscriptions_max`, and none for a client beyond its share; a number is never given
twice, also after one could not be said to be made, and was.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import msgspec

from headwater.config import Config
from headwater.delivery.options import Options
from headwater.delivery.rows import SubscriptionRow
from headwater.errors import Malformed, QuotaExceeded
from headwater.memo import Memo
from headwater.store import state as rows
from headwater.store.state import Rows, State
from headwater.topics.name import matches
from headwater.topics.patterns import Patterns

WANTED_MAX = 1000
"""Topics of which it is remembered whether a subscription covers them."""

decode = msgspec.msgpack.Decoder(SubscriptionRow).decode


class Directory:
    """Durable subscriptions by id; whoever changes it writes the rows."""

    def __init__(self, state: State, config: Config, patterns: Patterns) -> None:
        self._state = state
        self._config = config
        self._patterns = patterns
        self.version = 0
        """Rises when there are other subscriptions than before."""
        self._by_owner: Counter[str] = Counter()
        self.count = 0
        """How many there are."""
        for row in self.each():
            self._count(row)
        self._wanted: Memo[str, bool] = Memo(WANTED_MAX)
        """Whether a durable subscription covers a topic, as of a version of them."""
        self._wanted_version = 0
        self._last_number = int.from_bytes(state.get(rows.COUNTERS) or b"", "big")

    @staticmethod
    def key(id: str) -> bytes:
        """The row of a subscription."""
        return rows.SUBSCRIPTION + id.encode("utf-8", "surrogatepass")

    def row(self, id: str) -> SubscriptionRow | None:
        """A subscription as it is stored."""
        if type(id) is not str:
            raise Malformed(f"id is {id!r}; use a str")
        value = self._state.get(self.key(id))
        return None if value is None else decode(value)

    def each(self, after: str | None = None) -> Iterator[SubscriptionRow]:
        """Every durable subscription, by id, one after another; those after an id."""
        start = None if after is None else self.key(after) + b"\0"
        return (decode(value) for _, value in self._state.scan(rows.SUBSCRIPTION, start))

    def is_wanted(self, topic: str) -> bool:
        """Whether a durable subscription gets a message, be it that nobody takes from it at the moment; looks through
        all of them, once for each topic as long as they stay the same."""
        version = self.version
        if self._wanted_version != version:
            self._wanted.forget()
            self._wanted_version = version
        known = self._wanted.known.get(topic)
        if known is None:
            found = any(matches(row.options.filter, topic) for row in self.each())
            known = self._wanted.keep(topic, found)
        return known

    def check_new(self, options: Options, owner: str) -> None:
        """QuotaExceeded (429) if one more is one too many."""
        config, made = self._config, self._by_owner[owner]
        if self.count >= config.subscriptions_max:
            raise QuotaExceeded(
                f"there are {self.count} durable subscriptions, and subscriptions_max is {config.subscriptions_max}; "
                "delete some with unsubscribe, or raise the setting"
            )
        if owner and made >= config.subscriptions_per_client_max:
            raise QuotaExceeded(
                f'client "{owner}" has made {made} durable subscriptions, and subscriptions_per_client_max is '
                f"{config.subscriptions_per_client_max}; delete some with unsubscribe, or raise the setting"
            )
        self._patterns.check(owner, options.filter)

    def next_number(self) -> int:
        """A number that no subscription has had."""
        # As stored, should it be more: of a subscription that could not be said to be made, and was.
        stored_number = int.from_bytes(self._state.get(rows.COUNTERS) or b"", "big")
        return max(self._last_number, stored_number) + 1

    def new_rows(self, row: SubscriptionRow) -> Rows:
        """What is to be stored of one that is new."""
        return {self.key(row.options.id): rows.pack(row), rows.COUNTERS: row.number.to_bytes(4, "big")}

    def note_made(self, row: SubscriptionRow) -> None:
        """It is stored."""
        self._last_number = row.number
        self._count(row)
        self.version += 1

    def _count(self, row: SubscriptionRow) -> None:
        self.count += 1
        self._by_owner[row.owner] += 1
        self._patterns.add(row.owner, row.options.filter)

    def note_deleted(self, row: SubscriptionRow) -> None:
        """It is not any more."""
        self.count -= 1
        self._by_owner[row.owner] -= 1
        if self._by_owner[row.owner] <= 0:
            del self._by_owner[row.owner]
        self._patterns.remove(row.owner, row.options.filter)
        self.version += 1
