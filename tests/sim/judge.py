"""The judge: remembers what the server promised to its clients, and says where it was not kept.

Nothing of the server is looked into. Publishers tell what they sent and what came back, consumers what they were given
and what they said about it; at the end an auditor reads everything through a client's door. What is judged:

- What was acked is there, as it was, and (where the client was told) at its offset; what was refused is not, and
  nothing that nobody published. Offsets are dense, and none ever stood for two messages, in whatever life it was seen.
- Once: what an idempotent producer, our own client, a stage or MQTT's QoS 2 published is stored once; QoS 0 at most
  once; QoS 1 as often as it was sent, at most.
- Order: what was acked before something else was begun stands before it. A client's messages to a root stand in the
  order of its calls; those of a call to one root stand together, all or none. Retained values are the last ones.
- Whatever was handed to a durable subscription, or to anybody if somebody waits for its ack, is on disk.
- A durable subscription has every message, until it is acked: then never again. First deliveries come in order.
  Failed attempts are counted. What was rejected is a dead letter.
- An MQTT session keeps its subscriptions and what is owed: QoS 1 at least once, QoS 2 exactly once, in order.
- Who has no right to a topic publishes nothing there, and is given nothing of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from faults.oracle import name_in, payload_of, root_of
from headwater.topics.name import compile_filter
from sim.promises import FailedOnce, Glance, Place, Reader, Sent, Session
from sim.world import NEVER, World

ONCE = frozenset(("native", "producer", "stage", "qos2", "qos0", "delayed", "will"))
"""What is stored once at most, by how it was published."""
RECALL_US = 200_000
"""By then whoever was told that a message failed has dropped what it had been sent after it."""
AWAITED = frozenset(("native", "producer", "stage", "qos1", "qos2", "delayed"))
"""What is not shown before it is on disk."""


class Judge:
    """What was promised to all clients, over all lives of the server."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.sent: dict[str, Sent] = {}
        self.clears: dict[str, list[Sent]] = {}
        self.places: dict[Place, str] = {}
        self.readers: dict[str, Reader] = {}
        self.sessions: list[Session] = []
        self.glances: list[Glance] = []
        self.has_channel = False
        """Whether the server has said that there is one."""
        self.shown: dict[str, str] = {}
        """Messages that somebody was given, and who; they have to be on disk."""
        self.violations: list[str] = []
        self.gaps: dict[str, list[tuple[int, int]]] = {}
        """What readers were told is gone, by root; nothing is, unless the disk has rotted."""
        self.may_rot = False
        """Whether something may be gone, if somebody says so."""
        self.gone: set[str] = set()
        """Subscriptions that were deleted."""
        self.may: Callable[[str, str], bool] = lambda _, __: True
        """Whether a client has the right to a topic."""
        self._groups = 0

    def expect(self, is_so: object, what: str) -> None:
        """What has to be so."""
        if not is_so:
            self.violations.append(what)
            self.world.note(f"VIOLATION {what}")

    # Publishers tell

    def message(self, topic: str, size: int, kind: str, by: str, **more: Any) -> Sent:
        """A message that is about to be sent."""
        number = len(self.sent)
        name = f"m{number}"
        sent = Sent(name, number, topic, payload_of(name, topic, size), kind, by, False, self.world.now_us)
        for key, value in more.items():
            setattr(sent, key, value)
        if not self.may(by, topic):
            sent.outcome = "forbidden"
        self.sent[name] = sent
        return sent

    def clear(self, topic: str, kind: str, by: str) -> Sent:
        """An empty retained message; it has no name to be told by."""
        sent = Sent("", 0, topic, b"", kind, by, True, self.world.now_us)
        self.clears.setdefault(topic, []).append(sent)
        return sent

    def together(self, messages: Sequence[Sent]) -> None:
        """These are published with one call."""
        self._groups += 1
        for sent in messages:
            sent.group = self._groups

    def acked(self, sent: Sent, offset: int = 0) -> None:
        """It is on disk, says the server."""
        self.world.reach(f"publish {sent.kind} acked")
        if sent.outcome == "forbidden":  # 3.1.1 has no word for it: such a message is acknowledged and dropped
            return
        if sent.outcome != "acked":
            sent.ended_us = self.world.now_us
            sent.outcome = "acked"
        if offset:
            self.expect(sent.offset in (0, offset), f"{sent.name} was given {sent.offset}, and then {offset}")
            sent.offset = offset
            if sent.name:
                self._place(root_of(sent.topic), offset, sent.name, "a receipt")

    def refused(self, sent: Sent) -> None:
        """It is not on disk, says the server; if it was sent once only."""
        self.world.reach(f"publish {sent.kind} refused")
        if sent.outcome == "unknown" and sent.tries == 1:
            sent.outcome = "refused"

    # Consumers tell

    def _place(self, root: str, offset: int, name: str, how: str) -> None:
        known = self.places.setdefault((root, offset), name)
        self.expect(known == name, f"{root} {offset} was {known}, and is {name} for {how}")

    def see(self, topic: str, payload: bytes, who: str, *, offset: int = 0, is_stored: bool = True) -> Sent | None:
        """Somebody was given a message; `is_stored`: it comes from the log."""
        if not payload:
            return None
        try:
            name = name_in(topic, payload)
        except (AssertionError, ValueError) as error:
            self.expect(False, f"{who} was given something alien in {topic}: {error}")
            return None
        sent = self.sent.get(name)
        if sent is None:
            self.expect(False, f"{who} was given {name}, which nobody sent")
            return None
        self.expect(sent.outcome not in ("refused", "forbidden"), f"{who} was given {name}, which was {sent.outcome}")
        if is_stored or sent.kind in AWAITED:
            self.shown.setdefault(name, who)
            if offset and is_stored:
                self._place(root_of(topic), offset, name, who)
        return sent

    def taken(self, reader: Reader, message: Any, who: str) -> None:
        """A durable subscription handed something out."""
        place = (message.root, message.offset)
        if message.retained:
            self.see(message.topic, message.payload, who, offset=message.offset)
            return
        self.expect(place not in reader.done, f"{place} was acked by {reader.id} and came again")
        self.expect(
            message.attempt > reader.attempts[place],
            f"{place} comes to {reader.id} as attempt {message.attempt}, after {reader.attempts[place]} failures",
        )
        self.see(message.topic, message.payload, who, offset=message.offset)
        self._check_alone(reader, message)
        if place not in reader.known:
            reader.known.add(place)
            reader.first.append(place)
        else:
            self.world.reach("message came again")

    def _check_alone(self, reader: Reader, message: Any) -> None:
        """With an order, nothing comes after a message that failed, but itself."""
        failed = reader.failed.get(reader.chain(message))
        if failed is None or (message.root, message.offset) in reader.redriven or self.may_rot:
            return
        if message.offset == failed.offset:
            failed.is_back = True
        elif message.offset > failed.offset:
            late_us = self.world.now_us - failed.since_us
            self.expect(
                not failed.is_back and late_us < RECALL_US,
                f"{reader.id} got {message.topic} {message.offset} after {failed.offset} had failed",
            )

    def settles(self, reader: Reader, messages: Sequence[Any]) -> list[tuple[str, FailedOnce]]:
        """Somebody is about to ack or reject these: those among them that had failed, which then stand in nobody's way,
        and what is acked behind others that have."""
        behind = []
        for message in messages:
            reader.settled[message.root, message.offset] += 1
            chain = reader.chain(message)
            failed = reader.failed.get(chain)
            if failed is not None and message.offset == failed.offset:
                del reader.failed[chain]
            elif failed is not None and message.offset > failed.offset and not message.retained:
                behind.append((chain, failed))
        return behind

    def settled(self, reader: Reader, behind: Sequence[tuple[str, FailedOnce]]) -> None:
        """They were: nothing that was taken back can have been acked."""
        for chain, failed in behind:
            is_still = reader.failed.get(chain) is failed and not reader.redriven and not self.may_rot
            self.expect(not is_still, f"{reader.id} could ack what came before {chain} {failed.offset} had failed")

    def given(self, session: Session, message: Any, *, is_retained: bool, is_again: bool) -> None:
        """An MQTT client was given a message, and knows that it did not have it; or it came with QoS 2 once more."""
        if is_again:
            return
        self.expect(self.may(session.client, message.topic), f"{session.client} was given something of {message.topic}")
        sent = self.see(message.topic, message.payload, session.client, is_stored=message.qos > 0)
        if sent is None:
            return
        if not is_retained:
            if sent.name not in session.got:
                session.first.append(sent.name)
            session.got[sent.name] += 1
            if message.qos == 2:
                session.once[sent.name] += 1

    # At the end

    def check(self, found: dict[str, list[Any]]) -> None:
        """Everything that a replay finds, by root, against what was promised."""
        self.log = found
        self.at: dict[str, list[int]] = {}
        for root, messages in found.items():
            offsets = [message.offset for message in messages]
            gone = [offset for first, last in self.gaps.get(root, ()) for offset in range(first, last + 1)]
            whole = sorted(offsets + gone)
            self.expect(offsets == sorted(offsets), f"the offsets of {root} are not in order: {offsets}")
            dense = list(range(1, len(whole) + 1))
            self.expect(whole == dense, f"the offsets of {root} are not dense: {strange(whole)}")
            for message in messages:
                sent = self.see(message.topic, message.payload, "replay", offset=message.offset)
                if sent is not None:
                    self.at.setdefault(sent.name, []).append(message.offset)
        self._check_counts(found)
        self._check_order(found)
        self._check_groups()
        if not self.gaps:
            self._check_glances()

    def _check_counts(self, found: dict[str, list[Any]]) -> None:
        for sent in self.sent.values():
            times = len(self.at.get(sent.name, ()))
            most = 1 if sent.kind in ONCE else sent.tries
            self.expect(times <= most, f"{sent.name} ({sent.kind}) is stored {times} times")
            if sent.outcome == "acked" and not self._may_be_gone(sent):
                self.expect(times, f"{sent.name} ({sent.kind}, {sent.topic} {sent.offset}) was acked, and is lost")
            elif sent.outcome in ("refused", "forbidden"):
                self.expect(not times, f"{sent.name} was {sent.outcome}, and is there")
        for name, who in self.shown.items():
            is_there = self.at.get(name) or self._may_be_gone(self.sent[name])
            self.expect(is_there, f"{who} was given {name} ({self.sent[name].kind}), which is not on disk")
        empty = Counter(message.topic for messages in found.values() for message in messages if not message.payload)
        for topic, times in empty.items():
            tries = sum(sent.tries for sent in self.clears.get(topic, ()))
            self.expect(times <= tries, f"{topic} was cleared {times} times, and asked for {tries} times")
        for topic, clears in self.clears.items():
            acked = sum(sent.outcome == "acked" and not self._may_be_gone(sent) for sent in clears)
            self.expect(empty[topic] >= acked, f"{acked} clears of {topic} were acked, and {empty[topic]} are there")

    def _may_be_gone(self, sent: Sent) -> bool:
        """Whether readers were told that it is gone, as far as it is known where it was."""
        gaps = self.gaps.get(root_of(sent.topic), ())
        return bool(gaps) and (not sent.offset or any(first <= sent.offset <= last for first, last in gaps))

    def _check_order(self, found: dict[str, list[Any]]) -> None:
        for root, messages in found.items():
            latest: Sent | None = None
            lanes: dict[str, Sent] = {}
            seen: set[str] = set()
            for message in messages:
                if not message.payload:
                    continue
                try:
                    sent = self.sent[name_in(message.topic, message.payload)]
                except (AssertionError, KeyError, ValueError):
                    continue  # told already
                if sent.name in seen or sent.kind in ("delayed", "will"):
                    continue
                seen.add(sent.name)
                if latest is not None:
                    self.expect(
                        sent.ended_us >= latest.began_us,
                        f"{sent.name} was acked before {latest.name} was sent, and stands behind it in {root}",
                    )
                if latest is None or sent.began_us > latest.began_us:
                    latest = sent
                if sent.lane:
                    # MQTT has an order of each topic and QoS, our own clients one of each root.
                    of = f"{sent.topic} {sent.kind}" if sent.kind.startswith("qos") else root
                    lane = f"{sent.lane} {of}"
                    before = lanes.get(lane)
                    self.expect(
                        before is None or before.number < sent.number,
                        f"{sent.name} stands behind {before and before.name}, which {sent.by} sent later",
                    )
                    lanes[lane] = sent

    def _check_groups(self) -> None:
        """Messages of one call to one root are next to each other, in its order, or not there."""
        groups: dict[tuple[int, str], list[Sent]] = {}
        for sent in self.sent.values():
            if sent.group:
                groups.setdefault((sent.group, root_of(sent.topic)), []).append(sent)
        for (_, root), messages in groups.items():
            offsets = [self.at[sent.name][0] for sent in messages if sent.name in self.at]
            if offsets and root not in self.gaps:
                together = list(range(offsets[0], offsets[0] + len(messages)))
                names = [sent.name for sent in messages]
                self.expect(offsets == together, f"{names} were published to {root} together, and are at {offsets}")

    def retained_of(self, found: dict[str, list[Any]]) -> dict[str, str]:
        """The last retained message of each topic, by name."""
        values: dict[str, str] = {}
        for messages in found.values():
            for message in messages:
                if not message.payload:
                    values.pop(message.topic, None)
                    continue
                sent = self.see(message.topic, message.payload, "replay")
                if sent is not None and sent.retain:
                    values[message.topic] = sent.name
        return values

    def _check_glances(self) -> None:
        """Each value that was told was the last at some moment between the question and the answer."""
        histories: dict[str, list[tuple[int, Sent | None]]] = {}
        for messages in self.log.values():
            for message in messages:
                if not message.payload:
                    histories.setdefault(message.topic, []).append((message.offset, None))
                    continue
                sent = self.see(message.topic, message.payload, "replay")
                if sent is not None and sent.retain:
                    histories.setdefault(message.topic, []).append((message.offset, sent))
        for glance in self.glances:
            matches = compile_filter(glance.filter)
            for topic, history in histories.items():
                if not matches(topic):
                    continue
                floor = 0  # the newest of which everybody knew before it was asked
                for place, (_, sent) in enumerate(history):
                    if sent is not None and sent.ended_us < glance.asked_us:
                        floor = place
                allowed = {sent.name if sent is not None else None for _, sent in history[floor:]}
                if not floor and (history[0][1] is None or history[0][1].ended_us >= glance.asked_us):
                    allowed.add(None)
                told = glance.values.get(topic)
                if told is None and not glance.is_whole:
                    continue
                self.expect(told in allowed, f"{topic} was told to hold {told}; it may have been one of {allowed}")

    def owed(self, reader: Reader) -> set[Place]:
        """Everything that a subscription from the beginning is to have."""
        matches = compile_filter(reader.filter)
        return {
            (root, message.offset)
            for root, messages in self.log.items()
            for message in messages
            if matches(message.topic)
        }

    def check_reader(self, reader: Reader, drained: Sequence[Any], letters: Iterable[Any]) -> None:
        """A named subscription after it was drained: it had everything, in order, and what it acked never again."""
        owed = self.owed(reader)
        places = [(message.root, message.offset) for message in drained if not message.retained]
        again, places = (
            [one for one in places if one in reader.redriven],
            [one for one in places if one not in reader.redriven],
        )
        self.expect(len(again) == len(set(again)), f"{reader.id} got something twice that was redriven")
        missing = (
            owed
            - set(places)
            - reader.done
            - reader.doubtful
            - reader.redriven
            - (reader.known if reader.is_pushed else set())
        )
        self.expect(not missing, f"{reader.id} never got {sorted(missing)[:5]}")
        self.expect(set(places) <= owed, f"{reader.id} got what it did not ask for")
        self.expect(len(places) == len(set(places)), f"{reader.id} got something twice that it had acked")
        self._check_ascending(reader, places, "when it was drained")
        self._check_ascending(reader, reader.first, "for the first time")
        found = {(root_of(letter.topic), letter.offset) for letter in letters}
        self.expect(reader.dead <= found, f"{reader.id} rejected {sorted(reader.dead - found)}, and no letter is left")

    def _check_ascending(self, reader: Reader, places: Sequence[Place], when: str) -> None:
        if reader.order == "none":
            return
        topics = {(root, message.offset): message.topic for root, messages in self.log.items() for message in messages}
        last: dict[str, int] = {}
        for root, offset in places:
            of = root if reader.order == "strict" else topics.get((root, offset), root)
            self.expect(offset > last.get(of, 0), f"{reader.id} got {of} {offset} after {last.get(of)}, {when}")
            last[of] = max(offset, last.get(of, 0))

    def check_session(self, session: Session) -> None:
        """A session of MQTT that was drained, or has ended: what it got, and whether something is missing."""
        for name, times in session.once.items():
            stored = len(self.at.get(name, ()))
            self.expect(times <= max(1, stored), f"{session.client} was given {name} {times} times with QoS 2")
        self._check_session_order(session)
        if session.is_over or not session.is_kept:
            return
        for wanted in session.wanted:
            if wanted.until_us < NEVER or wanted.qos == 0:
                continue
            matches = compile_filter(wanted.filter)
            for sent in self.sent.values():
                if (
                    sent.kind in AWAITED
                    and root_of(sent.topic) not in self.gaps
                    and sent.kind != "delayed"
                    and sent.name in self.at
                    and sent.began_us > wanted.since_us
                    and matches(sent.topic)
                ):
                    self.expect(
                        session.got[sent.name],
                        f"{session.client} never got {sent.name} ({sent.kind}) though subscribed to {wanted.filter}",
                    )

    def _check_session_order(self, session: Session) -> None:
        """Of each root, as its filters do not overlap; of what is stored once."""
        last: dict[str, tuple[int, str]] = {}
        for name in session.first:
            sent, offsets = self.sent[name], self.at.get(name, ())
            if len(offsets) != 1 or sent.kind == "qos0":
                continue
            if sent.tries > 1 and root_of(sent.topic) in self.gaps:
                continue  # it may have been stored twice, and the first of them be gone
            of = sent.topic
            before = last.get(of, (0, ""))
            self.expect(
                offsets[0] > before[0], f"{session.client} got {name} of {of} after {before[1]}, which came later"
            )
            last[of] = (offsets[0], name)


def strange(offsets: Sequence[int]) -> str:
    """Where offsets are not dense."""
    expected = 1
    for offset in offsets:
        if offset != expected:
            return f"{offset} where {expected} comes, of {len(offsets)}"
        expected += 1
    return ""
