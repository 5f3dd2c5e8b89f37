"""A client's last will: a message that is published once the client is gone without leave, and its delay is over."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from headwater.clock import SECOND_US

if TYPE_CHECKING:
    from headwater.mqtt.session import MqttSession
    from headwater.mqtt.wills import KeptWill, Wills


class LastWill:
    """The will of one session, while nobody is connected."""

    __slots__ = ("_kept", "_session", "_timer")

    def __init__(self, session: MqttSession) -> None:
        self._session = session
        self._kept: KeptWill | None = None
        """What waits."""
        self._timer: asyncio.TimerHandle | None = None

    @property
    def _wills(self) -> Wills:
        return self._session.mqtt.wills

    def recover(self, kept: KeptWill) -> None:
        """A server that is no more has left this: its client is gone, at the latest since now."""
        delay_s, now_us = self._delay_s(kept), self._session.sessions.broker.clock.now_us()
        if kept.row.due_us:
            delay_s = min(delay_s, max(0.0, (kept.row.due_us - now_us) / SECOND_US))
        elif delay_s:
            self._wills.delay(kept, now_us + round(delay_s * SECOND_US))
        self._start(kept, delay_s)

    def wait(self, kept: KeptWill) -> None:
        """The client is gone: publish its will when its delay is over, unless it comes back before."""
        self.forget()
        delay_s = self._delay_s(kept)
        if delay_s:
            self._wills.delay(kept, self._session.sessions.broker.clock.now_us() + round(delay_s * SECOND_US))
            self._start(kept, delay_s)
        else:
            self._wills.publish(kept)

    def _delay_s(self, kept: KeptWill) -> float:
        return min(kept.delay_s, self._session.row.expire_after_s)

    def _start(self, kept: KeptWill, delay_s: float) -> None:
        self._kept = kept
        self._timer = self._session.sessions.loop.call_later(delay_s, self.publish)

    def forget(self) -> None:
        """The client is back: nothing waits any more."""
        kept = self._taken()
        if kept is not None:
            self._wills.drop(kept)

    def publish(self) -> None:
        """Publish what waits."""
        kept = self._taken()
        if kept is not None:
            self._wills.publish(kept)

    def _taken(self) -> KeptWill | None:
        kept, self._kept = self._kept, None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        return kept
