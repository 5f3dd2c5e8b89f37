"""By what people know subscriptions and consumers: the name of a channel, a machine and its process."""

from __future__ import annotations

from collections.abc import Iterable

from headwater.admin.client import Admin
from headwater.admin.dashboard import formatting as shown
from headwater.message import ConsumerInfo
from headwater.wire.administration import ChannelInfo

CHANNEL = "channel:"
"""How the ids of the subscriptions of channels begin."""


async def channel_names(admin: Admin, ids: Iterable[str]) -> dict[str, str]:
    """What those of these subscriptions are called that are of channels."""
    if not any(one.startswith(CHANNEL) for one in ids):
        return {}
    channels: list[ChannelInfo] = await admin.channels.list()
    return {CHANNEL + one.id: f"channel {one.name}" for one in channels}


def consumer_name(one: ConsumerInfo) -> str:
    """Who takes from a subscription."""
    process = f" pid {one.pid}" if one.pid else ""
    return shown.plain(f"{one.user or 'somebody'} at {one.host or 'an unknown host'}{process}")
