"""MQTT: its listeners, and what all its sessions share.

A client's session is its own by user and client id. Promise: of two stored sessions of one client, which a crash
between the beginning of the one and the end of the other leaves behind, the later one counts.
"""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING

import msgspec

from headwater.mqtt.broker_topics import BrokerTopics
from headwater.mqtt.connection import MqttConnection
from headwater.mqtt.delivery import Deliveries
from headwater.mqtt.greeting import Greeter
from headwater.mqtt.refused import Refused
from headwater.mqtt.session import MqttSession
from headwater.mqtt.subscription_options import SubscriptionOptions
from headwater.mqtt.tunnel import TunnelledConnection
from headwater.mqtt.wills import Wills
from headwater.server.accepting import Door, listen_unix
from headwater.server.exposure import plain_mqtt_host
from headwater.server.extension import Extension

if TYPE_CHECKING:
    from headwater.server.server import Server
    from headwater.server.session import Session
    from headwater.server.session_row import SessionRow, SubscriptionOf


class MqttProtocol(Extension):
    """Serves MQTT clients, once it listens."""

    def __init__(self, server: Server) -> None:
        super().__init__(server)
        self.sessions = server.sessions
        self.port = 0
        """Where it listens; 0 if it does not."""
        self.tls_port = 0
        self.urls: list[str] = []
        broker, serving = server.broker, server.serving
        self.deliveries = Deliveries(broker.clock)
        self.broker_topics = BrokerTopics(server.loop, server.executor, broker, serving.sys_every_s)
        self.refused = Refused(broker.clock, server.sessions.counts, serving.refusals_logged_per_minute_max)
        self.wills = Wills(server.sessions, self.refused)
        self._greeter = Greeter(self)
        self._by_client: dict[tuple[str, str], MqttSession] = {}
        """By user and client id."""

    # Sessions

    def session_of(self, row: SessionRow) -> MqttSession | None:
        if row.client is None:
            return None
        before = self._by_client.get((row.user, row.client))
        if before is not None:
            self.sessions.expire(before)
        known = msgspec.structs.replace(row, subscriptions=tuple(map(_decoded, row.subscriptions)))
        session = self._by_client[row.user, row.client] = MqttSession(self, known)
        return session

    def of_client(self, user: str, client: str) -> MqttSession | None:
        """The session of a client."""
        return self._by_client.get((user, client))

    def forget(self, session: Session) -> None:
        """A session has ended."""
        client = session.row.user, session.row.client or ""
        if self._by_client.get(client) is session:
            del self._by_client[client]

    def recover(self) -> None:
        for kept in self.wills.recover():
            session = self.sessions.get(kept.row.session)
            if isinstance(session, MqttSession):
                session.recover_will(kept)
            else:
                self.server.loop.call_soon(self.wills.publish, kept)

    # Listening

    async def listen(self) -> None:
        """Serve clients; where there is a certificate, on a port that speaks TLS as well."""
        serving, context = self.server.serving, self.server.tls_context
        self.port = await self._listen(plain_mqtt_host(serving), serving.mqtt_port, None)
        if context is not None:
            self.tls_port = await self._listen(serving.mqtt_host or serving.host, serving.mqtt_tls_port, context)

    async def _listen(self, host: str, port: int, context: ssl.SSLContext | None) -> int:
        listener, greeter = self.server.listener, self._greeter
        scheme = "mqtt" if context is None else "mqtts"
        found = await self.server.listen(scheme, lambda: MqttConnection(listener, greeter), host, port, context)
        self.urls.append(f"{scheme}://{f'[{host}]' if ':' in host else host}:{found}")
        return found

    async def listen_tunnels(self, path: str) -> Door:
        """A door for clients that come over WebSockets, of which another process knows the way."""
        listener, greeter = self.server.listener, self._greeter
        return await listen_unix(listener, lambda: TunnelledConnection(listener, greeter), path)

    async def close(self) -> None:
        self.broker_topics.stop()
        await self.wills.close()


def _decoded(one: SubscriptionOf) -> SubscriptionOf:
    """A subscription with the options of its SUBSCRIBE, which are stored with it."""
    if one.extension is None:
        return one
    return msgspec.structs.replace(one, extension=msgspec.convert(one.extension, SubscriptionOptions))
