"""What a server consists of: every protocol that clients speak, and channels."""

from __future__ import annotations

from collections.abc import Callable

from headwater.channels.runner import ChannelRunner
from headwater.config import Serving
from headwater.core import Core
from headwater.mqtt.protocol import MqttProtocol
from headwater.native.protocol import NativeProtocol
from headwater.server.extension import Extension
from headwater.server.server import Server
from headwater.settings import Loaded


def server_of(
    core: Core, serving: Serving | None = None, settings: Loaded | None = None, *others: Callable[[Server], Extension]
) -> Server:
    """A server of a core; `settings` say where the server's settings came from, `others` are asked before our own."""
    return Server(core, serving, settings, (*others, NativeProtocol, MqttProtocol, ChannelRunner))
