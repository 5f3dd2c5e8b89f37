"""Figures of the broker: counters, gauges, how long things took, and the roots, subscriptions and readers to look at.

Collected when somebody asks, in a thread, from numbers that are there anyway; whoever asks again at once gets the same
answer. What each name means is in `counts.py`.
"""

from __future__ import annotations

from heapq import nlargest
from typing import TYPE_CHECKING

from headwater import threads
from headwater.clock import SECOND_US
from headwater.config import Serving
from headwater.core import Core
from headwater.counts import BOUNDS_US, Durations
from headwater.log import delays
from headwater.log.root import LETTERS, SYS, Root
from headwater.log.roots import STAGED
from headwater.pacing import Pacing
from headwater.server.durable_pump import DurablePump
from headwater.server.live_pump import LivePump
from headwater.server.session import Session
from headwater.server.watch.lags import Lags
from headwater.server.watch.pulse import Pulse
from headwater.wire.administration import Figures, Histogram, RootFigures, SlowConsumer

if TYPE_CHECKING:
    from headwater.server.listener import Listener
    from headwater.server.sessions import Sessions

FRESH_US = SECOND_US // 2
"""Whoever asks again within this gets the same answer."""
SIZES_US = 5 * SECOND_US
"""How old the sizes of streams may be."""
INTERNAL = frozenset((delays.ROOT, STAGED, SYS, LETTERS))
"""Roots whose messages nobody publishes there."""


class Collector:
    """Collects figures of a server; from any thread."""

    def __init__(self, core: Core, serving: Serving, listener: Listener, sessions: Sessions, pulse: Pulse) -> None:
        self._core = core
        self._serving = serving
        self._listener = listener
        self._sessions = sessions
        self._pulse = pulse
        self._lags = Lags(core.dispatcher, core.roots, core.config, core.clock, sessions.owns)
        self._started_us, self._began_us = core.clock.read()
        self._began = {root.name: root.stream.durable for root in core.roots.all()}
        self._bytes_began = sum(root.bytes_in for root in self._published())
        self._sizes: dict[str, tuple[int, int]] = {}
        self._sizes_us = -SIZES_US
        self._lock = threads.Lock()
        self._last: Figures | None = None
        self._last_us = 0

    def figures(self) -> Figures:
        """The figures as they are now, or were a moment ago."""
        with self._lock:
            now_us = self._core.clock.monotonic_us()
            if self._last is None or now_us - self._last_us >= FRESH_US:
                self._last = self._collect(now_us)
                self._last_us = now_us
            return self._last

    def _published(self) -> list[Root]:
        return [root for root in self._core.roots.all() if root.name not in INTERNAL]

    def _collect(self, now_us: int) -> Figures:
        core, most = self._core, self._serving.figures_max
        every = core.roots.all()
        if now_us - self._sizes_us >= SIZES_US or len(self._sizes) != len(every):
            self._sizes = {root.name: root.stream.size for root in every}
            self._sizes_us = now_us
        core.readers.look()
        subscriptions, sums = self._lags.look(most)
        slow, waiting_bytes, live, served, own = self._readers(most)
        counts = core.roots.counts
        published = self._published()
        return Figures(
            time_us=core.clock.now_us(),
            started_us=self._started_us,
            counters={
                "messages_in": sum(root.stream.durable - self._began.get(root.name, 0) for root in published),
                "bytes_in": sum(root.bytes_in for root in published) - self._bytes_began,
                "messages_out": counts.messages_out,
                "bytes_out": counts.bytes_out,
                "commits": sum(counts.commits.counts),
                "acks": counts.acks,
                "nacks": counts.nacks,
                "retries": counts.retries,
                "dead_letters": counts.dead,
                "messages_dropped": counts.dropped,
                "quota_refusals": counts.quota_refusals,
                "rights_refusals": counts.rights_refusals,
                "publishes_refused": counts.refused,
                "messages_unstored": counts.unstored,
                "connections_opened": counts.connections,
                "handshakes_failed": counts.handshakes_failed,
            },
            gauges={
                "connections": self._listener.count - own,
                "sessions": len(self._sessions) - own,
                "subscriptions_durable": core.dispatcher.directory.count,
                "subscriptions_served": served,
                "subscriptions_live": live,
                "lag": sums.lag,
                "in_flight": sums.in_flight,
                "retrying": sums.retrying,
                "dead": sums.dead,
                "roots": len(published),
                "topics": sum(root.topic_count for root in published),
                "retained": sum(root.retained.count for root in published),
                "retained_bytes": sum(root.retained.size for root in published),
                "stream_bytes": sum(size for size, _ in self._sizes.values()),
                "damaged_ranges": sum(len(root.stream.holes) for root in every),
                "disk_free_bytes": core.roots.free_bytes(),
                "waiting_bytes": waiting_bytes,
                "delayed": core.roots.due_rows.count,
                "staged": core.staging.count,
                "uptime_seconds": (now_us - self._began_us) / SECOND_US,
            },
            histograms={"commit": histogram(counts.commits), "loop_lag": histogram(self._pulse.lags)},
            roots=tuple(map(self._of_root, nlargest(most, every, key=lambda root: self._sizes[root.name][0]))),
            subscriptions=tuple(subscriptions),
            slow=slow,
        )

    def _of_root(self, root: Root) -> RootFigures:
        size, segments = self._sizes[root.name]
        stream = root.stream
        return RootFigures(
            root=root.name,
            first=stream.first_offset,
            end=stream.durable + 1,
            bytes=size,
            segments=segments,
            topics=root.topic_count,
        )

    def _readers(self, most: int) -> tuple[tuple[SlowConsumer, ...], int, int, int, int]:
        """Those who do not keep up; bytes that wait for all; live subscriptions, and durable ones that are served; and
        connections of the process that serves HTTP, who is shown to nobody."""
        slow: list[SlowConsumer] = []
        waiting_bytes = live = served = own = 0
        breath = Pacing()
        for connection in self._listener.connections:
            breath.take()
            session = connection.session
            waiting = connection.waiting_bytes
            waiting_bytes += waiting
            if not isinstance(session, Session):
                continue
            if connection.is_own:
                own += 1
                continue
            dropped = 0
            for pump in tuple(session.pumps.values()):
                if isinstance(pump, LivePump):
                    live += 1
                    dropped += pump.live.dropped
                elif isinstance(pump, DurablePump):
                    served += 1
            if dropped or (waiting and not connection.is_writable):
                slow.append(_slow(session, waiting, dropped))
        worst = nlargest(most, slow, key=lambda one: (one.waiting_bytes, one.dropped))
        return tuple(worst), waiting_bytes, live, served, own


def _slow(session: Session, waiting_bytes: int, dropped: int) -> SlowConsumer:
    return SlowConsumer(session=session.row.id, user=session.row.user, waiting_bytes=waiting_bytes, dropped=dropped)


def histogram(durations: Durations) -> Histogram:
    """How often it took how long, as it is told."""
    return Histogram(
        bounds_s=tuple(bound / SECOND_US for bound in BOUNDS_US),
        counts=tuple(durations.counts),
        sum_s=durations.sum_us / SECOND_US,
    )
