"""Every setting of Headwater, its default, its unit, and what happens at the limit.

A name ends in its unit. A limit that a client can reach names the error that it answers with.
"""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING, Annotated, Literal, Unpack

import msgspec

from headwater.errors import Malformed
from headwater.units import number_of, whole

if TYPE_CHECKING:
    from headwater.given import GivenConfig, GivenConnecting, GivenRetention

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB

PER_MESSAGE = msgspec.Meta(extra={"limits": "a message or call"})
PER_ROOT = msgspec.Meta(extra={"limits": "a root"})
PER_SUBSCRIPTION = msgspec.Meta(extra={"limits": "a subscription"})
PER_CONNECTION = msgspec.Meta(extra={"limits": "a connection"})
PER_CLIENT = msgspec.Meta(extra={"limits": "a client"})
PER_ADDRESS = msgspec.Meta(extra={"limits": "an address"})
IN_ALL = msgspec.Meta(extra={"limits": "all"})
SCOPES = (PER_MESSAGE, PER_SUBSCRIPTION, PER_CONNECTION, PER_CLIENT, PER_ADDRESS, PER_ROOT, IN_ALL)
"""Of whom a limit is; docs/operate/access.md has a table of them, which is made from here."""

AUTH_METHODS = ("scram", "certificate", "gatekeeper", "jwt")
"""How a client may show who it is; `auth` names one or several of them, or "none"."""
JWT_ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
"""Signatures of tokens that a public key checks and cannot make: no others may be allowed."""
NODE_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
NATS_URL = re.compile(r"(?:nats|tls)://[^\s,]+")
ADVERTISED = re.compile(r"(?:[^\s:/@\[\]]+|\[[0-9A-Fa-f:.]+\]):\d{1,5}")
PORT_MAX = 65_535
LEASE_S_MIN = 0.5
"""A shorter one would be lost to any pause of a process or a disk."""
LOOPBACK_HOSTS = ("localhost", "127.0.0.1", "::1")

AT_LEAST_ONE = frozenset(
    (
        "bulk_bytes_min",
        "group_bytes_max",
        "group_messages_max",
        "read_bytes",
        "open_files_max",
        "checkpoint_bytes",
        "checkpoint_batches",
        "checkpoint_topics",
        "state_snapshot_every_s",
        "retention_interval_s",
        "prefetch_messages",
        "prefetch_bytes",
        "publish_gather_messages_max",
        "publish_gather_bytes_max",
        "publish_bytes_in_flight_max",
        "jwt_refresh_s",
        "cluster_bytes_max",
    )
)


_fields = cache(msgspec.structs.fields)
"""Of each class, once: to find out their types takes longer than to check them, and each connection of a client has
settings of its own."""


def _check(settings: msgspec.Struct) -> None:
    """Malformed unless each value is of its setting's type, and not negative; sizes and durations may be texts."""
    for field in _fields(type(settings)):
        value = getattr(settings, field.name)
        if isinstance(value, str):
            value = _as_number(settings, field.name, value)
        try:
            msgspec.convert(value, field.type)
        except msgspec.ValidationError as error:
            raise Malformed(f"setting {field.name} is {value!r}: {error}") from None
        if isinstance(value, int | float) and not 0 <= value < float("inf"):
            raise Malformed(f"setting {field.name} is {value}; it has to be 0 or more, and finite")
        if field.name in AT_LEAST_ONE and value < 1:
            raise Malformed(f"setting {field.name} is {value}; use 1 or more")
        if field.name == "retry_jitter" and value > 1:
            raise Malformed(f"setting retry_jitter is {value}; it is a share: use 0 to 1")
        if field.name.startswith("retention") and isinstance(value, dict):
            rules = value.values() if field.name == "retention_roots" else (value,)
            if not all(isinstance(rule, Retention) for rule in rules):
                raise Malformed(f"setting {field.name} is {value!r}; use headwater.Retention(…)")


def _has_port(place: str) -> bool:
    """Whether the port of an address is one, if it names any."""
    _, colon, port = place.rpartition("//")[2].rpartition("@")[2].rstrip("/").rpartition(":")
    if not colon or port.endswith("]"):
        return True
    return port.isdecimal() and 0 < int(port) <= PORT_MAX


def _as_number(settings: msgspec.Struct, name: str, text: str) -> object:
    """What a size or a duration such as "64MiB" or "7d" says, which is then the setting; other texts as they are."""
    try:
        value = whole(number_of(name, text))
    except ValueError:
        return text
    msgspec.structs.force_setattr(settings, name, value)
    return value


