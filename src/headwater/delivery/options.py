"""What a user decides about a durable subscription."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from math import isfinite
from typing import Any, Literal

import msgspec

from headwater.config import Config
from headwater.errors import Conflict, Malformed

Order = Literal["strict", "key", "none"]
OnGap = Literal["raise", "skip"]
CHANNEL_PREFIX = "channel:"
"""Of the ids of channels' subscriptions, which nobody else may use."""


def check_not_of_channel(id: object) -> None:
    """Conflict (409) for the id of a channel's subscription, which is made, served and deleted with the channel."""
    if isinstance(id, str) and id.startswith(CHANNEL_PREFIX):
        raise Conflict(
            f"subscriptions whose ids begin with {CHANNEL_PREFIX} belong to channels; use another id, or look after "
            "the channel: headwater channels"
        )


OnResume = Literal["keep", "redrive"]
Told = Literal["off", "stream"]

_fields = cache(msgspec.structs.fields)


class Options(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What a user decides about a durable subscription."""

    id: str
    filter: str
    order: Order = "strict"
    max_in_flight: int = 64
    ack_timeout_s: float = 30.0
    """0: never."""
    max_attempts: int = 5
    """0, or None where it is stated: no limit."""
    max_deliveries: int = 10
    """To consumers that are gone without a word, as one that the message kills; 0, or None: no limit."""
    expire_after_s: float | None = None
    on_gap: OnGap = "raise"
    on_resume: OnResume = "keep"
    """What becomes of its dead letters when somebody comes back to it, and nobody took from it meanwhile."""
    retry_delay_s: float | None = None
    """None: Config's."""
    retry_delay_s_max: float | None = None
    """None: Config's."""
    states: Told | None = None
    """None: Config's."""

    def check(self, config: Config) -> None:
        """Malformed (422) unless every option can be right."""
        if self.order not in ("strict", "key", "none"):
            raise Malformed(f'order is {self.order!r}; use "strict", "key" (in order within each key) or "none"')
        if self.on_gap not in ("raise", "skip"):
            raise Malformed(f'on_gap is {self.on_gap!r}; use "raise" (the consumer gets Gap) or "skip"')
        if self.on_resume not in ("keep", "redrive"):
            raise Malformed(f'on_resume is {self.on_resume!r}; use "keep" or "redrive" (dead letters come first)')
        if self.states not in (None, "off", "stream"):
            raise Malformed(f'states is {self.states!r}; use "off", or "stream" (told on $sys/states/…)')
        for field in _fields(type(self)):
            value = getattr(self, field.name)
            try:
                msgspec.convert(value, field.type)
            except msgspec.ValidationError as error:
                raise Malformed(f"{field.name} is {value!r}: {error}") from None
        try:
            self.id.encode()
        except UnicodeEncodeError:
            raise Malformed(f"subscription id {self.id[:40]!r} cannot be written as UTF-8; use another") from None
        if not 1 <= len(self.id.encode()) <= config.subscription_id_bytes_max:
            longest = config.subscription_id_bytes_max
            raise Malformed(f"subscription id {self.id[:40]!r} has {len(self.id.encode())} bytes; use 1 to {longest}")
        if not 1 <= self.max_in_flight <= config.max_in_flight_max:
            raise Malformed(f"max_in_flight is {self.max_in_flight}; use 1 to {config.max_in_flight_max}")
        if self.max_attempts < 0:
            raise Malformed(
                f"max_attempts is {self.max_attempts}; use 1 or more, or 0 (in Python also None) for no limit"
            )
        if self.max_deliveries < 0:
            raise Malformed(
                f"max_deliveries is {self.max_deliveries}; use 1 or more, or 0 (in Python also None) for no limit"
            )
        if not (isfinite(self.ack_timeout_s) and self.ack_timeout_s >= 0):
            raise Malformed(f"ack_timeout_s is {self.ack_timeout_s}; use seconds above 0, or 0 to wait for ever")
        if self.expire_after_s is not None and not (isfinite(self.expire_after_s) and self.expire_after_s > 0):
            raise Malformed(
                f"expire_after_s is {self.expire_after_s}; use seconds above 0, or None to keep it for ever"
            )
        first_s, max_s = self.retry_delays_s(config)
        if not (isfinite(first_s) and isfinite(max_s) and 0 <= first_s <= max_s):
            raise Malformed(
                f"retry_delay_s is {first_s}, retry_delay_s_max {max_s}; use 0 or more, the first not above the other"
            )

    def unlike(self, other: Options) -> str:
        """In which options another differs, as a sentence says it."""
        pairs = ((name, getattr(self, name), getattr(other, name)) for name in self.__struct_fields__)
        return ", ".join(
            f"its {name} is {_said(mine)}, not {_said(theirs)}" for name, mine, theirs in pairs if mine != theirs
        )

    def retry_delays_s(self, config: Config) -> tuple[float, float]:
        """The first and the longest delay between attempts."""
        first_s = config.retry_delay_s if self.retry_delay_s is None else self.retry_delay_s
        max_s = config.retry_delay_s_max if self.retry_delay_s_max is None else self.retry_delay_s_max
        return first_s, max_s


def _said(value: object) -> str:
    return "not set" if value is None else f'"{value}"' if isinstance(value, str) else str(value)


SubscriptionKind = Literal["named", "session", "live"]
"""A durable subscription with an id of its own, one that goes with its session, and one that goes with its reader."""


def kind_of(kind: SubscriptionKind | None, id: object) -> SubscriptionKind:
    """Which kind is meant; Malformed (422) if the id says otherwise."""
    if kind is None:
        return "live" if id is None else "named"
    if kind not in ("named", "session", "live"):
        raise Malformed(f'kind is {kind!r}; use "named" (with an id), "session" or "live"')
    if kind == "named" and id is None:
        raise Malformed('kind is "named", and there is no id; a named subscription has one')
    if kind != "named" and id is not None:
        raise Malformed(f'kind is "{kind}", and there is the id {id!r}; only a named subscription has one')
    return kind


NAMES = Options.__struct_fields__[2:]
"""Of what a user may state, besides the id and the filter."""
UNLIMITED: dict[str, object] = {"max_attempts": 0, "max_deliveries": 0, "expire_after_s": None}
"""What None says of an option that is a limit: that there is none. Of any other it says nothing."""


def stated(options: Mapping[str, Any]) -> dict[str, Any]:
    """What a user has stated, and not left as it is; TypeError for what is no option."""
    unknown = options.keys() - set(NAMES)
    if unknown:
        raise TypeError(f"subscribe() got an unexpected keyword argument {min(unknown)!r}")
    given = {name: options[name] for name in NAMES if name in options}
    return {
        name: UNLIMITED[name] if value is None else value
        for name, value in given.items()
        if value is not None or name in UNLIMITED
    }


def check_when_full(when_full: object, kind: SubscriptionKind) -> None:
    """Malformed (422) unless a subscription of this kind can do so where its reader is too slow."""
    if when_full not in ("drop_oldest", "disconnect"):
        raise Malformed(f'when_full is {when_full!r}; use "drop_oldest" or "disconnect"')
    if kind != "live" and when_full != "drop_oldest":
        raise Malformed("when_full: only a live subscription has it; one that keeps its place drops nothing")


def check_none_of_live(given: Mapping[str, Any], start: object) -> None:
    """Malformed (422) if something was stated that a live subscription does not have."""
    if given or start != "latest":
        asked = ", ".join([*given, *(["start"] if start != "latest" else [])])
        raise Malformed(f"{asked}: a live subscription has no such thing; subscribe with an id for that")
