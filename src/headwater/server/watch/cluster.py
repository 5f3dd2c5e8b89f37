"""The cluster, as a server sees it that is a node of one."""

from __future__ import annotations

from typing import Protocol

from headwater.server.accepting import Introductions
from headwater.wire.administration import ClusterStatus


class ClusterView(Protocol):
    """What a server asks of the node that it is."""

    node: str
    """Its name."""
    secret: bytes
    """What nodes prove themselves with when they pass connections on."""

    def introductions(self, door: str) -> Introductions:
        """What is believed at a door: "native", "mqtt", "mqtts"."""

    def status(self) -> ClusterStatus:
        """How the cluster is; from any thread, at once, without asking anybody."""
