"""A reader of the engine's stream: an ephemeral consumer that is pushed to, in order.

Promises: messages come in the order of the stream and without one being left out, or `ReaderLost` says so; no more is
kept for a slow reader than one window of the server's flow control, as that goes on once what came before was taken.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

from headwater import threads
from headwater.clock import SystemClock
from headwater.cluster.engine import ReaderLost, StreamLost
from headwater.cluster.nats_connection import NO_STREAM, NatsConnection, Rejected
from headwater.errors import Unavailable

HEARTBEAT_S = 1.0
SILENCE_S = 4.0
"""With nothing heard for so long, the consumer is gone."""
ASK_S = 2.0
UNUSED_S = 30.0
"""After so long without a reader, the server forgets the consumer by itself."""
CONTROL = "100"


class NatsReader:
    """Messages behind a sequence."""

    def __init__(self, connection: NatsConnection, stream: str, after: int) -> None:
        self._connection = connection
        self._stream = stream
        self._condition = threads.Condition()
        self._came: deque[tuple[int, bytes, str]] = deque()
        """Sequence and data, or 0 and where to say that all before it was taken."""
        self._lost = ""
        self._delivered = 0
        self._clock = SystemClock()
        self._heard_us = self._clock.monotonic_us()
        self._consumer = ""
        self._subscription: Any = None
        try:
            connection.call(self._begin(after), 3 * ASK_S)
        except BaseException:
            self.close()
            raise

    async def _begin(self, after: int) -> None:
        client = self._connection.client
        inbox = client.new_inbox()
        self._subscription = await client.subscribe(inbox, cb=self._take, pending_msgs_limit=-1, pending_bytes_limit=-1)
        wanted = {
            "deliver_policy": "by_start_sequence",
            "opt_start_seq": after + 1,
            "deliver_subject": inbox,
            "ack_policy": "none",
            "max_deliver": 1,
            "flow_control": True,
            "idle_heartbeat": round(HEARTBEAT_S * 1e9),
            "inactive_threshold": round(UNUSED_S * 1e9),
            "mem_storage": True,
            "num_replicas": 1,
            "replay_policy": "instant",
        }
        asked = {"stream_name": self._stream, "config": wanted}
        try:
            found = await self._connection.api(f"CONSUMER.CREATE.{self._stream}", asked, 2 * ASK_S)
        except Rejected as error:
            if error.error.err_code == NO_STREAM:
                raise StreamLost(f'the NATS servers have no stream "{self._stream}"') from None
            raise Unavailable(f"the NATS servers refuse to let {self._stream} be read: {error}") from None
        self._consumer = found.name

    async def _take(self, message: Any) -> None:
        """On the connection's loop."""
        self._heard_us = self._clock.monotonic_us()
        headers = message.headers
        if headers and headers.get("Status") == CONTROL:
            self._control(message, headers)
            return
        # $JS.ACK.<stream>.<consumer>.<deliveries>.<sequence>.<delivered>.<time>.<pending>
        tokens = message.reply.split(".")
        sequence, delivered = int(tokens[-4]), int(tokens[-3])
        if delivered != self._delivered + 1:
            self._lose(f"message {self._delivered + 1} of the reader did not come, but {delivered}")
            return
        self._delivered = delivered
        with self._condition:
            self._came.append((sequence, message.data, ""))
            self._condition.notify()

    def _control(self, message: Any, headers: Any) -> None:
        """A heartbeat, or the question whether what came before was taken."""
        last = headers.get("Nats-Last-Consumer")
        if last is not None and int(last) != self._delivered:
            self._lose(f"the server has delivered {last} messages, and {self._delivered} came")
        stalled = message.reply or headers.get("Nats-Consumer-Stalled")
        if stalled:
            with self._condition:
                self._came.append((0, b"", stalled))
                self._condition.notify()

    def _lose(self, why: str) -> None:
        with self._condition:
            self._lost = self._lost or why
            self._condition.notify()

    def next(self, timeout_s: float) -> Sequence[tuple[int, bytes]]:
        with self._condition:
            if not self._came and not self._lost:
                self._condition.wait(timeout_s)
            came, self._came = self._came, deque()
            lost = self._lost
        for _, _, stalled in came:
            if stalled:
                self._connection.soon(self._go_on, stalled)
        found = [(sequence, data) for sequence, data, stalled in came if not stalled]
        if found:
            return found
        if lost:
            raise ReaderLost(lost)
        if self._clock.monotonic_us() - self._heard_us > SILENCE_S * 1e6:
            raise ReaderLost("nothing was heard of the reader's server")
        return found

    def _go_on(self, subject: str) -> None:
        self._connection.loop.create_task(self._connection.client.publish(subject, b""))

    def close(self) -> None:
        async def end() -> None:
            if self._subscription is not None:
                await self._subscription.unsubscribe()
            if self._consumer:
                await self._connection.client.publish(f"$JS.API.CONSUMER.DELETE.{self._stream}.{self._consumer}", b"")

        try:
            self._connection.call(end(), ASK_S)
        except Exception:  # it ends by itself, too
            return
