"""Every operation: what a client may ask for, who may ask, and who does it.

Each row is declared once. Its fields and its answer stand with the request; decoding, the rights that are checked, the
dispatch of the server and what a client sends again after a lost connection are taken from here.
"""

from __future__ import annotations

from enum import Enum, Flag, auto
from functools import reduce
from operator import or_
from types import NoneType
from typing import Any, NamedTuple, get_args

import msgspec

from headwater.errors import Malformed, TooLarge
from headwater.wire import administration as admin
from headwater.wire import requests
from headwater.wire.batches import check_count
from headwater.wire.frame import Frame
from headwater.wire.request import Change, Request
from headwater.wire.requests import UNREADABLE, cut, decode

REQUEST_BYTES_MAX = 1024 * 1024
"""A longer request: TooLarge (413). What is decoded takes up to 30 times the bytes that it came in."""


class Right(Enum):
    """Who may ask."""

    SESSION = "whoever has this session: it is about what the session has"
    PUBLISH = "who may publish to its topics"
    SUBSCRIBE = "who may subscribe to its filter"
    LOOK_AFTER = "who may look after the subscription of its id"
    REDRIVE = "the same, with the right to publish to the topics of its letters; and administrators"
    OWN = "everybody: it is about what the same user has staged or scheduled, or, of schedules, for administrators"
    SEEN = "everybody: what the user may not see is left out of the answer"
    ADMIN = "administrators"


class Trait(Flag):
    """What else there is to know of an operation."""

    NONE = 0
    AGAIN = auto()
    """It may be sent again after a lost connection: it changes nothing, or nothing more when it comes twice."""
    LONG = auto()
    """It takes as long as there is to do, and is given up with the connection alone."""
    CARRIES = auto()
    """It brings messages, so it may be as long as a frame: most of it stays bytes."""
    PROBE = auto()
    """It is answered at once, whatever else its session has asked for."""
    READS = auto()
    """It may be asked on a connection that only reads."""
    NAMES = auto()
    """It may look up a name, for which nobody waits who has not asked for it."""


class Operation(NamedTuple):
    """Something that a client may ask for."""

    request: type[Request[Any]]
    right: Right
    verb: str
    """What does it. Of `session`, `answers`, `subscriptions` and `presence` a method that is given the session and the
    request, and gives the work; else what the broker has by this name, which is called with the request's fields."""
    traits: Trait = Trait.NONE
    what: str = ""
    """With ADMIN: what others may not do, as they are told; the request's fields may stand in it."""

    @property
    def answer(self) -> Any:
        """The type of what it is answered with; None for nothing."""
        (answer,) = get_args(self.request.__orig_bases__[0])  # type: ignore[attr-defined]  # of every generic class
        return None if answer is NoneType else answer

    @property
    def fields(self) -> tuple[str, ...]:
        """What the request says, besides who wanted it."""
        return tuple(name for name in self.request.__struct_fields__ if name not in Change.__struct_fields__)


SESSION, PUBLISH, SUBSCRIBE, LOOK_AFTER = Right.SESSION, Right.PUBLISH, Right.SUBSCRIBE, Right.LOOK_AFTER
REDRIVE = Right.REDRIVE
OWN, SEEN, ADMIN = Right.OWN, Right.SEEN, Right.ADMIN
NONE, AGAIN, LONG, CARRIES = Trait.NONE, Trait.AGAIN, Trait.LONG, Trait.CARRIES
PROBE, NAMES, READS = Trait.PROBE, Trait.NAMES, Trait.READS
CHANNELS, TOKENS, ACCESS = "look after channels", "look after tokens", "look after clients and rules"
SCHEMAS = "look after schemas"
WATCH = "see how the server is doing"

