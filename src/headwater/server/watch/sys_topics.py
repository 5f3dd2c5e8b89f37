"""The topics of `$sys`, on which the broker tells about itself: its figures every few seconds, and who changed what.

Nobody else publishes there: `log.checks` refuses it (403). Wildcards do not match them, so
whoever wants them names `$sys`, and with authentication on needs a rule that does.

Figures are retained. A value is told when it has changed, and a broker that has nothing to do tells little, as all of
it is kept as long as the audit is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from urllib.parse import quote

import msgspec

from headwater.core import Core
from headwater.log.root import SYS
from headwater.message import Outgoing
from headwater.version import __version__
from headwater.wire.administration import Figures

IDLE_S = 60.0
"""How often a broker with nothing to do says that it is there."""
UNNOTED = frozenset(("bytes_out", "commits", "disk_free_bytes", "messages_out", "stream_bytes", "uptime_seconds"))
"""Figures that change by themselves, or by being told."""
SUBSCRIPTIONS = f"{SYS}/subscriptions"


def publish_own(core: Core, messages: Sequence[Outgoing]) -> Future[object]:
    """Publish on topics of `$sys`, from any thread; the future is done once they are on disk."""
    item = core.checks.own(messages)
    item.future = future = Future[object]()
    core.roots.commit.submit(item)
    return future


class Telling:
    """Tells the figures, as often as it is asked to."""

    def __init__(self, core: Core, figures: Callable[[], Figures]) -> None:
        self._core = core
        self._figures = figures
        self._told: dict[str, bytes] | None = None
        """What is retained of single values, by topic."""
        self._noted: dict[str, float] = {}
        self._told_us = 0

    def tell(self) -> None:
        """Publish what has changed; in a thread."""
        figures = self._figures()
        if not self._is_news(figures):
            return
        if self._told is None:
            self._told = {one.topic: one.payload for one in self._core.retained(f"{SYS}/#")}
        longest = self._core.config.topic_bytes_max
        values = {topic: payload for topic, payload in values_of(figures).items() if len(topic) <= longest}
        gone = [topic for topic in self._told if topic.startswith(f"{SUBSCRIPTIONS}/") and topic not in values]
        fresh = {topic: payload for topic, payload in values.items() if self._told.get(topic) != payload}
        fresh.update(dict.fromkeys(gone, b""))
        messages = [Outgoing(topic, payload, retain=True) for topic, payload in fresh.items()]
        messages.append(Outgoing(f"{SYS}/metrics", metrics_of(figures), retain=True))
        publish_own(self._core, messages).result()
        self._told = values
        self._told_us = figures.time_us

    def _is_news(self, figures: Figures) -> bool:
        noted = {name: one for name, one in (figures.counters | figures.gauges).items() if name not in UNNOTED}
        is_news = noted != self._noted or figures.time_us - self._told_us >= IDLE_S * 1_000_000
        self._noted = noted
        return is_news


def values_of(figures: Figures) -> dict[str, bytes]:
    """Single values, by topic."""
    values: dict[str, bytes] = {f"{SYS}/version": __version__.encode()}
    for name, value in (figures.counters | figures.gauges).items():
        values[topic_of(name)] = str(int(value)).encode()
    for one in figures.subscriptions:
        if one.is_named:
            values[f"{SUBSCRIPTIONS}/{quote(one.id, safe=' ')}/lag"] = str(one.lag).encode()
    return values


def topic_of(name: str) -> str:
    """Where a figure is told: messages_in on `$sys/messages/in`."""
    what, _, way = name.rpartition("_")
    if way in ("in", "out"):
        name = f"{what}/{way}"
    return f"{SYS}/{'uptime_s' if name == 'uptime_seconds' else name}"


def metrics_of(figures: Figures) -> bytes:
    """All figures in one JSON object, besides those of single roots, subscriptions and readers."""
    return msgspec.json.encode(
        {
            "time_us": figures.time_us,
            "started_us": figures.started_us,
            "counters": figures.counters,
            "gauges": figures.gauges,
            "histograms": figures.histograms,
        }
    )
