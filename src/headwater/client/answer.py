"""An answer to a request of a thread, which reads it by itself if it may."""

from __future__ import annotations

from concurrent.futures import Future

from headwater.client.link import Link
from headwater.clock import SECOND_US, Clock
from headwater.message import Message


class Answer(Future[Message]):
    """The answer to a request, once there is one."""

    def __init__(self, link: Link, clock: Clock) -> None:
        super().__init__()
        self._link = link
        self._clock = clock

    def result(self, timeout: float | None = None) -> Message:
        """The answer; waits for it."""
        if self.done():
            return super().result(0)
        began_us = self._clock.monotonic_us()
        self._link.read_until(self.done, timeout)
        if timeout is not None:
            timeout = max(0.0, timeout - (self._clock.monotonic_us() - began_us) / SECOND_US)
        return super().result(timeout)