OPERATIONS: dict[type[Request[Any]], Operation] = {
    row.request: row
    for row in (
        Operation(requests.Register, SESSION, "session.register", READS),
        Operation(requests.Subscribe, SUBSCRIBE, "session.subscribe", AGAIN | READS),
        Operation(requests.Leave, SESSION, "session.leave", READS),
        Operation(requests.Unsubscribe, LOOK_AFTER, "session.unsubscribe", AGAIN),
        Operation(requests.SubscribeTo, SUBSCRIBE, "pushing.subscribe_to", NAMES),
        Operation(requests.Nack, SESSION, "session.nack"),
        Operation(requests.Reject, SESSION, "session.reject"),
        Operation(requests.Extend, SESSION, "session.extend"),
        Operation(requests.Seek, SESSION, "session.seek"),
        Operation(requests.Pause, SESSION, "session.pause", AGAIN),
        Operation(requests.Delay, PUBLISH, "answers.delay", CARRIES),
        Operation(requests.Schedule, PUBLISH, "answers.schedule", AGAIN),
        Operation(requests.Schedules, OWN, "answers.schedules", AGAIN),
        Operation(requests.Unschedule, OWN, "answers.unschedule"),
        Operation(requests.Stage, PUBLISH, "answers.stage", AGAIN | CARRIES),
        Operation(requests.CommitStage, OWN, "answers.commit_stage", AGAIN | LONG),
        Operation(requests.DropStage, OWN, "answers.drop_stage", AGAIN),
        Operation(requests.Topics, SEEN, "answers.topics", AGAIN | READS),
        Operation(requests.Retained, SUBSCRIBE, "answers.retained", AGAIN | READS),
        Operation(requests.Subscriptions, SEEN, "answers.list_subscriptions", AGAIN),
        Operation(requests.States, LOOK_AFTER, "answers.states", AGAIN),
        Operation(requests.Ends, SEEN, "answers.ends", AGAIN | READS),
        Operation(requests.Extents, SUBSCRIBE, "answers.extents", AGAIN | READS),
        Operation(requests.Count, SUBSCRIBE, "answers.count", AGAIN | READS),
        Operation(requests.Events, ADMIN, "core.events.all", AGAIN, "read events"),
        Operation(requests.DeadLetters, LOOK_AFTER, "answers.dead_letters", AGAIN),
        Operation(requests.Redrive, REDRIVE, "answers.redrive", LONG),
        Operation(requests.Mend, REDRIVE, "answers.mend", AGAIN | CARRIES),
        Operation(requests.RedriveMended, REDRIVE, "answers.redrive_mended", AGAIN | LONG),
        Operation(requests.DropMended, LOOK_AFTER, "answers.drop_mended", AGAIN),
        Operation(requests.DropDeadLetters, LOOK_AFTER, "core.dead_letters.drop", LONG),
        Operation(requests.Purge, ADMIN, "core.upkeep.purge", LONG, 'purge "{0.filter}"'),
        Operation(requests.Purges, SUBSCRIBE, "core.purges_after", AGAIN | READS),
        Operation(requests.Erase, ADMIN, "core.erasure.erase", LONG, 'erase messages of a key in "{0.filter}"'),
        Operation(requests.RemoveRoot, ADMIN, "core.upkeep.remove_root", LONG, 'remove root "{0.name}"'),
        Operation(requests.Backup, ADMIN, "core.backup", LONG, "back up the data"),
        Operation(requests.MarkArchived, ADMIN, "core.mark_archived", AGAIN, "say what is archived"),
        Operation(admin.AddClient, ADMIN, "clients.add", NONE, ACCESS),
        Operation(admin.RotateClient, ADMIN, "clients.rotate", NONE, ACCESS),
        Operation(admin.RemoveClient, ADMIN, "clients.remove", NONE, ACCESS),
        Operation(admin.ListClients, ADMIN, "clients.page", AGAIN, ACCESS),
        Operation(admin.ChangeRule, ADMIN, "answers.change_rule", AGAIN, ACCESS),
        Operation(admin.ListRules, ADMIN, "acl.page", AGAIN, ACCESS),
        Operation(admin.SetSchema, ADMIN, "core.schemas.add", AGAIN | LONG, SCHEMAS),
        Operation(admin.RemoveSchema, ADMIN, "core.schemas.remove", NONE, SCHEMAS),
        Operation(admin.ListSchemas, SEEN, "answers.list_schemas", AGAIN | READS),
        Operation(admin.AddToken, ADMIN, "tokens.add", NONE, TOKENS),
        Operation(admin.RemoveToken, ADMIN, "tokens.remove", NONE, TOKENS),
        Operation(admin.ListTokens, ADMIN, "tokens.page", AGAIN, TOKENS),
        Operation(admin.CheckToken, ADMIN, "check_token", AGAIN | PROBE, TOKENS),
        Operation(admin.ListSessions, SEEN, "presence.list", AGAIN),
        Operation(admin.EndSession, ADMIN, "presence.end", NONE, "end sessions"),
        Operation(admin.CreateSubscription, SUBSCRIBE, "subscriptions.create"),
        Operation(admin.ShowSubscription, LOOK_AFTER, "subscriptions.show", AGAIN),
        Operation(admin.SeekSubscription, LOOK_AFTER, "subscriptions.seek", AGAIN),
        Operation(admin.PauseSubscription, LOOK_AFTER, "subscriptions.pause", AGAIN),
        Operation(admin.DeleteSubscription, LOOK_AFTER, "core.durables.delete"),
        Operation(admin.AddChannels, ADMIN, "pushing.add_channels", NAMES, CHANNELS),
        Operation(admin.ChangeChannel, ADMIN, "channels.change", AGAIN | NAMES, CHANNELS),
        Operation(admin.RemoveChannel, ADMIN, "channels.remove", NONE, CHANNELS),
        Operation(admin.ListChannels, ADMIN, "channels.page", AGAIN, CHANNELS),
        Operation(admin.TryChannel, ADMIN, "pushing.try_channel", AGAIN | LONG, CHANNELS),
        Operation(admin.ListLevels, SEEN, "answers.list_levels", AGAIN),
        Operation(admin.Metrics, ADMIN, "overview.figures", AGAIN, WATCH),
        Operation(admin.ReadHistory, ADMIN, "overview.history.read", AGAIN, WATCH),
        Operation(admin.CheckHealth, ADMIN, "overview.health", AGAIN | PROBE, WATCH),
        Operation(admin.ListSettings, ADMIN, "overview.settings", AGAIN, WATCH),
        Operation(admin.ShowCluster, ADMIN, "overview.cluster", AGAIN | PROBE, WATCH),
        Operation(admin.ListJobs, ADMIN, "overview.list_jobs", AGAIN, WATCH),
        Operation(admin.ListPipelines, ADMIN, "overview.pipelines", AGAIN, WATCH),
    )
}
REPLIES: dict[type[Request[Any]], Any] = {request: operation.answer for request, operation in OPERATIONS.items()}
_CARRIERS = frozenset(one.request.__name__ for one in OPERATIONS.values() if CARRIES in one.traits)
_decoder: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(reduce(or_, OPERATIONS))


class _Named(msgspec.Struct):
    """A request of which nothing but its name is decoded."""

    do: str


def read_request(frame: Frame) -> Request[Any]:
    """What a REQUEST frame asks for."""
    size = len(frame.payload)
    if size > REQUEST_BYTES_MAX and decode(frame.payload, _Named).do not in _CARRIERS:
        raise TooLarge(f"a request of {size} bytes is over the limit of {REQUEST_BYTES_MAX}; ask in several")
    try:
        request: Request[Any] = _decoder.decode(frame.payload)
    except UNREADABLE as error:
        raise Malformed(f"a request cannot be read: {cut(error)}") from None
    if type(request) is requests.Stage:
        check_count(request.count, request.body)
    return request
