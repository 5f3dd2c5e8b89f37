"""`$SYS`: the broker's figures by the names that MQTT's users know from Mosquitto.

They are the figures that `$sys` tells, but none of these topics is stored: whoever subscribes gets what is, as retained
messages, and every few seconds what has changed. Nothing is collected while nobody has subscribed, and for a client
that does not read nothing piles up: it gets the newest values when it does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from typing import TYPE_CHECKING

from headwater.delivery.selection import Selection
from headwater.log.root import MQTT_SYS
from headwater.message import Message
from headwater.server.log import Log
from headwater.server.party import Party
from headwater.server.pump import UNBOUNDED, Pump
from headwater.topics.name import compile_filter
from headwater.version import __version__
from headwater.wire.administration import Figures

if TYPE_CHECKING:
    from headwater.server.broker import Broker

NAMES = {
    "bytes/received": "bytes_in",
    "bytes/sent": "bytes_out",
    "clients/connected": "connections",
    "clients/total": "sessions",
    "messages/received": "messages_in",
    "messages/sent": "messages_out",
    "publish/bytes/received": "bytes_in",
    "publish/bytes/sent": "bytes_out",
    "publish/messages/dropped": "messages_dropped",
    "publish/messages/received": "messages_in",
    "publish/messages/sent": "messages_out",
    "retained messages/count": "retained",
    "store/messages/bytes": "stream_bytes",
}
"""Figures that are told as they are, by the topic below `$SYS/broker`."""

Values = dict[str, bytes]
"""By topic."""

log = Log("headwater.mqtt")


def values_of(figures: Figures) -> Values:
    """What `$SYS` tells of these figures."""
    known = figures.counters | figures.gauges
    told = {name: str(int(known[figure])) for name, figure in NAMES.items()}
    told["clients/disconnected"] = str(max(0, int(known["sessions"] - known["connections"])))
    told["subscriptions/count"] = str(int(known["subscriptions_durable"] + known["subscriptions_live"]))
    told["uptime"] = f"{int(known['uptime_seconds'])} seconds"
    told["version"] = f"headwater version {__version__}"
    return {f"{MQTT_SYS}/broker/{name}": value.encode() for name, value in sorted(told.items())}


class BrokerTopics:
    """Tells the figures to those who watch them."""

    def __init__(self, loop: asyncio.AbstractEventLoop, executor: Executor, broker: Broker, every_s: float) -> None:
        self._loop = loop
        self._executor = executor
        self._broker = broker
        self._every_s = every_s
        self._watches: dict[Watch, None] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._is_stopped = False

    def watch(self, filter: str, with_retained: bool) -> Watch:
        """What a filter matches from now on, or, with retained messages, also now; in any thread but the loop's."""
        watch = Watch(filter, lambda watch: self._watches.pop(watch, None))
        watch.show(self._values())
        if not with_retained:
            watch.take()
        return watch

    def retained(self, filter: str) -> list[Message]:
        """What a filter matches now; in any thread but the loop's."""
        return self.watch(filter, with_retained=True).take()

    def add(self, watch: Watch) -> None:
        """Show this one what changes, until it is closed."""
        self._watches[watch] = None
        if self._timer is None and self._every_s:
            self._timer = self._loop.call_later(self._every_s, self._begin)

    def stop(self) -> None:
        """Tell no more."""
        self._is_stopped = True
        if self._timer is not None:
            self._timer.cancel()

    def _begin(self) -> None:
        if self._watches:
            self._loop.run_in_executor(self._executor, self._values).add_done_callback(self._show)
        else:
            self._timer = None

    def _values(self) -> Values:
        return values_of(self._broker.overview.figures())

    def _show(self, found: asyncio.Future[Values]) -> None:
        if found.cancelled() or self._is_stopped:
            return
        error = found.exception()
        if error is not None:
            log.warning("figures-untold", error=repr(error))
        else:
            for watch in tuple(self._watches):
                watch.show(found.result())
        self._timer = self._loop.call_later(self._every_s, self._begin)


class Watch:
    """One subscription's view of the figures."""

    def __init__(self, filter: str, on_close: Callable[[Watch], None]) -> None:
        self.filter = filter
        self.wake: Callable[[], None] | None = None
        """Called on the loop when there is something to take."""
        self._wanted = compile_filter(filter)
        self._on_close = on_close
        self._values: Values = {}
        self._told: Values | None = None

    def show(self, values: Values) -> None:
        """These are the figures now."""
        self._values = {topic: value for topic, value in values.items() if self._wanted(topic)}
        if self.wake is not None and self._values != self._told:
            self.wake()

    def take(self) -> list[Message]:
        """What is not told yet; the first time these are retained messages."""
        told, self._told = self._told, self._values
        if told is None:
            return [Message(topic, 0, value, 0, retained=True) for topic, value in self._values.items()]
        return [Message(topic, 0, value, 0) for topic, value in self._values.items() if told.get(topic) != value]

    def close(self) -> None:
        """Be shown no more."""
        self._on_close(self)


class WatchPump(Pump):
    """Serves one subscription to `$SYS`."""

    __slots__ = ("watch",)

    def __init__(self, session: Party, number: int, watch: Watch) -> None:
        super().__init__(session, number, "live", None, watch.filter, UNBOUNDED)
        self.watch = watch
        watch.wake = self.ring

    def _pump(self) -> None:
        if not self._may_send:
            self.session.hold_back(self)
        elif messages := self.watch.take():
            self._send(Selection(MQTT_SYS, None, len(messages), None, messages))

    def leave(self) -> None:
        self.watch.close()
