"""What was promised to whom: messages that were sent, subscriptions, sessions, and retained values that were told."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from sim.world import NEVER

Place = tuple[str, int]
"""Root and offset."""


@dataclass(eq=False, slots=True)
class Sent:
    """A message that somebody tried to publish."""

    name: str
    number: int
    topic: str
    payload: bytes
    kind: str
    by: str
    retain: bool
    began_us: int
    ended_us: int = NEVER
    """When its ack was there."""
    outcome: str = "unknown"
    offset: int = 0
    tries: int = 1
    due_us: int = 0
    group: int = 0
    """The call that it was published with, if there were others."""
    lane: str = ""
    """Whose order it keeps: that of its client's calls."""


@dataclass(eq=False, slots=True)
class FailedOnce:
    """A message of a subscription in order that failed: it alone comes again before anything after it."""

    offset: int
    since_us: int
    is_back: bool = False
    """Whether it came again."""


@dataclass(eq=False)
class Reader:
    """A named subscription, as far as it was promised."""

    id: str
    filter: str
    order: str
    is_certain: bool = False
    is_pushed: bool = False
    """Whether it is a channel's: then it is enough that everything was pushed."""
    done: set[Place] = field(default_factory=set)
    doubtful: set[Place] = field(default_factory=set)
    attempts: Counter[Place] = field(default_factory=Counter)
    dead: set[Place] = field(default_factory=set)
    first: list[Place] = field(default_factory=list)
    """Places in the order in which they were first handed out."""
    known: set[Place] = field(default_factory=set)
    redriven: set[Place] = field(default_factory=set)
    """Dead letters that were handed to it again."""
    rejected: set[Place] = field(default_factory=set)
    """What somebody tried to reject."""
    is_moving: bool = False
    """Whether somebody rejects or redrives just now: which of the two comes first at the server, nobody knows."""
    settled: Counter[Place] = field(default_factory=Counter)
    """How often somebody was about to ack or reject a message."""
    failed: dict[str, FailedOnce] = field(default_factory=dict)
    """By root or topic, whatever is in order: the message that failed, and is neither acked nor rejected since."""

    def chain(self, message: Any) -> str:
        """What its order is about; empty if there is none."""
        of: dict[str, str] = {"strict": message.root, "key": message.topic}
        return of.get(self.order, "")


@dataclass(eq=False)
class Wanted:
    """A filter that a session of MQTT is subscribed to."""

    filter: str
    qos: int
    since_us: int
    """When its SUBACK was there."""
    until_us: int = NEVER
    """When somebody asked for its end."""


@dataclass(eq=False)
class Session:
    """A session of an MQTT client, as far as it was promised."""

    client: str
    is_kept: bool
    number: int
    wanted: list[Wanted] = field(default_factory=list)
    got: Counter[str] = field(default_factory=Counter)
    once: Counter[str] = field(default_factory=Counter)
    """Those that came with QoS 2."""
    first: list[str] = field(default_factory=list)
    is_over: bool = False


@dataclass(eq=False, slots=True)
class Glance:
    """Retained values that somebody was told: which, and between which moments it asked and heard."""

    filter: str
    asked_us: int
    heard_us: int
    values: dict[str, str]
    is_whole: bool
    """Whether topics that are not among the values have none."""
