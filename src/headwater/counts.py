"""Counts: the counters behind a server's metrics, since the bus was opened.

Plain numbers, added to once a batch or group by whoever does the work, without a lock: no message waits for somebody
who reads metrics. The tables name every metric of a server, and say what it counts.
"""

from __future__ import annotations

from bisect import bisect_left

BOUNDS_US = (
    *(100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000),
    *(100_000, 250_000, 500_000, 1_000_000, 2_500_000, 5_000_000, 10_000_000),
)
"""The longest of each bucket but the last, which has no bound."""


COUNTERS = {
    "messages_in": "Messages stored.",
    "bytes_in": "Bytes of batches stored.",
    "messages_out": "Messages sent to subscribers.",
    "bytes_out": "Bytes of batches sent to subscribers.",
    "commits": "Groups that were written and synced.",
    "acks": "Messages that consumers acked.",
    "nacks": "Messages that consumers gave back or rejected.",
    "retries": "Messages handed out again after they had failed.",
    "dead_letters": "Messages that subscriptions gave up on.",
    "messages_dropped": "Messages that live subscriptions lost, as their readers were too slow.",
    "quota_refusals": "Publishes and requests refused by a limit (429).",
    "rights_refusals": "Publishes and requests that were not allowed (403).",
    "publishes_refused": "Messages of MQTT clients that were not stored, and were answered so, or closed for.",
    "messages_unstored": "Messages not stored, without a word: of `send`, of QoS 0, or of MQTT 3.1.1 and not allowed.",
    "connections_opened": "Connections that were accepted.",
    "handshakes_failed": "Connections that ended before they had registered.",
}
GAUGES = {
    "connections": "Open connections of others than the server's own processes.",
    "sessions": "Sessions, connected or not.",
    "subscriptions_durable": "Durable subscriptions.",
    "subscriptions_served": "Durable subscriptions that somebody takes from over a connection.",
    "subscriptions_live": "Live subscriptions of connections.",
    "lag": "Messages that durable subscriptions have not acked, over all of them.",
    "in_flight": "Messages that are with consumers.",
    "retrying": "Messages that failed and wait for their next attempt.",
    "dead": "Dead letters that are kept.",
    "roots": "Roots, besides the broker's own.",
    "topics": "Topics of these.",
    "retained": "Retained messages of these.",
    "retained_bytes": "Bytes of these retained messages.",
    "stream_bytes": "Bytes of all streams on disk.",
    "damaged_ranges": "Ranges of offsets that are lost.",
    "disk_free_bytes": "Bytes free on the disk of the data.",
    "waiting_bytes": "Bytes written to connections and not taken yet.",
    "delayed": "Delayed messages that wait.",
    "staged": "Staged bodies that wait for their commit.",
    "uptime_seconds": "Seconds since the server's start.",
}
HISTOGRAMS = {
    "commit": "How long a group took to be written and synced.",
    "loop_lag": "How late the event loop was with a timer.",
}


class Durations:
    """How often something took how long."""

    __slots__ = ("counts", "sum_us")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS_US) + 1)
        self.sum_us = 0

    def add(self, took_us: int) -> None:
        """It took so long, once more."""
        self.counts[bisect_left(BOUNDS_US, took_us)] += 1
        self.sum_us += took_us


class Counts:
    """Everything that is counted."""

    __slots__ = (
        "acks",
        "bytes_out",
        "commits",
        "connections",
        "dead",
        "dropped",
        "handshakes_failed",
        "messages_out",
        "nacks",
        "quota_refusals",
        "refused",
        "retries",
        "rights_refusals",
        "unstored",
    )

    def __init__(self) -> None:
        self.commits = Durations()
        """The write and the sync of each group."""
        self.messages_out = 0
        self.bytes_out = 0
        self.acks = 0
        self.nacks = 0
        """Messages that consumers gave back or rejected."""
        self.retries = 0
        """Messages that were handed out again after they had failed."""
        self.dead = 0
        self.dropped = 0
        """Messages that live subscriptions lost, as their readers were too slow."""
        self.connections = 0
        self.handshakes_failed = 0
        self.quota_refusals = 0
        self.rights_refusals = 0
        self.refused = 0
        """Messages of MQTT clients that were not stored, and their client knows."""
        self.unstored = 0
        """Messages that were not stored, and their publisher does not know."""

    def refuse(self, code: int) -> None:
        """Somebody was refused something, for this reason."""
        if code == 429:
            self.quota_refusals += 1
        elif code == 403:
            self.rights_refusals += 1
