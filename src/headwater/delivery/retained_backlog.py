"""The retained messages that a durable subscription is still to get, of which some are noted at a time.

However many are retained, what is stored of them for one subscription is a row for each stream that says how far it is
(`RetainedRest`), and references to those that come next. Promises: nothing fresh is handed out before them; they are
noted before those that are known run out, and read outside of every lock.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from headwater.delivery import rows as stored
from headwater.delivery.bookkeeping import Books
from headwater.delivery.retained import RETAINED_ROWS
from headwater.delivery.rows import RetainedRef, RetainedRest, Waiting
from headwater.delivery.supply import Supply
from headwater.errors import Failed, Unwritable
from headwater.log.retained import Page
from headwater.log.root import retained_message


class RetainedBacklog:
    """Those of one subscription."""

    __slots__ = ("_books", "_is_noting", "_supply", "rests")

    def __init__(self, books: Books, supply: Supply, rests: dict[int, RetainedRest]) -> None:
        self._books = books
        self._supply = supply
        self.rests = rests
        """By stream, what is still to be noted."""
        self._is_noting = False
        """Whether a thread notes some of them."""

    @property
    def is_low(self) -> bool:
        """Whether some more are to be noted, if there are any, and nobody is at it."""
        return not self._is_noting and self._books.machine.held < RETAINED_ROWS

    def note_some(self) -> bool:
        """Note some more, before those that are known run out; whoever waits is woken. False if there are none, or
        somebody else is at it. This takes its time, and holds nobody up."""
        with self._books.lock:
            if not (self.rests and self.is_low):
                return False
            self._is_noting = True
            stream, rest = next(iter(self.rests.items()))
        try:
            self._note_page(stream, self._supply.read_retained(stream, rest.after))
        except Exception as error:
            if self._books.is_ended:
                return False  # nobody wants them any more
            if not isinstance(error, Failed):
                raise
            raise Unwritable(f"retained messages could not be noted: {error}; it is tried again") from error
        finally:
            self._is_noting = False
        self._books.waiters.wake()
        return True

    def _note_page(self, stream: int, page: Page) -> None:
        books = self._books
        with books.lock:
            books.commit.check()
            rest = self.rests.get(stream)
            if rest is None or books.is_ended:
                return  # its root was removed meanwhile, or nobody is served any more
            meant = [(topic, row) for topic, row in page.found if row.offset <= rest.upto]
            copies: dict[int, Waiting] = {row.offset: RetainedRef(topic, row.key) for topic, row in meant}
            changed = stored.copy_rows(books.number, {stream: copies})
            changed.update(stored.rest_rows(books.number, {stream: rest.behind(page.last)}))
            item = books.commit.enqueue(changed, is_owed=False)
        books.finish(item)
        with books.lock:
            current = self.rests.pop(stream, None)
            if current is None:
                return
            left = current.behind(page.last)
            if left is not None:
                self.rests[stream] = left
            self._supply.keep(stream, (retained_message(row, topic) for topic, row in meant))
            books.machine.add_copies(stream, sorted(copies), stored.copy_keys(copies))

    def want_again(self, ends: Mapping[int, int]) -> None:
        """Have all retained messages come once more, after those that are still to be noted: of each stream, those up
        to an offset."""
        books, known = self._books, self.rests
        with books.lock:
            books.check_open(writes=True)
            rests = {
                stream: msgspec.structs.replace(known[stream], again=end) if stream in known else RetainedRest("", end)
                for stream, end in ends.items()
            }
            known.update(rests)
            item = books.commit.enqueue(stored.rest_rows(books.number, rests))
        books.finish(item)
