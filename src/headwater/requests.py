"""Request and reply: an answer comes back on a reply topic, found by its correlation id.

A question goes the way of `bus.send`, and asks in a header that its answer does, too: live subscriptions have them at
once, and nobody waits for the disk. A durable one, and one that asks for no such thing (of MQTT clients, say), is
answered with a message that is stored first.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import Any, ClassVar

from headwater import threads
from headwater.delivery.selection import Selection
from headwater.errors import Closed, NoResponders, QuotaExceeded
from headwater.message import REPLY_TO, Headers, Message

REPLY_ROOT = "$reply"
CORRELATION = "correlation-id"
REPLY_BY = "reply-by"
"""Header of a question that says how its answer is to go:"""
SEND = "send"
"""at most once, and nobody waits for it."""
carried: ContextVar[Callable[[], Headers] | None] = ContextVar("carried", default=None)
"""Gives more headers for answers, while a message is processed that is traced."""


DRAWN = 64
"""Correlation ids that are drawn at once."""
ID_BYTES = 8


class Replies:
    """Listens on the bus's reply topic for those who wait for an answer."""

    wants_places: ClassVar[bool] = True
    takes_early: ClassVar[bool] = True

    def __init__(self, name: str, waiting_max: int) -> None:
        self._waiting_max = waiting_max
        self.topic = f"{REPLY_ROOT}/{name}"
        self._waiting: dict[str, Any] = {}
        """By correlation id: a future, of threads or of asyncio."""
        self._lock = threads.Lock()
        self._fresh: list[str] = []
        """Correlation ids that nobody has had."""
        self.is_listening = False

    def expect(self, answer: Any, *, is_durable: bool = False) -> Headers:
        """Headers of a request, whose answer will complete a future."""
        with self._lock:
            correlation = (self._fresh or self._draw()).pop()
            if len(self._waiting) >= self._waiting_max:
                raise QuotaExceeded(f"{len(self._waiting)} requests wait for answers, as many as requests_max allows")
            self._waiting[correlation] = answer
        pairs = ((REPLY_TO, self.topic), (CORRELATION, correlation))
        return pairs if is_durable else (*pairs, (REPLY_BY, SEND))

    def _draw(self) -> list[str]:
        drawn, length = secrets.token_hex(ID_BYTES * DRAWN), 2 * ID_BYTES
        self._fresh = [drawn[at : at + length] for at in range(0, len(drawn), length)]
        return self._fresh

    def forget(self, headers: Headers) -> None:
        """Nobody waits for this answer any more."""
        with self._lock:
            self._waiting.pop(dict(headers)[CORRELATION], None)

    @property
    def is_any(self) -> bool:
        """Whether somebody waits for an answer."""
        return bool(self._waiting)

    def is_awaited(self, headers: Headers) -> bool:
        """Whether somebody still waits for the answer to a request with these headers."""
        return dict(headers)[CORRELATION] in self._waiting

    def end(self) -> None:
        """The bus closes: nobody will answer any more."""
        with self._lock:
            waiting, self._waiting = self._waiting, {}
        for answer in waiting.values():
            settle(answer, None, Closed("the bus was closed before an answer came; open it again and ask again"))

    def deliver(self, selection: Selection) -> None:
        """Answers have arrived."""
        for message in selection.taken():
            self.answer(message)

    def answer(self, message: Message) -> None:
        """An answer has arrived; one that nobody waits for is passed over."""
        self._settle(dict(message.header_pairs).get(CORRELATION, ""), message, None)

    def refuse(self, headers: Headers, error: BaseException) -> None:
        """There will be no answer to the request with these headers."""
        self._settle(dict(headers)[CORRELATION], None, error)

    def _settle(self, correlation: str, message: Message | None, error: BaseException | None) -> None:
        with self._lock:
            answer = self._waiting.pop(correlation, None)
        if answer is not None:
            settle(answer, message, error)


def settle(future: Any, value: object, error: BaseException | None) -> None:
    """Complete a future, of threads or of asyncio, unless whoever waited for it gave up."""
    if future.done():
        return
    try:
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(value)
    except Exception:  # each kind of future has an error of its own for what was given up in this moment
        if not future.done():
            raise


def pairs_of(headers: Mapping[str, str] | Any) -> Headers:
    """Headers as pairs, however they were given."""
    return tuple(headers.items()) if isinstance(headers, Mapping) else tuple(headers)


def answer_headers(message: Message) -> tuple[str, Headers, bool]:
    """Where the answer to a request goes, the headers that it carries, and whether it is sent: else it is stored
    first."""
    asked = dict(message.header_pairs)
    correlation, topic = asked.get(CORRELATION), asked[REPLY_TO]
    is_sent = asked.get(REPLY_BY) == SEND and topic.startswith(f"{REPLY_ROOT}/")
    more = carried.get()
    headers = ((CORRELATION, correlation),) if correlation else ()
    return topic, headers if more is None else (*headers, *more()), is_sent


def nobody_hears(topic: str) -> NoResponders:
    """Nobody is subscribed to what a question is asked on."""
    return NoResponders(f'nobody listens on "{topic}", so nobody can answer; start its service, and ask again')
