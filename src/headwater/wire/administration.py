"""Requests of administrators, and what answers them: clients, rules, tokens, sessions, subscriptions,
channels, and how the broker is doing.

Most need the right "admin"; who may subscribe to what a subscription gets may administer it, too.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

import msgspec

from headwater.clock import to_datetime
from headwater.message import SchemaInfo, SubscriptionInfo
from headwater.wire.request import U32, U64, Change, Micros, Option, Options, Request, check_options

PAGE_MAX = 10_000
"""Levels of a topic that are listed at once."""
CHANNELS_MAX = 1_000
"""Channels that one request adds."""

Role = Literal["reader", "operator", "admin"]
"""reader: may read. operator: may publish, and manage what is there. admin: may do everything."""

NodeRole = Literal["joining", "following", "leading", "gone"]
"""joining: has not all that there is yet. gone: has not been heard of for a while."""
FAILOVERS_TOLD = 100

HISTORY_POINTS_MAX = 10_000
Points = Annotated[int, msgspec.Meta(ge=1, le=HISTORY_POINTS_MAX)]
Page = Annotated[int, msgspec.Meta(ge=1, le=PAGE_MAX)]


# Clients and rules


class Registration(msgspec.Struct, frozen=True):
    """A client and its secret, which is shown this once."""

    id: str
    name: str
    secret: str

    def __repr__(self) -> str:
        return f"Registration(id={self.id!r}, name={self.name!r}, …)"  # secrets do not belong in logs


class AddClient(Change[Registration], frozen=True, kw_only=True):
    """Register a client."""

    name: str
    secret: str | None = None


class RotateClient(Change[Registration], frozen=True, kw_only=True):
    """Give a client another secret."""

    name: str
    secret: str | None = None


class RemoveClient(Change[None], frozen=True, kw_only=True):
    """Remove a client: it can log in no more."""

    name: str


class Client(msgspec.Struct, frozen=True):
    """A client as everybody may see it."""

    id: str
    name: str
    created_us: int
    rotated_us: int
    """When its secret was last changed."""

    @property
    def created(self) -> datetime:
        """When it was added."""
        return to_datetime(self.created_us)

    @property
    def rotated(self) -> datetime:
        """When its secret was last changed."""
        return to_datetime(self.rotated_us)


class ListClients(Request[list[Client]], frozen=True, kw_only=True):
    """Every client, by name: a page of them, after a name."""

    after: str | None = None
    limit: U32 | None = None


class ChangeRule(Change[None], frozen=True, kw_only=True):
    """Grant, forbid, or take either back."""

    change: Literal["allow", "deny", "remove"]
    user: str
    action: str
    filter: str


class Rule(msgspec.Struct, frozen=True):
    """A rule as it is listed."""

    user: str
    action: str
    filter: str
    allow: bool


class ListRules(Request[list[Rule]], frozen=True, kw_only=True):
    """Every rule, by user, action and filter: a page of them, after a rule."""

    after: tuple[str, str, str] | None = None
    """Its `user`, `action` and `filter`."""
    limit: U32 | None = None


# Schemas


class SetSchema(Change[SchemaInfo], frozen=True, kw_only=True):
    """Say what the payloads of a filter's topics have to be; in place of what it had."""

    filter: str
    schema: str
    """A JSON Schema."""
    check: Literal["recent", "all", "none"] = "recent"
    """Which stored messages are looked at before."""


class RemoveSchema(Change[None], frozen=True, kw_only=True):
    """Let everything be published to a filter's topics again."""

    filter: str


class ListSchemas(Request[list[SchemaInfo]], frozen=True, kw_only=True):
    """What payloads have to be, by filter: a page of them, after a filter."""

    after: str | None = None
    limit: U32 | None = None


# Tokens, which open the HTTP API


class NewToken(msgspec.Struct, frozen=True, kw_only=True):
    """A token, whose text is shown this once."""

    id: str
    client: str
    role: str
    token: str


class AddToken(Change[NewToken], frozen=True, kw_only=True):
    """A token of a client, which opens the HTTP API as far as its role goes."""

    client: str
    role: Role


class RemoveToken(Change[None], frozen=True, kw_only=True):
    """Let a token open nothing more."""

    id: str


class Token(msgspec.Struct, frozen=True, kw_only=True):
    """A token as it is listed."""

    id: str
    client: str
    role: str
    created_us: int


