"""A client's last will: a message that is published once the client is gone without taking leave.

One that is to wait is stored with its session, so that it is published though the server ends meanwhile.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec

from headwater.clock import SECOND_US
from headwater.errors import HeadwaterError
from headwater.mqtt.packets import Will
from headwater.mqtt.publishing import FLAGS
from headwater.mqtt.translation import headers_of
from headwater.server.log import Log
from headwater.topics.name import root_of

if TYPE_CHECKING:
    from headwater.message import Headers
    from headwater.mqtt.session import MqttSession
    from headwater.outgoing import Desk
    from headwater.topics.publish import Publish

log = Log("headwater.mqtt")


class LastWill:
    """The will of one session, while nobody is connected."""

    __slots__ = ("_session", "_timer")

    def __init__(self, session: MqttSession) -> None:
        self._session = session
        self._timer: asyncio.TimerHandle | None = None
        if session.row.will is not None:
            left_us = session.row.will_at_us - session.sessions.broker.clock.now_us()
            self._start(max(0.0, left_us / SECOND_US))

    def _start(self, delay_s: float) -> None:
        self._timer = self._session.sessions.loop.call_later(delay_s, self.publish)

    def wait(self, will: Will) -> None:
        """The client is gone: publish its will when its delay is over, unless it comes back before."""
        self.forget()
        delay_s = float(will.properties.will_delay_interval or 0)
        delay_s = min(delay_s, self._session.row.expire_after_s)
        if not delay_s:
            self.publish(will)
            return
        at_us = self._session.sessions.broker.clock.now_us() + round(delay_s * SECOND_US)
        self._keep(will, at_us)
        self._start(delay_s)

    def _keep(self, will: Will | None, at_us: int = 0) -> None:
        session = self._session
        session.row = msgspec.structs.replace(session.row, will=will, will_at_us=at_us)
        session.sessions.keep(session.row)

    def forget(self) -> Will | None:
        """The client is back, or its will is published: nothing waits any more. What did."""
        waiting = self._session.row.will
        if waiting is not None:
            self._keep(None)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        return waiting

    def publish(self, will: Will | None = None) -> None:
        """Publish this one, or the one that waits."""
        will = self.forget() or will
        if will is None:
            return
        found, inside = will, self._session.sessions.broker.bus.inside
        broker, row = self._session.sessions.broker, self._session.row
        mark = self._session.mark

        def work() -> None:
            broker.check_publish(row.user, row.id, root_of(found.topic), (found.topic,))
            inside.roots.commit.submit_and_wait(item_of(found, inside.desk, (mark,)))

        self._session.later(work, self._published)

    def _published(self, _: object, error: BaseException | None) -> None:
        if error is not None:
            why = str(error) if isinstance(error, HeadwaterError) else repr(error)
            log.warning("will-refused", session=self._session.row.id, reason=why)


def item_of(will: Will, desk: Desk, tag: Headers = ()) -> Publish:
    """A will ready to be published, with headers of the session's own; raises what is wrong with it."""
    headers, key = headers_of(will.properties)
    headers = (*headers, *tag)
    ttl_s = will.properties.message_expiry_interval
    item = desk.one(
        will.topic, will.payload, will.retain, key, headers, float(ttl_s) if ttl_s else None, None, None, None
    )
    item.flags = FLAGS[will.qos]
    return item
