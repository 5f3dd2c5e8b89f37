"""Overlaps: messages that several filters of one session match, and which of its subscriptions brings each.

The oldest durable subscription that matches a message brings it, or the oldest live one if none does; it goes with the
highest QoS that any of them wants, and with the identifiers of all. To the others it is done with when it is done with
there: noted with them first, so that no kill lets it come again; until then it stays theirs, and if the one that brings
it ends before, the next one does. Shared subscriptions and replays stay by themselves. Nothing is asked about the
messages of a subscription whose filter meets no other.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import combinations
from typing import TYPE_CHECKING

import msgspec

from headwater.delivery.start import Ends
from headwater.memo import Memo
from headwater.mqtt.subscription_options import SubscriptionOptions
from headwater.mqtt.window import Sent
from headwater.server import pump as served
from headwater.server.durable_pump import DurablePump
from headwater.server.pump import Pump
from headwater.server.session_row import SubscriptionOf
from headwater.topics.name import filters_overlap
from headwater.topics.tree import Trees

if TYPE_CHECKING:
    from headwater.mqtt.subscribing import SubscribingSession

COMPARED_MAX = 32
"""Filters of a session that are compared with each other; with more of them, each may meet another."""
MEETINGS_MAX = 1024
"""Meetings of a session that are remembered;"""
MEETING_NUMBERS_MAX = 16 * MEETINGS_MAX
"""and subscriptions in all of them. At either limit, remembering starts anew."""
PLAIN = ("live", "session")


class Meeting(msgspec.Struct, frozen=True):
    """Subscriptions that match the same messages."""

    durables: tuple[int, ...]
    """The oldest first; also the live ones."""
    lives: tuple[int, ...]
    wish: SubscriptionOptions | None
    """What they want of a message together; None if none of them wants it."""

    @property
    def others(self) -> tuple[int, ...]:
        """Durable ones, to which a message is done with when it is to the first."""
        return self.durables[1:]


Part = tuple[Meeting, list[int]]
"""Messages that a subscription brings: for whom, and which of those that it was handed."""


class Overlaps:
    """The filters of one session that may match the same messages."""

    __slots__ = ("_absent", "_crossing", "_ends", "_found", "_meetings", "_session", "_trees")

    def __init__(self, session: SubscribingSession) -> None:
        self._session = session
        self._trees: Trees[int] = Trees(session.sessions.broker.core.config)
        self._found: dict[int, SubscriptionOf] = {}
        self._ends: dict[int, Ends] = {}
        """Of durable ones that were made over this connection: what was published since then is theirs."""
        self._absent: set[int] = set()
        """Durable ones that are not known to be served over this connection."""
        self._crossing: set[int] | None = None
        self._meetings: Memo[tuple[tuple[int, ...], bool], Meeting] = Memo(MEETINGS_MAX, MEETING_NUMBERS_MAX)

    # Which there are

    def put(self, one: SubscriptionOf) -> None:
        """A subscription is being made, goes on, or is wanted in another way."""
        if one.number not in self._found:
            self._trees.add(one.filter, one.number)
            if one.kind == "session":
                self._absent.add(one.number)
        self._found[one.number] = one
        self._crossing = None
        self._meetings.forget()

    def begin(self, number: int, ends: Ends) -> None:
        """A durable subscription is being made, and reads what comes after these places."""
        self._ends[number] = ends

    def remove(self, number: int) -> None:
        """A subscription has ended."""
        gone = self._found.pop(number, None)
        if gone is not None:
            self._trees.remove(gone.filter, number)
            self._ends.pop(number, None)
            self._absent.discard(number)
            self._crossing = None
            self._meetings.forget()

    def on_lost(self) -> None:
        """The connection is gone: live subscriptions begin anew over the next, and durable ones were there before."""
        self._ends.clear()
        self._absent = {one.number for one in self._found.values() if one.kind == "session"}

    @property
    def is_whole(self) -> bool:
        """Whether each durable subscription is served: before, nobody could note what is done with in it."""
        while self._absent:
            number = self._absent.pop()
            if number not in self._session.pumps:
                self._absent.add(number)
                return False
        return True

    @property
    def crossing(self) -> set[int]:
        """Subscriptions that may match the same as another."""
        if self._crossing is None:
            if len(self._found) > COMPARED_MAX:
                self._crossing = set(self._found)
            else:
                pairs = combinations(self._found.values(), 2)
                meeting = [(a.number, b.number) for a, b in pairs if filters_overlap(a.filter, b.filter)]
                self._crossing = {number for pair in meeting for number in pair}
        return self._crossing

    # Who brings what

    def meeting(self, topic: str, is_own: bool) -> Meeting:
        """Who matches a message of a topic, which may be the client's own."""
        match = self._trees.match(topic)
        found = self._meetings.known.get((match, is_own))
        if found is None:
            found = self._meetings.keep((match, is_own), self._meet(match, is_own), len(match))
        return found

    def _meet(self, match: tuple[int, ...], is_own: bool) -> Meeting:
        there = [self._found[number] for number in sorted(match)]
        wishes = [one.extension or SubscriptionOptions() for one in there]
        wanting = [wish for wish in wishes if not (is_own and wish.no_local)]
        durables = tuple(one.number for one in there if one.kind == "session")
        lives = tuple(one.number for one in there if one.kind == "live")
        return Meeting(durables, lives, together(wanting) if wanting else None)

    def is_alone(self, pump: Pump, names: Sequence[str]) -> bool:
        """Whether a subscription shares no message of these topics with another."""
        match = self._trees.match
        return pump.number not in self.crossing or all(len(match(name)) < 2 for name in names)

    def parts(
        self, pump: Pump, root: str, topics: Sequence[str], offsets: Sequence[int], own: Collection[int]
    ) -> list[Part]:
        """What of messages in ascending order a subscription brings; the rest is left to others. `own` are the places
        of the client's own messages."""
        parts: list[Part] = []
        left: dict[int, list[int]] = {}
        for place, topic in enumerate(topics):
            meeting = self.meeting(topic, place in own)
            if not self._brings(pump, meeting, root, offsets[place]):
                if pump.kind == "session":
                    left.setdefault(meeting.durables[0], []).append(offsets[place])
            elif parts and parts[-1][0] is meeting:
                parts[-1][1].append(place)
            else:
                parts.append((meeting, [place]))
        for number, those in left.items():
            self._leave(pump, number, root, those)
        return parts

    def _brings(self, pump: Pump, meeting: Meeting, root: str, offset: int) -> bool:
        if pump.kind == "session":
            return pump.number == meeting.durables[0]
        return pump.number == meeting.lives[0] and not any(
            number not in self._ends or self._ends[number].is_before(root, offset) for number in meeting.durables
        )

    def _leave(self, pump: Pump, number: int, root: str, offsets: list[int]) -> None:
        """Leave messages to the subscription that brings them; what is done with there is done with here."""
        bringing = self._session.pumps.get(number)
        if isinstance(bringing, DurablePump):
            undone = set(bringing.durable.progress.undone(root, offsets))
            done = [offset for offset in offsets if offset not in undone]
            if done:
                pump.tell(served.Spare(root, done))

    def heir(self, sent: Sent) -> int | None:
        """The first of the other subscriptions that match a message, and are not known to be done with it."""
        _, root, offset = sent.place
        for number in sent.others:
            there = self._session.pumps.get(number)
            is_done = isinstance(there, DurablePump) and not there.durable.progress.undone(root, [offset])
            if number in self._found and not is_done:
                return number
        return None

    def durables(self) -> list[Pump]:
        """Those that are served, and may have been left messages to bring themselves."""
        there = self._session.pumps
        return [there[n] for n in self.crossing if n in there and self._found[n].kind == "session"]


def together(wishes: Sequence[SubscriptionOptions]) -> SubscriptionOptions:
    """What several subscriptions want of a message that comes once."""
    identifiers = [wish.identifier for wish in wishes if wish.identifier]
    return SubscriptionOptions(
        qos=max(wish.qos for wish in wishes),
        retain_as_published=any(wish.retain_as_published for wish in wishes),
        identifier=identifiers[0] if identifiers else 0,
        others=tuple(dict.fromkeys(identifiers[1:])),
    )