class ListTokens(Request[list[Token]], frozen=True, kw_only=True):
    """Every token, by client and age: a page of them, after a token."""

    after: tuple[str, int, str] | None = None
    """Its `client`, `created_us` and `id`."""
    limit: U32 | None = None


class CheckToken(Request[Token], frozen=True, kw_only=True):
    """Whose token this is; Unauthenticated (401) if it is none."""

    token: str


# Sessions


class SessionInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A session as it is listed."""

    id: str
    user: str
    address: str
    """Of who is connected; empty if nobody is."""
    connected_us: int
    """Since when; 0 if nobody is connected."""
    expire_after_s: float
    subscriptions: tuple[SessionSubscription, ...] = ()
    waiting_bytes: int = 0
    """Written, and not yet taken by the client."""
    dropped: int = 0
    """Messages that its live subscriptions have lost, as it was too slow."""
    client: str = ""
    """The id that an MQTT client chose, or that of a native one; empty for one that has none."""
    protocol: str = ""
    """What its connection speaks: Headwater, MQTT 5, MQTT 3.1.1 over WebSocket, …; with TLS, it says so. Empty if
    nobody is connected."""
    host: str = ""
    """The name of the client's machine, if it told one,"""
    pid: int = 0
    """and the number of its process there."""
    bytes_in: int = 0
    """Read from its connection since that began,"""
    bytes_out: int = 0
    """and written to it."""


class ListSessions(Request[list[SessionInfo]], frozen=True, kw_only=True):
    """Sessions by id, for others than administrators those of their user: a page, after an id; with an id, that one."""

    id: str | None = None
    after: str | None = None
    limit: U32 | None = None


class SessionSubscription(msgspec.Struct, frozen=True, kw_only=True):
    """What a session subscribes to."""

    kind: str
    filter: str
    id: str | None = None
    """Of a durable one."""


class EndSession(Change[None], frozen=True, kw_only=True):
    """Cut a session's connection, from which it may come back; or end the session, so that it cannot."""

    id: str
    for_good: bool = False


# Subscriptions


class CreateSubscription(Change[None], frozen=True, kw_only=True):
    """A named subscription without a consumer; one of this id that differs: Conflict (409)."""

    id: str
    filter: str
    start: Literal["earliest", "latest"] | U64 = "latest"
    start_us: Micros | None = None
    options: Options = msgspec.field(default_factory=dict)

    def __post_init__(self) -> None:
        check_options(self.options)


class SubscriptionDetail(msgspec.Struct, frozen=True, kw_only=True):
    """A durable subscription, its options, and the sessions that consume it."""

    info: SubscriptionInfo
    options: dict[str, Option]
    sessions: tuple[str, ...] = ()


class ShowSubscription(Request[SubscriptionDetail], frozen=True, kw_only=True):
    """A durable subscription, and its consumers."""

    id: str


class SeekSubscription(Change[None], frozen=True, kw_only=True):
    """Move the cursor of a durable subscription."""

    id: str
    to: Literal["earliest", "latest"] | U64 | dict[str, U64] = "latest"
    """With offsets by root, roots that are not named stay where they are."""
    to_us: Micros | None = None


class PauseSubscription(Change[None], frozen=True, kw_only=True):
    """Pause or resume delivery of a durable subscription."""

    id: str
    paused: bool


class DeleteSubscription(Change[None], frozen=True, kw_only=True):
    """Delete a durable subscription; one with a consumer: Conflict (409), unless forced."""

    id: str
    force: bool = False


# Channels


class ChannelSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a channel is to be."""

    name: str
    filter: str
    destination_host: str
    destination_port: U32
    kind: Literal["tcp", "http"] = "tcp"
    id: str | None = None
    """None: one that is generated."""
    path: str = "/"
    """Of an http channel: where to POST."""
    secret: str | None = None
    """Of an http channel: what its requests are signed with; None: one that is generated."""
    start: Literal["earliest", "latest"] = "latest"
    batch_messages_max: U32 | None = None
    """Messages that are sent at once; None: 100 with http, 1000 with tcp."""
    options: Options = msgspec.field(default_factory=dict)
    """Of its durable subscription."""


class ChannelInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A channel as it is listed."""

    id: str
    name: str
    filter: str
    kind: str
    destination_host: str
    destination_port: int
    path: str
    owner: str
    """The client that subscribed with a destination; empty for one that administrators made."""
    created_us: int
    batch_messages_max: int
    state: str
    """connecting, delivering, idle, failing, paused; stopped where no server runs it"""
    error: str
    """What went wrong the last time, if it has not gone right since."""
    address: str
    """What the host's name was found to be, and is until the channel changes."""
    delivered: int
    """Messages since the server's start."""
    lag: int
    retrying: int
    dead: int
    secret: str | None = None
    """Shown once: in the answer to what made or changed it."""


