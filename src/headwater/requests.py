"""Request and reply: an answer comes back on a reply topic, found by its correlation id."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from concurrent.futures import Future
from typing import ClassVar

from headwater import threads
from headwater.errors import Closed, QuotaExceeded
from headwater.log.root import Root
from headwater.message import REPLY_TO, Headers, Message
from headwater.store.batch import Batch

REPLY_ROOT = "$reply"
CORRELATION = "correlation-id"


class Replies:
    """Listens on the bus's reply topic for those who wait for an answer."""

    wants_places: ClassVar[bool] = True

    def __init__(self, name: str, waiting_max: int) -> None:
        self._waiting_max = waiting_max
        self.topic = f"{REPLY_ROOT}/{name}"
        self._waiting: dict[str, Future[Message]] = {}
        self._lock = threads.Lock()
        self.is_listening = False

    def expect(self) -> tuple[Headers, Future[Message]]:
        """Headers of a request, and what its answer will complete."""
        correlation = secrets.token_hex(8)
        answer: Future[Message] = Future()
        with self._lock:
            if len(self._waiting) >= self._waiting_max:
                raise QuotaExceeded(f"{len(self._waiting)} requests wait for answers, as many as requests_max allows")
            self._waiting[correlation] = answer
        return ((REPLY_TO, self.topic), (CORRELATION, correlation)), answer

    def forget(self, headers: Headers) -> None:
        """Nobody waits for this answer any more."""
        with self._lock:
            self._waiting.pop(dict(headers)[CORRELATION], None)

    def end(self) -> None:
        """The bus closes: nobody will answer any more."""
        with self._lock:
            waiting, self._waiting = self._waiting, {}
        for answer in waiting.values():
            if answer.set_running_or_notify_cancel():
                answer.set_exception(Closed("the bus was closed before an answer came; open it again and ask again"))

    def on_batch(self, root: Root, batch: Batch, places: Sequence[int] | None) -> None:
        """Answers have arrived; from the thread that commits."""
        for message in batch.body.messages(batch.first_offset, places):
            self.answer(message)

    def answer(self, message: Message) -> None:
        """An answer has arrived; one that nobody waits for is passed over."""
        with self._lock:
            answer = self._waiting.pop(dict(message.headers).get(CORRELATION, ""), None)
        if answer is not None and answer.set_running_or_notify_cancel():
            answer.set_result(message)


def answer_headers(message: Message) -> tuple[str, Headers]:
    """Where the answer to a request goes, and the headers that it carries."""
    asked = dict(message.headers)
    correlation = asked.get(CORRELATION)
    return asked[REPLY_TO], ((CORRELATION, correlation),) if correlation else ()
