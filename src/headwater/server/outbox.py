"""The outbox: what a long read has sent leaves together, with one write for each line.

A read that brings many publishes has many frames sent to the same subscriber, and each write of its own is a call to
the system, a packet and somebody who is woken. Promises: a line's bytes leave in the order in which they were written;
no line gathers more than `GATHERED_BYTES_MAX`; nothing is left when the read is dealt with.
"""

from __future__ import annotations

from typing import Protocol

GATHER_READ_BYTES_MIN = 8 * 1024
"""What shorter reads have sent leaves at once: there is nothing to gather."""
GATHERED_BYTES_MAX = 256 * 1024


class Sender(Protocol):
    """Whoever has gathered something."""

    def post(self) -> None:
        """Send it."""


class Outbox:
    """Lines that have gathered something in this read."""

    __slots__ = ("_senders", "is_open")

    def __init__(self) -> None:
        self.is_open = False
        """Whether what is written now is to be gathered."""
        self._senders: list[Sender] = []

    def add(self, sender: Sender) -> None:
        """It has gathered something."""
        self._senders.append(sender)

    def post(self) -> None:
        """Have it all sent: the read is dealt with."""
        self.is_open = False
        senders, self._senders = self._senders, []
        for sender in senders:
            sender.post()