class AddChannels(Change[list[ChannelInfo]], frozen=True, kw_only=True):
    """Push what filters match to where somebody listens: all of these channels, or none.

    An error about one of several begins with "channel 2 of 3: ".
    """

    channels: Annotated[tuple[ChannelSpec, ...], msgspec.Meta(max_length=CHANNELS_MAX)]
    check: bool = False
    """Only see whether they could be added; the answer is empty."""


class ChangeChannel(Change[ChannelInfo], frozen=True, kw_only=True):
    """Change a channel; what is nil stays. Its cursor stays, whatever changes; a new filter needs a new channel."""

    id: str
    name: str | None = None
    destination_host: str | None = None
    destination_port: U32 | None = None
    path: str | None = None
    secret: str | None = None
    """Empty: one that is generated."""
    batch_messages_max: U32 | None = None
    paused: bool | None = None


class RemoveChannel(Change[None], frozen=True, kw_only=True):
    """Push no more; one that has messages to deliver yet: Conflict (409), unless forced."""

    id: str
    force: bool = False


class ListChannels(Request[list[ChannelInfo]], frozen=True, kw_only=True):
    """Every channel, by id: a page of them, after an id; with an id, that one."""

    id: str | None = None
    after: str | None = None
    limit: U32 | None = None


class ChannelTrial(msgspec.Struct, frozen=True, kw_only=True):
    """How that went."""

    ok: bool
    detail: str
    took_s: float


class TryChannel(Request[ChannelTrial], frozen=True, kw_only=True):
    """Try to reach a channel's destination, without a message of its own."""

    id: str


# How the broker is doing


class Level(msgspec.Struct, frozen=True, kw_only=True):
    """A level of the topic tree."""

    name: str
    path: str
    """The whole topic up to here."""
    topics: int
    """Topics at and below it."""
    messages: int
    """Messages at and below it."""
    is_topic: bool
    """Whether something was published to this very path."""
    last_offset: int = 0
    """Of what was published to this very path."""
    retained: bool = False


class ListLevels(Request[list[Level]], frozen=True, kw_only=True):
    """The levels right below a topic, or the roots; a page of them, in order."""

    parent: str = ""
    after: str | None = None
    """The name after which the page begins; nil: with the first."""
    limit: Page = 1000


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of the broker; counters count from its start."""

    time_us: int
    started_us: int
    counters: dict[str, int]
    gauges: dict[str, float]
    histograms: dict[str, Histogram]
    roots: tuple[RootFigures, ...] = ()
    """The largest, at most `figures_max`; the gauges count all."""
    subscriptions: tuple[SubscriptionFigures, ...] = ()
    """Those furthest behind, at most `figures_max`; the gauges count all."""
    slow: tuple[SlowConsumer, ...] = ()


class Metrics(Request[Figures], frozen=True, kw_only=True):
    """Figures of the broker, as they are now."""


class Histogram(msgspec.Struct, frozen=True, kw_only=True):
    """How often something took how long."""

    bounds_s: tuple[float, ...]
    """The longest of each bucket but the last, which has no bound."""
    counts: tuple[int, ...]
    """Per bucket; one more than there are bounds."""
    sum_s: float


class RootFigures(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of one root."""

    root: str
    first: int
    end: int
    bytes: int
    segments: int
    topics: int