class Retention(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How long the stream of a root keeps its messages; zero means no limit."""

    age_s: float = 0.0
    """Segments whose newest message is older are deleted, once every durable subscription has acked them."""
    bytes: int = 0
    """The oldest segments are deleted above this size, once every durable subscription has acked them."""
    hard_bytes: int = 0
    """Above this size the oldest are deleted even if unacked; an event and a typed gap say so."""
    hard_age_s: float = 0.0
    """Beyond this age they are deleted even if unacked; an event and a typed gap say so."""
    lake_age_s: float = 0.0
    """The archive deletes data files of the lake whose newest message is older, with all files before them."""
    lake_bytes: int = 0
    """Above this size of a root in the lake, the archive deletes its oldest data files."""

    if TYPE_CHECKING:

        def __init__(self, **settings: Unpack[GivenRetention]) -> None: ...

    def __post_init__(self) -> None:
        _check(self)


OF_ROOTS = {
    "$dead": Retention(age_s=30 * 86_400.0),
    "$reply": Retention(age_s=3600.0, hard_age_s=86_400.0),
    "$sys": Retention(age_s=30 * 86_400.0),
}
"""Rules of roots that every bus may have, unless the settings have others."""


class Config(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All settings of a bus."""

    # Topics and filters
    topic_bytes_max: Annotated[int, PER_MESSAGE] = 1024
    """Longer topic names and filters: Malformed (422)."""
    topic_levels_max: Annotated[int, PER_MESSAGE] = 32
    """Topics and filters with more levels: Malformed (422)."""
    root_bytes_max: Annotated[int, PER_MESSAGE] = 64
    """A longer first level: Malformed (422); it names a folder on disk."""
    roots_max: Annotated[int, IN_ALL] = 4096
    """A publish that would create one more root: QuotaExceeded (429). A root is a folder of its own, with about 70 KiB
    and some milliseconds at each start; devices by the thousand are better told apart by the second level."""
    roots_per_client_max: Annotated[int, PER_CLIENT] = 1024
    """A publish with which a client of a server would have made one more, of those that are there: QuotaExceeded (429).
    A client is a user; without authentication, an address and a client id."""
    topics_per_root_max: Annotated[int, PER_ROOT] = 1_000_000
    """A publish that would create one more topic: QuotaExceeded (429)."""
    topics_per_client_max: Annotated[int, PER_CLIENT] = 500_000
    """A publish with which a client of a server would have made one more topic of a root: QuotaExceeded (429)."""
    purges_max: Annotated[int, PER_ROOT] = 10_000
    """Purges remembered per root, until retention has deleted what they hide or a wider one covers them; one more:
    QuotaExceeded (429)."""
    match_cache_topics: int = 100_000
    """Topics whose matches are remembered, per root; beyond it the cache starts anew."""
    match_cache_changes: int = 64
    """Wildcard subscribes that a remembered match is checked against before it is looked up again."""

    # Messages
    message_bytes_max: Annotated[int, PER_MESSAGE] = 8 * MIB
    """A larger payload: TooLarge (413)."""
    batch_bytes_max: Annotated[int, PER_MESSAGE] = 64 * MIB
    """A larger `publish_many` to one root: TooLarge (413)."""
    headers_max: Annotated[int, PER_MESSAGE] = 64
    """More headers on a message: Malformed (422)."""
    header_bytes_max: Annotated[int, PER_MESSAGE] = 32 * KIB
    """Header names and values of a message together: TooLarge (413)."""
    key_bytes_max: Annotated[int, PER_MESSAGE] = 1024
    """A longer key: TooLarge (413)."""
    compression: Literal["none", "zstd"] = "none"
    """zstd needs the extra `headwater[zstd]`; batches that do not shrink are stored as they are."""
    compression_bytes_min: int = 1024
    """Smaller bodies are never compressed."""

    # Producers
    producer_window: int = 64
    """Sequences per producer and root whose repeats are answered with the first receipt; older: Conflict (409)."""
    producers_max: Annotated[int, PER_ROOT] = 100_000
    """Producers remembered per root; of who has most of them, the one unused for longest is forgotten first."""
    producers_per_client_max: Annotated[int, PER_CLIENT] = 10_000
    """Of them, those of one client of a server: it forgets the one that it has not used for longest itself."""
    producer_bytes_max: Annotated[int, PER_MESSAGE] = 256
    """A longer producer name: Malformed (422)."""

    # Streams
    segment_bytes: int = 128 * MIB
    """A segment rolls when the next batch would make it larger."""
    preallocate_bytes: int = 16 * MIB
    """The most that a segment is extended ahead; small streams are extended by their own size."""
    journal_bytes: int = 32 * MIB
    """When the journal is this large, the segments are synced and it starts again."""
    bulk_bytes_min: Annotated[int, IN_ALL] = 512 * KIB
    """What is published to one root at once and weighs so much or more is written and synced apart: other roots do not
    wait for it."""
    group_bytes_max: Annotated[int, IN_ALL] = 64 * MIB
    """Bytes that may wait for one commit; a publisher waits its turn beyond it."""
    group_messages_max: Annotated[int, IN_ALL] = 100_000
    """Messages that may wait for one commit; a publisher waits its turn beyond it."""
    tail_bytes: int = 2 * MIB
    """Newest batches of a root that stay in memory for its readers: their bytes, and what is remembered of them once
    they were decoded. Beyond it the older half is dropped, and readers go to the disk; the newest batch stays, though
    it alone may be up to twice as much."""
    tails_bytes: int = 16 * MIB
    """The same over all roots; beyond it they are dropped, and readers go to the disk."""
    page_cache_bytes: int = 32 * MIB
    """Newest bytes of a root that the system's page cache is to keep once they are on disk; what is older is let go,
    and readers go to the disk. With `segment_bytes` or more, the system decides."""
    read_bytes: int = 1 * MIB
    """How much a reader asks of the disk at once."""
    open_files_max: Annotated[int, IN_ALL] = 4096
    """Segment files kept open, and never more than half of what the process may open (`ulimit -n`); the one unused for
    longest is closed first. If more roots than that are written to in turn, files are synced to be closed, and
    publishing to them is slower."""
    checkpoint_bytes: int = 32 * MIB
    """Bytes appended, over all roots, until the state reflects them; what recovery reads at most."""
    checkpoint_batches: int = 20_000
    """Batches appended, over all roots, until the state reflects them."""
    checkpoint_topics: int = 50_000
    """Topics published to, over all roots, until the state reflects them; what recovery notes again at most."""
    state_snapshots_max: Annotated[int, IN_ALL] = 2
    """Snapshots of the state that are kept for `headwater restore --state`; the oldest is dropped first. 0: none is
    taken. Each takes the room of the tables that it does not share with the one before it."""
    state_snapshot_every_s: float = 900.0
    """How long after a snapshot of the state the next is taken, if anything was written meanwhile."""
    disk_free_bytes_min: int = 256 * MIB
    """With less room, publishes get DiskFull (503); acks and recovery use the rest."""
    retention: Retention = Retention()
    """For roots without a rule of their own."""
    retention_roots: dict[str, Retention] = {}
    """Rules by root."""
    retention_interval_s: float = 60.0
    """How often age is looked at; bytes are looked at whenever a segment rolls."""

    # History
    lake: str = ""
    """The lake of this bus, a folder or catalog:NAME: replay and follow read there what retention has deleted."""

    erase_within_s: float = 86_400.0
    """How long after a purge or an erasure the bytes may still be in the lake, where the archive runs at least four
    times as often."""

    # Retained messages
    retained_per_root_max: Annotated[int, PER_ROOT] = 1_000_000
    """A publish that would retain one more topic: QuotaExceeded (429)."""
    retained_bytes_per_root_max: Annotated[int, PER_ROOT] = 1 * GIB
    """A publish with which retained payloads, keys and headers would have more: QuotaExceeded (429)."""

    # Delayed messages
    delayed_max: Annotated[int, IN_ALL] = 1_000_000
    """One more waiting message: QuotaExceeded (429)."""
    delayed_per_client_max: Annotated[int, PER_CLIENT] = 250_000
    """One more waiting message of one client of a server: QuotaExceeded (429)."""
    delay_s_max: Annotated[float, PER_MESSAGE] = 366 * 86_400.0
    """A longer delay: Malformed (422)."""

    # Schedules
    schedules_max: Annotated[int, IN_ALL] = 10_000
    """One more schedule: QuotaExceeded (429)."""
    schedules_per_client_max: Annotated[int, PER_CLIENT] = 1_000
    """One more schedule of one client of a server: QuotaExceeded (429)."""
    schedule_bytes_max: Annotated[int, PER_MESSAGE] = 64 * KIB
    """A schedule whose payload, key and headers have more together: TooLarge (413)."""

    # Schemas
    schemas_max: Annotated[int, IN_ALL] = 1_000
    """One more schema: QuotaExceeded (429)."""
    schema_bytes_max: Annotated[int, PER_MESSAGE] = 64 * KIB
    """A longer schema, as it is given or as it is stored: TooLarge (413)."""
    schema_depth_max: Annotated[int, PER_MESSAGE] = 64
    """A schema that is nested deeper: Malformed (422)."""
    schema_payload_bytes_max: Annotated[int, PER_MESSAGE] = 1 * MIB
    """A longer payload for a topic that has a schema: TooLarge (413); to be checked it is decoded at once."""
    schema_recent_messages: int = 10_000
    """Messages that are looked at when a schema is made with check="recent": so many of the newest, and of the retained
    ones, of all roots together."""

    # Staged messages
    stage_age_s: float = 86_400.0
    """What was staged and not committed by then is dropped."""
    stage_bytes_max: Annotated[int, PER_MESSAGE] = 1 * GIB
    """Bytes staged for one epoch, which its commit holds in memory; a body beyond it: TooLarge (413)."""
    stage_bytes_per_client_max: Annotated[int, PER_CLIENT] = 8 * GIB
    """Bytes that one client of a server has staged and not committed; more: QuotaExceeded (429)."""

    # Subscriptions
    subscriptions_max: Annotated[int, IN_ALL] = 100_000
    """One more durable subscription: QuotaExceeded (429)."""
    subscriptions_per_client_max: Annotated[int, PER_CLIENT] = 25_000
    """One more durable subscription that one client of a server makes: QuotaExceeded (429)."""
    filter_patterns_per_client_max: Annotated[int, PER_CLIENT] = 64
    """Combinations of levels at which filters of one client of a server have their `+`: as many ways does a look-up of
    a topic take for them, at most. A filter with another one: QuotaExceeded (429)."""
    filter_patterns_max: Annotated[int, IN_ALL] = 1024
    """The same for filters of all clients together."""
    subscription_id_bytes_max: Annotated[int, PER_MESSAGE] = 1280
    """A longer id: Malformed (422); that of a session's subscription is the session's and the filter."""
    max_in_flight_max: Annotated[int, PER_SUBSCRIPTION] = 100_000
    """A larger window asked for: Malformed (422)."""
    errors_kept: int = 10
    """Errors stored per failed message, the newest of them."""
    error_bytes_max: Annotated[int, PER_MESSAGE] = 1024
    """Longer error texts are cut."""
    retry_delay_s: float = 1.0
    """Delay before the second attempt; it doubles with each one after."""
    retry_delay_s_max: float = 300.0
    """The longest delay between attempts."""
    retry_jitter: float = 0.2
    """Share of the delay that is drawn at random, so that failures do not come back in step."""
    held_max: Annotated[int, PER_SUBSCRIPTION] = 10_000
    """With order="key": messages read and held back behind failed keys; beyond it reading waits."""
    dead_letters_max: Annotated[int, PER_SUBSCRIPTION] = 100_000
    """Dead letters per subscription; beyond it the oldest is dropped, and an event says so."""
    dead_letters_per_client_max: Annotated[int, PER_CLIENT] = 1_000_000
    """Dead letters of all subscriptions that one client of a server made, those that were redriven and are not done
    included. Beyond it nothing dies: what fails for the last time, or is rejected, is tried again after the longest
    delay, until there is room; an event says so."""
    dead_letter_bytes_per_client_max: Annotated[int, PER_CLIENT] = 8 * GIB
    """The same, in bytes."""
    dead_letter_age_s: float = 7 * 86_400.0
    """How long the dead letters of a session's own subscription are kept when the session is gone; 0: not at all."""
    states: Literal["off", "stream"] = "off"
    """Whether what becomes of messages is told on `$sys/states/<subscription>`, of subscriptions that do not say."""
    states_waiting_max: Annotated[int, IN_ALL] = 100_000
    """Entries, of any number of messages each, that wait to be written there; those beyond it are lost, an entry says
    how many, and an event says so."""
    states_waiting_per_client_max: Annotated[int, PER_CLIENT] = 50_000
    """Of them, those of all subscriptions that one client of a server made; the same."""
    dead_topics: bool = True
    """Whether each dead letter is also published, once, on `$dead/<subscription>`."""
    dead_topics_waiting_max: Annotated[int, IN_ALL] = 100_000
    """Dead letters that wait to be published there, as while the disk is full; those that die beyond it are not
    published, and an event says so."""
    dead_topics_waiting_per_client_max: Annotated[int, PER_CLIENT] = 50_000
    """Of them, those of all subscriptions that one client of a server made; the same."""
    mended_per_client_max: Annotated[int, PER_CLIENT] = 400_000
    """Mended letters of one client of a server that wait to be redriven; more: QuotaExceeded (429)."""
    mended_bytes_per_client_max: Annotated[int, PER_CLIENT] = 8 * GIB
    """The same, in bytes."""

    # Live subscriptions
    live_messages_max: Annotated[int, PER_SUBSCRIPTION] = 100_000
    """Messages buffered for a live subscription; beyond it, its policy decides. Retained messages that come first are
    not buffered, but read as they are taken, and none of them is dropped."""
    live_bytes_max: Annotated[int, PER_SUBSCRIPTION] = 64 * MIB
    """Bytes buffered for a live subscription; beyond it, its policy decides."""

    # Others
    audit_bytes_max: Annotated[int, PER_MESSAGE] = 16 * KIB
    """A longer entry of the audit (`$sys/audit`) is cut; at least 8 KiB."""
    events_kept: int = 1000
    """Newest events that `bus.events()` shows."""
    requests_max: Annotated[int, IN_ALL] = 10_000
    """Requests that wait for an answer; one more: QuotaExceeded (429)."""
    request_timeout_s: float = 5.0
    """How long `request` waits for a reply unless told."""
    sql_memory_bytes: int = 512 * MIB
    """Memory of a query of `bus.sql`, and bytes of its answer; beyond either: TooLarge (413)."""

    if TYPE_CHECKING:

        def __init__(self, **settings: Unpack[GivenConfig[Retention]]) -> None: ...

    def __post_init__(self) -> None:
        _check(self)
        if self.segment_bytes < 64 * KIB:
            raise Malformed(f"setting segment_bytes is {self.segment_bytes}; use at least {64 * KIB}")
        if self.audit_bytes_max < 8 * KIB:
            raise Malformed(f"setting audit_bytes_max is {self.audit_bytes_max}; use at least {8 * KIB}")
        if self.batch_bytes_max > GIB:
            raise Malformed(f"setting batch_bytes_max is {self.batch_bytes_max}; the most that fits is {GIB}")

    def retention_of(self, root: str) -> Retention:
        """The rule that applies to a root. Unless one says otherwise, answers to requests are kept for an hour,
        unacked for a day, and what the broker tells about itself for 30 days."""
        return self.retention_roots.get(root) or OF_ROOTS.get(root, self.retention)


class Serving(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All settings of a server, besides those of its bus."""

    # Where it listens
    host: str = "127.0.0.1"
    """Beyond loopback only with authentication."""
    port: int = 7411
    """0: one that is free."""
    unix_path: str = ""
    """A Unix socket to listen on as well."""
    tls_certificate: str = ""
    """A PEM file; with it and `tls_key` the port speaks TLS."""
    tls_key: str = ""
    """The private key of `tls_certificate`: a PEM file without a passphrase."""
    tls_client_ca: str = ""
    """A PEM file; clients may, and with auth="certificate" alone must, show a certificate of it."""

    # MQTT
    mqtt: bool = True
    """Whether MQTT clients are served, 3.1.1 and 5."""
    mqtt_host: str = ""
    """Empty: that of `host`; with `tls_certificate`, loopback for the port without TLS."""
    mqtt_port: int = 1883
    """0: one that is free."""
    mqtt_tls_port: int = 8883
    """With `tls_certificate`: the port that speaks TLS; 0: one that is free."""
    mqtt_aliases_max: Annotated[int, PER_CONNECTION] = 16
    """Topics that an MQTT 5 client may name by a number; a larger number ends its connection (0x94)."""
    mqtt_client_id_chars_max: Annotated[int, PER_CONNECTION] = 256
    """A longer client id is refused (0x85)."""
    mqtt_receive_max: Annotated[int, PER_CONNECTION] = 1024
    """Messages of QoS 1 and 2 that an MQTT client may have under way; one more ends its connection (0x93)."""
    mqtt_in_flight_max: Annotated[int, PER_CONNECTION] = 65_535
    """Messages of QoS 1 and 2 that are on their way to an MQTT client, which may ask for fewer; others wait."""
    mqtt_wills_max: Annotated[int, IN_ALL] = 100_000
    """Wills that are stored; one more client that brings one is refused (0x97). Each has as much as fits into a CONNECT
    (`hello_bytes_max`),"""
    mqtt_wills_bytes_max: Annotated[int, IN_ALL] = 256 * MIB
    """and all of them this; more: the same."""
    mqtt_keep_alive_s_max: Annotated[int, PER_CONNECTION] = 60
    """The longest that a client of MQTT 5 may be silent, which is told so if it asks for more."""

    refusals_logged_per_minute_max: Annotated[int, PER_CLIENT] = 6
    """Lines in the log about messages of one MQTT client that were not stored; more are counted, and the next tells how
    many."""

    # HTTP: the API, metrics and the dashboard
    http: bool = True
    """Whether a process beside the server serves HTTP; it needs the extra `headwater[server]`."""
    http_host: str = ""
    """Empty: that of `host`. Beyond loopback only with authentication, and then nothing without a token."""
    http_port: int = 7480
    """0: one that is free."""
    http_body_bytes_max: Annotated[int, PER_CONNECTION] = 8 * MIB
    """A longer body of a request: TooLarge (413)."""
    http_body_s: float = 30.0
    """A body that is not whole by then: TimedOut (408)."""
    http_connections_max: Annotated[int, IN_ALL] = 1000
    """One more connection, or request under way, is answered with 503."""
    http_connections_per_address_max: Annotated[int, PER_ADDRESS] = 500
    """One more connection from the same address (of IPv6: from the same network, /64) is answered with 503. Where all
    come through a proxy, raise it to `http_connections_max`."""
    http_followers_max: Annotated[int, IN_ALL] = 100
    """Those who follow messages as server-sent events; one more: QuotaExceeded (429)."""
    http_followers_per_client_max: Annotated[int, PER_CLIENT] = 50
    """The same of one client; one more: QuotaExceeded (429)."""
    http_searches_max: Annotated[int, IN_ALL] = 4
    """Searches that run at a time, of the API and the dashboard; one more: QuotaExceeded (429)."""
    http_searches_per_client_max: Annotated[int, PER_CLIENT] = 2
    """The same of one client; one more: QuotaExceeded (429)."""
    http_queries_max: Annotated[int, IN_ALL] = 2
    """Queries in SQL that run at a time, and one of each client; one more: QuotaExceeded (429)."""
    http_query_s: float = 30.0
    """A query in SQL that takes longer is ended: TimedOut (504)."""
    http_restart_s_max: float = 30.0
    """The longest that a process which keeps failing is left before it is started again."""

    # Pipelines on Spark
    pipelines: dict[str, str] = {}
    """By name, what the server has run: what one would write after `headwater pipeline`."""
    pipelines_restart_s_max: float = 60.0
    """The longest that a pipeline which keeps failing is left before it is begun again."""

    # Who may come in
    auth: str | tuple[str, ...] = "none"
    """none: everybody, on loopback alone. Else one or several of scram, certificate, gatekeeper (a trusted peer states
    the user) and jwt (tokens of an issuer)."""
    gatekeepers: tuple[str, ...] = ()
    """With auth="gatekeeper": common names of the certificates that may state a user; loopback and the Unix socket
    may in any case."""
    scram_iterations: int = 15_000
    """What a guess costs; of secrets that are set from now on."""
    clients_max: Annotated[int, IN_ALL] = 100_000
    """One more client: QuotaExceeded (429)."""
    rules_max: Annotated[int, IN_ALL] = 100_000
    """One more rule: QuotaExceeded (429)."""
    tokens_max: Annotated[int, IN_ALL] = 10_000
    """One more token: QuotaExceeded (429)."""
    topics_created_per_minute_max: Annotated[int, PER_CLIENT] = 10_000
    """Topics that a client may create in a minute: QuotaExceeded (429). A gateway, or Home Assistant, that announces
    all its devices at its first start makes some thousands; one that makes names up takes hours to fill a root."""
    reply_bytes_per_minute_max: Annotated[int, PER_CLIENT] = 32 * MIB
    """Bytes of answers (`$reply/…`) that a client may publish in a minute without a rule: QuotaExceeded (429)."""
    guess_delay_s_max: Annotated[float, PER_ADDRESS] = 10.0
    """The longest that the answer to a wrong secret is held back."""

    # Tokens of an issuer
    jwt_issuer: str = ""
    """With auth="jwt": who issues the tokens, as their claim `iss` says it."""
    jwt_audience: tuple[str, ...] = ()
    """Whom they are for: a token names one of these in its claim `aud`."""
    jwt_keys: str = ""
    """The issuer's public keys, a JWKS: a file, or an https:// URL (http:// on loopback alone)."""
    jwt_algorithms: tuple[str, ...] = ("RS256", "ES256", "EdDSA")
    """Signatures that are taken: RS, PS and ES with 256, 384 or 512, and EdDSA; never none, nor HS, where the key that
    checks could sign."""
    jwt_leeway_s: float = 30.0
    """How far the issuer's clock may be off: a token counts for so long before it begins, and after it has expired."""
    jwt_user_claim: str = "sub"
    """The claim that has the user's name."""
    jwt_rules_claim: str = "headwater"
    """The claim with what its user may do besides what rules allow; empty: tokens grant nothing."""
    jwt_refresh_s: float = 300.0
    """How often the keys are fetched anew; a fetch that fails keeps those that are there."""
    jwt_refresh_s_min: float = 10.0
    """A token of an unknown key has them fetched at once, but never sooner after the last time than this."""
    jwt_fetch_s: float = 5.0
    """A fetch that takes longer has failed."""

    # Connections
    connections_max: Annotated[int, IN_ALL] = 10_000
    """One more connection is refused (429)."""
    connections_per_address_max: Annotated[int, PER_ADDRESS] = 10_000
    """One more connection from the same address is refused (429)."""
    handshakes_max: Annotated[int, IN_ALL] = 1000
    """Connections that have not registered yet, TLS that is not through included; one more is refused (429). One with
    TLS counts as two, as it takes as much more memory."""
    handshakes_per_address_max: Annotated[int, PER_ADDRESS] = 500
    """The same from one address (of IPv6: from one network, /64), so that nobody has all of them; one more is refused
    (429). Clients behind one NAT, or one proxy, share it: where all come through a proxy, raise it to
    `handshakes_max`."""
    proofs_waiting_max: Annotated[int, IN_ALL] = 1000
    """Passwords (MQTT) that wait to be checked; one more is refused (429)."""
    handshake_s: float = 10.0
    """A connection that has not registered by then is closed (504)."""
    hello_bytes_max: Annotated[int, PER_CONNECTION] = 16 * KIB
    """A longer frame before the handshake is through: TooLarge (413)."""
    keepalive_s: float = 30.0
    """With nothing heard for so long PING is sent; with nothing for twice as long the connection is closed."""
    frame_s: float = 30.0
    """A frame, or packet, that has begun has so long to end, and what comes of it gives it a second back for each 64
    KiB: one that stands still for so long, or is slower, is refused, Malformed (422)."""
    write_bytes_max: Annotated[int, PER_CONNECTION] = 8 * MIB
    """Bytes that wait for a slow reader; beyond it nothing more is taken for it from its subscriptions."""
    write_stalled_s: float = 60.0
    """A reader that takes nothing at all for so long, while bytes wait for it, is closed (504)."""
    linger_s: float = 5.0
    """How long a connection that is closed may take to receive what was written before; then it is cut."""
    publishes_in_flight_max: Annotated[int, PER_CONNECTION] = 64
    """Publishes of a connection that are not on disk yet; beyond it nothing more is read from it."""
    publish_bytes_in_flight_max: Annotated[int, PER_CONNECTION] = 32 * MIB
    """The same, in bytes."""
    unanswered_bytes_per_client_max: Annotated[int, PER_CLIENT] = 256 * MIB
    """Bytes that all connections of one client make the server hold: of frames that have begun, requests that are not
    answered and publishes that are not on disk; at least one frame of `batch_bytes_max`. While some of it is on its way
    to be answered, nothing more is read beyond it; where it is all of frames that do not end, the connection that
    brings more is closed: QuotaExceeded (429)."""
    attention_us: int = 100
    """How long the server looks for the next message before it sleeps, where looking pays; 0: it sleeps at once."""
    requests_in_flight_max: Annotated[int, PER_CONNECTION] = 256
    """Requests of a connection that are not answered yet; beyond it nothing more is read from it."""

    # Sessions
    sessions_max: Annotated[int, IN_ALL] = 100_000
    """One more session: QuotaExceeded (429)."""
    sessions_per_client_max: Annotated[int, PER_CLIENT] = 10_000
    """One more session of the same client: QuotaExceeded (429)."""
    session_expire_after_s: float = 300.0
    """How long a session is kept once its connection is gone, unless the client says otherwise."""
    session_expire_after_s_max: Annotated[float, PER_CONNECTION] = 7 * 86_400.0
    """The longest that a client may ask for; more is cut to it."""
    subscriptions_per_session_max: Annotated[int, PER_CONNECTION] = 20_000
    """One more subscription in a session: QuotaExceeded (429)."""
    credit_messages_max: Annotated[int, PER_CONNECTION] = 1_000_000
    """Messages that a subscription may be sent ahead; more credit is cut to it."""
    credit_bytes_max: Annotated[int, PER_CONNECTION] = 256 * MIB
    """The same, in bytes."""
    drain_s: float = 10.0
    """At its end the server waits so long, at most, for what is under way."""

    # Channels
    channel_hosts: tuple[str, ...] = ("127.0.0.0/8", "::1")
    """Networks, addresses and names that channels may push to; any other destination: NotAllowed (403)."""
    channels_max: Annotated[int, IN_ALL] = 1000
    """One more channel: QuotaExceeded (429)."""
    channels_per_client_max: Annotated[int, PER_CLIENT] = 100
    """One more channel that a client subscribes with: QuotaExceeded (429)."""
    channel_connect_s: float = 10.0
    """A destination that has not taken a connection, and greeted, by then counts as down."""
    channel_retry_s: float = 0.5
    """Delay before the second try to reach a destination that is down; it doubles with each one after."""
    channel_retry_s_max: float = 60.0
    """The longest delay between tries."""
    channel_batch_bytes_max: Annotated[int, PER_MESSAGE] = 1 * MIB
    """Bytes of messages in one POST; a larger message goes alone."""
    channel_answer_bytes_max: Annotated[int, PER_CONNECTION] = 64 * KIB
    """A longer answer to a POST: the connection is closed, and only its status counts."""

    # How it is doing
    figures_max: Annotated[int, IN_ALL] = 100
    """Roots and subscriptions whose own figures are told, the largest and those furthest behind; sums count all."""
    history_series_max: Annotated[int, IN_ALL] = 200
    """Roots, and as many durable subscriptions, of which the last 24 hours are kept: the largest, and those furthest
    behind. Another takes the place of one that had nothing to tell for an hour; 0: the broker's own alone."""
    sys_every_s: float = 10.0
    """How often figures are published on `$sys/…`; 0: never."""
    loop_lag_s_max: float = 1.0
    """If the event loop was held up for longer in the last seconds, the server says that it is not well."""

    # Actors
    mailbox_max: Annotated[int, PER_CONNECTION] = 10_000
    """Messages that wait for one actor; one more: QuotaExceeded (429), and what comes from a connection waits."""
    call_s: float = 5.0
    """How long one actor waits for another's answer: TimedOut (504)."""

    def __post_init__(self) -> None:
        _check(self)
        if bool(self.tls_certificate) != bool(self.tls_key):
            raise Malformed("settings tls_certificate and tls_key go together; give both, or neither")
        methods = self.methods
        if "certificate" in methods and not self.tls_client_ca:
            raise Malformed(
                'setting auth has "certificate"; give tls_client_ca, the authority whose clients may come in'
            )
        if "jwt" in methods:
            self._check_jwt()
        if not 4096 <= self.scram_iterations <= 1_000_000:
            raise Malformed(f"setting scram_iterations is {self.scram_iterations}; use 4096 to 1000000")
        if not 0 <= self.port < 65_536:
            raise Malformed(f"setting port is {self.port}; use 1 to 65535, or 0 for one that is free")
        if not 0 <= self.mqtt_aliases_max < 65_536:
            raise Malformed(f"setting mqtt_aliases_max is {self.mqtt_aliases_max}; use 0 to 65535")
        if not 1 <= self.mqtt_receive_max <= 1024:
            raise Malformed(f"setting mqtt_receive_max is {self.mqtt_receive_max}; use 1 to 1024")
        for name in ("mqtt_in_flight_max", "mqtt_keep_alive_s_max"):
            if not 1 <= getattr(self, name) < 65_536:
                raise Malformed(f"setting {name} is {getattr(self, name)}; use 1 to 65535")
        for name in ("mqtt_port", "mqtt_tls_port", "http_port"):
            if not 0 <= getattr(self, name) < 65_536:
                raise Malformed(f"setting {name} is {getattr(self, name)}; use 1 to 65535, or 0 for one that is free")

    @property
    def methods(self) -> tuple[str, ...]:
        """The methods that `auth` names, in the order of the code; none of them: everybody is let in."""
        named = self.auth.split(",") if isinstance(self.auth, str) else self.auth
        found = {name.strip() for name in named}
        wrong = found - {"none", *AUTH_METHODS}
        if wrong or not found:
            choices = ", ".join(f'"{name}"' for name in ("none", *AUTH_METHODS))
            raise Malformed(f'setting auth is {self.auth!r}; use {choices}; several are written "scram,jwt"')
        if "none" in found and len(found) > 1:
            raise Malformed(f'setting auth is {self.auth!r}; "none" lets everybody in: leave it out, or the others')
        return tuple(name for name in AUTH_METHODS if name in found)

    def _check_jwt(self) -> None:
        """Malformed unless it is said whose tokens are taken, and by which keys."""
        for name in ("jwt_issuer", "jwt_audience", "jwt_keys", "jwt_user_claim", "jwt_algorithms"):
            if not getattr(self, name):
                raise Malformed(f'setting auth has "jwt"; give {name}')
        for name in self.jwt_algorithms:
            if name not in JWT_ALGORITHMS:
                raise Malformed(f'setting jwt_algorithms has "{name}"; use some of {", ".join(JWT_ALGORITHMS)}')
        if "://" not in self.jwt_keys:
            return
        from urllib.parse import urlsplit

        try:
            parts = urlsplit(self.jwt_keys)
            is_near = parts.hostname in LOOPBACK_HOSTS
            has_secret, is_whole = parts.username is not None, bool(parts.hostname) and parts.port != 0
        except ValueError:
            raise Malformed("setting jwt_keys is no URL; write it as https://issuer/keys.json") from None
        if has_secret:  # which is not repeated
            raise Malformed("setting jwt_keys has a name or a secret before its host; public keys need none")
        if not is_whole or (parts.scheme != "https" and not (parts.scheme == "http" and is_near)):
            raise Malformed(
                f'setting jwt_keys is "{self.jwt_keys}"; whoever changes the keys on their way can be anybody here: '
                "use https://, http:// on loopback, or a file"
            )


class Clustering(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All settings of a node of a cluster, besides those of its server and its bus."""

    # A cluster
    cluster: tuple[str, ...] = ()
    """NATS servers with JetStream: nats://host:4222, or tls://. With some, this server is a node of a cluster."""
    bus: str = "headwater"
    """Which bus it is a node of; several may share the NATS servers."""
    node: str = ""
    """What this node is called among the others; empty: its host and port, as advertised."""
    advertise: str = ""
    """Where others find this server, HOST:PORT; empty: where it listens."""
    lease_s: float = 3.0
    """How long a leader that is not heard of keeps its place. A shorter one fails over sooner, and for less."""
    clock_skew_s_max: float = 5.0
    """A node whose clock is further off than this does not lead."""
    cluster_replicas: int = 3
    """On how many NATS servers each record is: 1, 3 or 5. With 1, losing that server loses the cluster's log."""
    cluster_bytes_max: int = 16 * GIB
    """What the NATS servers keep for a node that is behind. One that is further behind takes a snapshot of another."""
    nats_credentials: str = ""
    """A .creds file for the NATS servers; a name and a password may also stand in their URLs."""
    nats_ca: str = ""
    """PEM; who may have signed the certificates of the NATS servers. Empty: as the system says."""
    nats_certificate: str = ""
    """PEM; what this node shows to NATS servers that ask for a certificate."""
    nats_key: str = ""
    """The private key of `nats_certificate`: a PEM file without a passphrase."""

    def __post_init__(self) -> None:
        _check(self)
        if bool(self.nats_certificate) != bool(self.nats_key):
            raise Malformed("settings nats_certificate and nats_key go together; give both, or neither")
        for name in ("bus", "node"):
            if not NODE_NAME.fullmatch(getattr(self, name)) and (name == "bus" or self.node):
                raise Malformed(
                    f'setting {name} is "{getattr(self, name)}"; use up to 64 letters, digits, "-" and "_" in ASCII'
                )
        if self.cluster_replicas not in (1, 3, 5):
            raise Malformed(f"setting cluster_replicas is {self.cluster_replicas}; use 1, 3 or 5")
        if self.lease_s < LEASE_S_MIN:
            raise Malformed(f"setting lease_s is {self.lease_s}; use {LEASE_S_MIN} or more")
        if self.cluster:  # of one scheme, which the first of them says for all
            scheme = self.cluster[0].partition("://")[0]
            urls = tuple(url if "://" in url else f"{scheme}://{url}" for url in self.cluster)
            msgspec.structs.force_setattr(self, "cluster", urls)
        for url in self.cluster:
            if not (NATS_URL.fullmatch(url) and _has_port(url)):  # which may have a password, and is not repeated
                raise Malformed("setting cluster has what is no URL of a NATS server; use nats://host:4222, or tls://")
        if self.advertise and not (ADVERTISED.fullmatch(self.advertise) and _has_port(self.advertise)):
            raise Malformed(f'setting advertise is "{self.advertise}"; use HOST:PORT, and [ADDRESS]:PORT with IPv6')


class Connecting(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All settings of a client."""

    connect_timeout_s: float = 10.0
    """How long a connection may take until it is registered: Disconnected (503)."""
    request_timeout_s: float = 30.0
    """How long an answer may take: TimedOut (504). Publishes wait for as long as the client tries to reconnect."""
    reconnect_delay_s: float = 0.05
    """Delay before the second try to reconnect; it doubles with each one after, and half of it is drawn at random."""
    reconnect_delay_s_max: float = 5.0
    """The longest delay between tries."""
    silence_s_max: float = 6.0
    """With an address of several nodes: one that does not let a client in, or of which nothing is heard, for so long is
    left for the next. It is asked for a sign of life after half of it."""
    reconnect_s_max: float | None = None
    """After so long without a connection the client gives up: Disconnected (503). None: never."""
    session_expire_after_s: float | None = None
    """How long the server keeps the session of a client that is gone. None: the server's default."""
    prefetch_messages: int = 10_000
    """Messages of a subscription that are sent ahead of their being taken; beyond it the server waits."""
    prefetch_bytes: int = 8 * MIB
    """The same, in bytes."""
    publish_gather_messages_max: int = 10_000
    """Messages that wait for their turn and go as one batch; more of them make another."""
    publish_gather_bytes_max: int = 1 * MIB
    """The same, in bytes."""
    publish_bytes_in_flight_max: int = 32 * MIB
    """Bytes of messages that are not on disk yet; beyond it a publisher waits."""
    requests_max: int = 10_000
    """Requests to others that wait for their answer; one more: QuotaExceeded (429)."""
    answer_timeout_s: float = 5.0
    """How long `request` waits for its answer unless told: TimedOut (504)."""
    sql_memory_bytes: int = 512 * MIB
    """Memory of a query of `bus.sql`, and bytes of its answer; beyond either: TooLarge (413)."""
    frame_bytes_max: int = 1 * GIB
    """A longer frame from the server ends the connection (413)."""
    write_bytes_max: int = 1 * MIB
    """Bytes that wait for a slow server before publishes are held back."""

    if TYPE_CHECKING:

        def __init__(self, **settings: Unpack[GivenConnecting]) -> None: ...

    def __post_init__(self) -> None:
        _check(self)
