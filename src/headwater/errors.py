"""Every error that Headwater raises, as one tree.

HeadwaterError
├── Malformed      422  a name, filter, option or file that cannot be right
│   ├── NewerFormat     the folder was written by a newer Headwater
│   └── SchemaMismatch  a payload is not what the schema of its topic says
├── Unauthenticated 401  who it is was not shown: a wrong name, secret or server
├── NotAllowed     403  no rule grants it
├── NotFound       404  no such subscription, dead letter, folder
├── Conflict       409  it contradicts what is there
│   ├── Recalled        the message was taken back from this consumer
│   ├── SecretMissing   a stored secret cannot be opened without its key: it has to be given again
│   └── Owned           another process owns the folder
├── PartlyStored   409  of messages that were published together some roots' were stored, and others' refused
├── Gap            410  messages that a reader was to get are gone
├── TooLarge       413  a message or batch over its limit
├── QuotaExceeded  429  one more than a limit allows
├── Failed         500  storage failed; what was asked did not happen
│   └── Damaged         what was stored went bad
├── Incompatible   502  client and server are of different versions
├── Closed         503  the bus or subscription is closed
├── Disconnected   503  no server answers, or the connection to it was lost
├── NoResponders   503  nobody listens where a question was asked
├── DiskFull       503  too little room left to accept messages
├── TooManyFiles   503  the process may open no more files
├── ReadOnly       503  opened to read, or turned read-only by a failed sync
│   └── Unwritable      the state takes nothing at the moment; it is tried again by itself
│       └── Unavailable     the cluster stores nothing at the moment: its engine does not answer, or nobody leads
│           └── SteppedDown     this node leads no more; what was under way may be stored or not
└── TimedOut       504  no answer within the time given

Each has a numeric `code`, a sentence that says what to do, and `retryable`: whether the same call may succeed later.

`Reject` and `Retry` are none of them: handlers raise these, to say what is to become of their message.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headwater.receipt import Receipt

READ_ON = 'read on to continue after them, or subscribe with on_gap="skip" to pass over such gaps'


class HeadwaterError(Exception):
    """Base of everything that Headwater raises on purpose."""

    code: int = 500
    retryable: bool = False

    def __init_subclass__(cls, code: int | None = None, retryable: bool | None = None) -> None:
        """What a class does not state is as in the one above it."""
        cls.code = cls.code if code is None else code
        cls.retryable = cls.retryable if retryable is None else retryable

    def __str__(self) -> str:
        return f"{type(self).__name__}({self.code}): {self.args[0] if self.args else ''}"


class Malformed(HeadwaterError, code=422):
    """A name, filter, option or file that cannot be right."""


class NewerFormat(Malformed):
    """The folder was written by a newer Headwater."""


class SchemaMismatch(Malformed):
    """A payload is not what the schema of its topic says."""


class Unauthenticated(HeadwaterError, code=401):
    """Who it is was not shown: a wrong name, secret or server."""


class NotAllowed(HeadwaterError, code=403):
    """No rule grants it."""


class NotFound(HeadwaterError, code=404):
    """No such subscription, dead letter or folder."""


class Conflict(HeadwaterError, code=409):
    """It contradicts what is already there."""


class Recalled(Conflict):
    """The message was taken back from this consumer and will be, or was, handed out again."""


class SecretMissing(Conflict):
    """A stored secret cannot be opened, as its key is not there: it has to be given again."""


class Owned(Conflict, retryable=True):
    """Another process owns the folder."""


class PartlyStored(HeadwaterError, code=409):
    """Of messages that were published together, those of some roots were stored, and those of others were refused.

    `receipts` has the receipt of each message in the order of the call, None where it was not stored; `refused` has the
    error of each root that refused its messages. The same call may be made again, if the errors say so, only where a
    producer and a sequence tell the messages that were stored; else publish those that have no receipt.
    """

    def __init__(
        self,
        text: str,
        receipts: Sequence[Receipt | None] = (),
        refused: Mapping[str, HeadwaterError] | None = None,
        retryable: bool = False,
    ) -> None:
        super().__init__(text)
        self.receipts = list(receipts)
        self.refused = dict(refused or {})
        self.retryable = retryable

    def __reduce__(self) -> tuple[object, ...]:
        return PartlyStored, (self.args[0], self.receipts, self.refused, self.retryable)


class Gap(HeadwaterError, code=410):
    """Messages that a reader was to get are gone; the next read goes on after them."""

    def __init__(self, root: str, first: int, last: int, reason: str, advice: str = READ_ON) -> None:
        super().__init__(f'messages {first} to {last} of "{root}" are gone ({reason}); {advice}')
        self.root = root
        self.first = first
        self.last = last
        self.reason = reason
        self.advice = advice

    def __reduce__(self) -> tuple[type[Gap], tuple[str, int, int, str, str]]:
        return Gap, (self.root, self.first, self.last, self.reason, self.advice)


class TooLarge(HeadwaterError, code=413):
    """A message or batch over its limit."""


class QuotaExceeded(HeadwaterError, code=429, retryable=True):
    """One more than a limit allows."""


class Failed(HeadwaterError, code=500):
    """Storage failed; what was asked did not happen."""


class Damaged(Failed):
    """What was stored went bad, and cannot be used as it is."""


class Incompatible(HeadwaterError, code=502):
    """Client and server are of different versions, and what one answered the other cannot read."""


class Closed(HeadwaterError, code=503):
    """The bus or the subscription is closed."""


class Disconnected(HeadwaterError, code=503, retryable=True):
    """No server answers, or the connection to it was lost."""


class NoResponders(HeadwaterError, code=503, retryable=True):
    """Nobody listens where a question was asked."""


class DiskFull(HeadwaterError, code=503, retryable=True):
    """Too little room is left to accept messages."""


class TooManyFiles(HeadwaterError, code=503, retryable=True):
    """The process, or the machine, may open no more files."""


class ReadOnly(HeadwaterError, code=503):
    """Opened to read, or turned read-only by a failed sync."""


class Unwritable(ReadOnly, retryable=True):
    """The state takes nothing at the moment, as its disk failed; it is tried again by itself."""


class Unavailable(Unwritable):
    """The cluster stores nothing at the moment: its engine does not answer, or no node leads."""


class SteppedDown(Unavailable):
    """This node leads the cluster no more: what it was about to store may be stored or not."""


class TimedOut(HeadwaterError, code=504, retryable=True):
    """No answer within the time given."""


class Reject(Exception):
    """Raised by a handler, or within `with message:`: it will never succeed, and is a dead letter now."""


class Retry(Exception):
    """Raised by a handler, or within `with message:`: try it again, after so many seconds or a growing delay."""

    def __init__(self, why: str = "", *, after_s: float | None = None) -> None:
        super().__init__(why)
        given: object = after_s
        if given is not None and not (isinstance(given, int | float) and 0 <= given < float("inf")):
            raise Malformed(f"after_s is {after_s!r}; use seconds from 0, or None for a growing delay")
        self.after_s = after_s