class SubscriptionFigures(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of one durable subscription."""

    id: str
    lag: int
    in_flight: int
    retrying: int
    dead: int
    consumers: int
    is_named: bool = True
    """Rather than a session's own."""


class SlowConsumer(msgspec.Struct, frozen=True, kw_only=True):
    """A session under back-pressure: it reads slower than messages arrive."""

    session: str
    user: str
    waiting_bytes: int
    dropped: int


class HistoryLines(msgspec.Struct, frozen=True, kw_only=True):
    """What was sampled, by interval; one that nobody sampled is left out."""

    every_s: float
    """The length of an interval."""
    lines: tuple[str, ...]
    """What there is of each: rates a second (`in_s`), latencies (`commit_p99_s`), and numbers (`lag`)."""
    times_us: tuple[int, ...]
    """When each began."""
    values: tuple[tuple[float | None, ...], ...]
    """Of each, by line; None for what did not happen."""


class ReadHistory(Request[HistoryLines], frozen=True, kw_only=True):
    """What the server sampled in the last 24 hours: of itself, of a root, or of a durable subscription."""

    kind: Literal["broker", "root", "subscription"] = "broker"
    name: str = ""
    since_us: Micros = 0
    until_us: Micros | None = None
    points: Points = 600
    """Intervals at most; several are put together: the mean of rates, the most of others."""


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """Whether the broker can do its work, and what ails it if not."""

    ok: bool
    checks: tuple[HealthCheck, ...]


class CheckHealth(Request[Health], frozen=True, kw_only=True):
    """Whether the broker can do its work."""


class HealthCheck(msgspec.Struct, frozen=True, kw_only=True):
    """One of the things that must be well."""

    name: str
    """disk, streams, state, …"""
    ok: bool
    detail: str


class NodeStatus(msgspec.Struct, frozen=True, kw_only=True):
    """How one node of a cluster is."""

    name: str
    role: NodeRole
    address: str
    """Where it is found natively, as host:port."""
    record: int
    """The last record that it has applied."""
    lag_records: int
    """Records that it has yet to apply, as far as is known here,"""
    lag_s: float
    """and how long the first of them has been waiting."""
    seen_us: int
    """When it was last heard of."""


class Failover(msgspec.Struct, frozen=True, kw_only=True):
    """That a node began to lead."""

    time_us: int
    epoch: int
    node: str
    took_s: float
    """How long nobody led before; 0 if that is not known."""
    planned: bool = False
    """Whether the one before stepped down."""


class ClusterStatus(msgspec.Struct, frozen=True, kw_only=True):
    """How a cluster is, as one of its nodes sees it."""

    bus: str
    """Its name."""
    node: str
    """Who tells this."""
    role: NodeRole
    leader: str
    """The name of the node that leads; empty if none is known."""
    epoch: int
    """How often one began to lead."""
    record: int
    """The last record that this node has applied."""
    suspended: str = ""
    """Why nothing can be written at the moment; empty if it can."""
    failovers: int = 0
    """Since this process began."""
    records: int = 0
    """Records that this node has written since then,"""
    record_bytes: int = 0
    """and how long they were together."""
    record_bytes_last: int = 0
    nodes: tuple[NodeStatus, ...] = ()
    """Every node that is known, this one included."""
    timeline: tuple[Failover, ...] = ()
    """Who began to lead and when, the oldest first: the last FAILOVERS_TOLD of them."""


class ShowCluster(Request[ClusterStatus | None], frozen=True, kw_only=True):
    """How the cluster is; nothing if the server is in none."""


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """A setting of the server."""

    name: str
    value: Any
    default: Any
    source: str


class ListSettings(Request[list[Setting]], frozen=True, kw_only=True):
    """Every setting of the server."""


class Pipeline(msgspec.Struct, frozen=True, kw_only=True):
    """How far a lake has a root."""

    root: str
    first: int
    """The oldest offset in the hot log."""
    end: int
    """One past the newest."""
    lake: str
    """Its id; empty if there is none."""
    archived: int
    """The last offset that the lake has; 0 if none."""
    lag: int
    """Messages that the lake does not have yet."""


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """A pipeline that the server runs."""

    name: str
    command: str
    """What its settings say."""
    state: str
    """beginning, running, waiting (it failed, and is begun again), or done (it ended by itself)."""
    since_us: int
    """When it came into that state."""
    restarts: int = 0
    """How often it failed."""
    rows: int = 0
    """Rows that it has worked on since it was begun."""
    worked_us: int = 0
    """When it told so last; 0 if it has not."""
    lag: int | None = None
    """Messages that wait for it; nil if it does not tell."""
    error: str = ""
    """What it failed with last."""


class ListJobs(Request[list[Job]], frozen=True, kw_only=True):
    """How the pipelines are that the server runs."""


class ListPipelines(Request[list[Pipeline]], frozen=True, kw_only=True):
    """How far each root is archived."""
