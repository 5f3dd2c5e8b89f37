"""Headwater: a publish/subscribe broker whose topics are also tables.

    bus = headwater.open("var/data")
    bus.publish("home/kitchen/temp", b"21.5")

Everything a user needs is named here; everything else may change.
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any, Unpack

from headwater.clock import ManualClock
from headwater.config import Config, Connecting, Retention
from headwater.errors import (
    Closed,
    Conflict,
    Damaged,
    Disconnected,
    DiskFull,
    Failed,
    Gap,
    HeadwaterError,
    Incompatible,
    Malformed,
    NewerFormat,
    NoResponders,
    NotAllowed,
    NotFound,
    Owned,
    PartlyStored,
    QuotaExceeded,
    ReadOnly,
    Recalled,
    Reject,
    Retry,
    SchemaMismatch,
    SecretMissing,
    SteppedDown,
    TimedOut,
    TooLarge,
    TooManyFiles,
    Unauthenticated,
    Unavailable,
    Unwritable,
)
from headwater.message import (
    ConsumerInfo,
    DeadLetter,
    Message,
    Outgoing,
    Receipt,
    ScheduleInfo,
    SchemaInfo,
    StateInfo,
    SubscriptionInfo,
    TopicInfo,
)
from headwater.version import __version__ as __version__

if TYPE_CHECKING:
    from headwater import seal as seal
    from headwater.bus import Bus as EmbeddedBus
    from headwater.bus import restore as restore
    from headwater.client.bus import Bus as ServedBus
    from headwater.client.receiver import Receiver
    from headwater.client.url import Token
    from headwater.clock import Clock
    from headwater.core import Doors
    from headwater.delivery.options import OnResume
    from headwater.headers import HeaderMap as HeaderMap
    from headwater.receipt import Receipts as Receipts
    from headwater.surface import Bus as Bus
    from headwater.surface import Consumer as Consumer
    from headwater.surface import Live as Live
    from headwater.surface import Reading as Reading
    from headwater.values import Retained as Retained


SHAPES = {
    **dict.fromkeys(("Bus", "Consumer", "Live", "Reading"), "surface"),
    "HeaderMap": "headers",
    "Receipts": "receipt",
    "Retained": "values",
}
"""What the types of a user's program are called, and where they are."""

__all__ = [
    "Bus",
    "Closed",
    "Config",
    "Conflict",
    "Connecting",
    "Consumer",
    "ConsumerInfo",
    "Damaged",
    "DeadLetter",
    "Disconnected",
    "DiskFull",
    "Failed",
    "Gap",
    "HeaderMap",
    "HeadwaterError",
    "Incompatible",
    "Live",
    "Malformed",
    "ManualClock",
    "Message",
    "NewerFormat",
    "NoResponders",
    "NotAllowed",
    "NotFound",
    "Outgoing",
    "Owned",
    "PartlyStored",
    "QuotaExceeded",
    "ReadOnly",
    "Reading",
    "Recalled",
    "Receipt",
    "Receipts",
    "Reject",
    "Retained",
    "Retention",
    "Retry",
    "ScheduleInfo",
    "SchemaInfo",
    "SchemaMismatch",
    "SecretMissing",
    "StateInfo",
    "SteppedDown",
    "SubscriptionInfo",
    "TimedOut",
    "TooLarge",
    "TooManyFiles",
    "TopicInfo",
    "Unauthenticated",
    "Unavailable",
    "Unwritable",
    "connect",
    "open",
    "receive",
    "restore",
    "seal",
]


def open(
    folder: str | os.PathLike[str],
    config: Config | None = None,
    *,
    lake: str | os.PathLike[str] | None = None,
    read_only: bool = False,
    clock: Clock | None = None,
    **doors: Unpack[Doors],
) -> EmbeddedBus:
    """A bus on a folder that this process then owns; ":memory:" for one without a disk.

    With lake="var/lake", replay and follow reach back to what was archived there and is in the log no more.
    With read_only=True it may be opened beside its owner, to look at topics, history and subscriptions.
    A clock is for tests: `headwater.ManualClock`, which stands still until it is moved.
    """
    from headwater.bus import Bus

    return Bus(folder, config, lake=lake, read_only=read_only, clock=clock, **doors)


def connect(
    url: str,
    settings: Connecting | None = None,
    *,
    token: Token | None = None,
    session: str | os.PathLike[str] | None = None,
    on_resume: OnResume = "keep",
) -> ServedBus:
    """The bus that a server has, with the names and errors of `open`: "headwater://name:secret@127.0.0.1:7411".

    With token=…, a text or a function that gives a fresh one whenever it connects, by a token of an issuer (JWT).
    With session=…, a file ("var/session") that keeps a session's id, or such an id, this process goes on with what that
    session had and had not acked, and the session stays when it leaves.
    headwaters:// speaks TLS, headwater+unix:///path a Unix socket. A lost connection comes back by itself. Connect in
    the process that uses it: a connection does not survive a fork.
    """
    from headwater.client.bus import Bus as ServedBus

    return ServedBus(url, settings, token=token, session=session, on_resume=on_resume)


def receive(port: int = 9000, host: str = "127.0.0.1", settings: Connecting | None = None) -> Receiver:
    """What tcp channels push to this port: `for message in headwater.receive(port=9000): message.ack()`."""
    from headwater.client.receiver import receive

    return receive(port, host, settings)


def __getattr__(name: str) -> Any:
    """A client needs no store, and who looks at `--help` needs neither: each is loaded when it is asked for."""
    if name in SHAPES:
        return getattr(importlib.import_module(f"headwater.{SHAPES[name]}"), name)
    if name == "restore":
        from headwater import bus

        return bus.restore
    if name == "seal":
        return importlib.import_module("headwater.seal")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
