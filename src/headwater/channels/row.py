"""A channel as it is stored, and what can be one."""

from __future__ import annotations

import re
from typing import Any, Literal

import msgspec

from headwater.access.destination import check_host, check_port
from headwater.access.name import has_unseen, quoted
from headwater.config import Config
from headwater.delivery.options import CHANNEL_PREFIX, Options
from headwater.errors import Malformed
from headwater.store.keys import is_sealed
from headwater.topics.name import check_filter
from headwater.wire import webhook
from headwater.wire.request import Option

NAME_CHARS_MAX = 128
PATH_CHARS_MAX = 2048
BATCH_MESSAGES = {"tcp": 1000, "http": 100}
"""Messages that are sent at once, unless told."""
BATCH_MESSAGES_MAX = 10_000
IN_FLIGHT = 10_000
"""Messages that may wait for their acks, unless told."""
OPTIONS = frozenset(("max_in_flight", "ack_timeout_s", "max_attempts", "on_gap", "retry_delay_s", "retry_delay_s_max"))
"""What may be decided about a channel's subscription."""

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_PATH = re.compile(r"/[!-~]*")


class ChannelRow(msgspec.Struct, frozen=True, kw_only=True):
    """A channel as it is stored."""

    id: str
    name: str
    filter: str
    kind: Literal["tcp", "http"]
    destination_host: str
    destination_port: int
    path: str
    secret: str
    """Of an http channel; else empty. As it is stored if it cannot be opened."""
    start: Literal["earliest", "latest"]
    batch_messages_max: int
    options: dict[str, Option]
    created_us: int
    owner: str = ""
    """The client that subscribed with a destination."""
    owner_id: str = ""
    """Of a client in the registry: its id there, as another may come by the same name."""

    @property
    def subscription(self) -> str:
        """The id of its subscription."""
        return CHANNEL_PREFIX + self.id

    @property
    def subscribed(self) -> Options:
        """What its subscription is to be."""
        given: dict[str, Any] = {"max_in_flight": IN_FLIGHT, **self.options}
        return Options(id=self.subscription, filter=self.filter, **given)

    def __repr__(self) -> str:
        return f"ChannelRow(id={self.id!r}, filter={self.filter!r}, …)"  # secrets do not belong in logs

    def __str__(self) -> str:
        where = f"{self.destination_host}:{self.destination_port}"
        return f"{quoted(self.name)}, {quoted(self.filter)} to {self.kind} {where}"


def check_row(row: ChannelRow, config: Config) -> None:
    """Malformed (422) unless a channel can be; its destination is another matter."""
    if not _ID.fullmatch(row.id):
        raise Malformed(
            f"channel id {quoted(row.id)}: use 1 to 64 letters, digits, -, _ and ., a letter or digit first"
        )
    if not 1 <= len(row.name) <= NAME_CHARS_MAX or has_unseen(row.name):
        raise Malformed(
            f"channel name {quoted(row.name)}: use 1 to {NAME_CHARS_MAX} characters, none of them invisible"
        )
    if row.kind not in BATCH_MESSAGES:
        raise Malformed(f"kind {quoted(str(row.kind))} of a channel; use tcp or http")
    if row.start not in ("earliest", "latest"):
        raise Malformed(f"start {quoted(str(row.start))} of a channel; use earliest or latest")
    if row.kind == "tcp" and (row.path != "/" or row.secret):
        raise Malformed("a tcp channel has no path and no secret; leave them out, or make it an http channel")
    if len(row.path) > PATH_CHARS_MAX or not _PATH.fullmatch(row.path) or "#" in row.path:
        raise Malformed(f"path {quoted(row.path)}: use one that begins with /, percent-encoded where need be")
    if row.secret and not is_sealed(row.secret):
        webhook.secret_bytes(row.secret)
    if not 1 <= row.batch_messages_max <= BATCH_MESSAGES_MAX:
        raise Malformed(f"batch_messages_max is {row.batch_messages_max}; use 1 to {BATCH_MESSAGES_MAX}")
    unknown = row.options.keys() - OPTIONS
    if unknown:
        raise Malformed(
            f"option {quoted(min(unknown))} of a channel; those that there are: {', '.join(sorted(OPTIONS))}"
        )
    check_filter(row.filter, config)
    row.subscribed.check(config)
    check_host(row.destination_host)
    check_port(row.destination_port)
