"""A client's last will: a message that is published once the client is gone without taking leave."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from headwater.errors import HeadwaterError
from headwater.mqtt.packets import Will
from headwater.mqtt.translation import headers_of
from headwater.server.log import Log
from headwater.topics.name import root_of

if TYPE_CHECKING:
    from headwater.mqtt.session import MqttSession

log = Log("headwater.mqtt")


class LastWill:
    """The will of one session, while nobody is connected."""

    __slots__ = ("_session", "_timer", "_will")

    def __init__(self, session: MqttSession) -> None:
        self._session = session
        self._will: Will | None = None
        self._timer: asyncio.TimerHandle | None = None

    def wait(self, will: Will) -> None:
        """The client is gone: publish its will when its delay is over, unless it comes back before."""
        self.forget()
        self._will = will
        delay_s = float(will.properties.will_delay_interval or 0)
        delay_s = min(delay_s, self._session.row.expire_after_s)
        if delay_s:
            self._timer = self._session.sessions.loop.call_later(delay_s, self.publish)
        else:
            self.publish()

    def forget(self) -> None:
        """The client is back, or another will takes its place."""
        self._will = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def publish(self) -> None:
        """Publish it, if there is one."""
        will = self._will
        self.forget()
        if will is None:
            return
        broker, row = self._session.sessions.broker, self._session.row
        headers, key = headers_of(will.properties)
        ttl_s = will.properties.message_expiry_interval

        def work() -> None:
            broker.check_publish(row.user, row.id, root_of(will.topic), (will.topic,))
            broker.bus.publish(
                will.topic,
                will.payload,
                retain=will.retain,
                key=key,
                headers=headers,
                ttl_s=float(ttl_s) if ttl_s else None,
            )

        self._session.later(work, self._published)

    def _published(self, _: object, error: BaseException | None) -> None:
        if error is not None:
            why = str(error) if isinstance(error, HeadwaterError) else repr(error)
            log.warning("will-refused", session=self._session.row.id, reason=why)
