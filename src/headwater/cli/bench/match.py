"""How fast the subscribers of a topic are found, and what a subscription costs in memory, as figures with goals."""

from __future__ import annotations

import random
import time
import tracemalloc
from collections import deque
from collections.abc import Iterator
from itertools import chain, cycle, islice

from headwater.cli.bench import goals
from headwater.cli.bench.figure import Figure
from headwater.config import Config
from headwater.topics.name import matches
from headwater.topics.tree import Trees

SUBSCRIBES_PER_S = 100  # and as many unsubscribes, in the measurements "while changing"
GUESTS = 50  # subscribers that came so and have not gone yet
WARM_TOPICS = 1000
CHUNK_TOPICS = 500  # looked up between two looks at the clock
CHECKED_TOPICS = 2  # against all filters, one by one, after each measurement
TRACED_WILDCARDS_MAX = 100_000  # to trace memory takes long

OVER_ALL = ("devices/+/temp", "devices/#")


def measure(subscriptions: int, seconds: float) -> Iterator[Figure]:
    """All figures of matching; a wrong answer is an AssertionError."""
    found = figures(subscriptions, seconds)
    variant = f"{subscriptions:,} filters"
    name = "filter look-up"
    for kind, goal in (("warm", goals.LOOK_UPS_WARM_PER_S), ("cold", goals.LOOK_UPS_COLD_PER_S)):
        yield Figure(f"{name}, {kind}", variant, found[f"{kind}_per_s"], "look-ups/s", goal=("value ≥", goal))
    for kind in ("warm", "cold"):
        yield Figure(
            f"{name}, {kind}, 100 subscribes/s",
            variant,
            found[f"{kind}_while_changing_per_s"],
            "look-ups/s",
            found[f"{kind}_per_s"],
            "at rest",
            ("ratio ≥", 0.5),
        )
    for with_what, size in (
        (variant, found["bytes_per_subscription"]),
        ("with a wildcard", found["bytes_per_wildcard_subscription"]),
    ):
        yield Figure("memory a subscription", with_what, size, "bytes", goal=("value ≤", goals.SUBSCRIPTION_BYTES))


def figures(subscriptions: int, seconds: float) -> dict[str, int]:
    """Look-ups per second, warm and cold, at rest and while filters come and go, and bytes per subscription.

    Each of the four speeds is measured for `seconds`. A wrong answer, where they are checked, is an AssertionError.
    """
    fleet = Fleet(subscriptions, "devices/d{}/temp")
    wild = Fleet(min(subscriptions, TRACED_WILDCARDS_MAX), "devices/d{}/#")
    result = {
        "subscriptions": subscriptions,
        "bytes_per_subscription": fleet.bytes // fleet.devices,
        "bytes_per_wildcard_subscription": wild.bytes // wild.devices,
    }
    fleet.watch_all()
    warm = fleet.topics[:WARM_TOPICS]
    for name, topics, subscribes_per_s in (
        ("warm_per_s", warm, 0),
        ("cold_per_s", fleet.topics, 0),
        ("warm_while_changing_per_s", warm, SUBSCRIBES_PER_S),
        ("cold_while_changing_per_s", fleet.topics, SUBSCRIBES_PER_S),
    ):
        result[name] = round(fleet.look_up(topics, seconds, subscribes_per_s))
        fleet.check_some(topics)
    return {**result, "subscribes": fleet.subscribes, "answers_checked": fleet.checked}


class Fleet:
    """Many devices, a subscriber with a filter for each, and a few subscribers that watch them all."""

    def __init__(self, devices: int, filter: str) -> None:
        self.devices = devices
        self.subscribes = 0
        self.checked = 0
        self._filter = filter
        self._guests: deque[tuple[str, str, int]] = deque()
        config = Config()
        tracemalloc.start()
        self.trees: Trees[int] = Trees(config)
        for number in range(devices):
            self.trees.add(filter.format(number), number)
        self.bytes = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        # More than the cache holds: it has started anew before a topic comes round again.
        count = 2 * config.match_cache_topics + 1
        self.topics = [
            f"devices/d{number}/temp" for number in random.Random(7).sample(range(max(devices, count)), count)
        ]

    def watch_all(self) -> None:
        """Subscribe with wildcards over all devices."""
        for number, wildcard in enumerate(OVER_ALL):
            self.trees.add(wildcard, -1 - number)

    def look_up(self, topics: list[str], seconds: float, subscribes_per_s: int) -> float:
        """Look-ups per second, round and round the topics."""
        match = self.trees.match
        for topic in topics[:WARM_TOPICS]:
            match(topic)
        round_and_round = cycle(topics)
        looked_up = subscribes = 0
        start = time.perf_counter()
        while (elapsed := time.perf_counter() - start) < seconds:
            for topic in islice(round_and_round, CHUNK_TOPICS):
                match(topic)
            looked_up += CHUNK_TOPICS
            while subscribes < elapsed * subscribes_per_s:
                self._change()
                subscribes += 1
        return looked_up / elapsed

    def check_some(self, topics: list[str]) -> None:
        """Compare some answers with what every filter, one by one, says."""
        chosen = random.Random(self.checked).sample(topics, CHECKED_TOPICS)
        expected: dict[str, list[int]] = {topic: [] for topic in chosen}
        for wanted, subscriber in self._subscriptions():
            for topic in chosen:
                if matches(wanted, topic):
                    expected[topic].append(subscriber)
        for topic in chosen:
            self._expect(sorted(self.trees.match(topic)) == sorted(expected[topic]), topic)

    def _change(self) -> None:
        """A guest comes; with many there, the first one goes. The next answers have to show both."""
        topic = self.topics[self.subscribes % WARM_TOPICS]
        device = topic.split("/")[1]
        kinds = (topic, f"devices/{device}/+", f"devices/{device}/#", f"+/{device}/temp")
        guest = (topic, kinds[self.subscribes % len(kinds)], -1000 - self.subscribes)
        self._guests.append(guest)
        self.subscribes += 1
        self.trees.add(*guest[1:])
        self._expect(guest[2] in self.trees.match(topic), topic)
        if len(self._guests) > GUESTS:
            topic, wanted, subscriber = self._guests.popleft()
            self.trees.remove(wanted, subscriber)
            self._expect(subscriber not in self.trees.match(topic), topic)

    def _subscriptions(self) -> Iterator[tuple[str, int]]:
        devices = ((self._filter.format(number), number) for number in range(self.devices))
        watchers = ((wildcard, -1 - number) for number, wildcard in enumerate(OVER_ALL))
        guests = ((wanted, subscriber) for _, wanted, subscriber in self._guests)
        return chain(devices, watchers, guests)

    def _expect(self, is_right: bool, topic: str) -> None:
        self.checked += 1
        if not is_right:
            raise AssertionError(f"wrong subscribers for {topic}: {self.trees.match(topic)}")
