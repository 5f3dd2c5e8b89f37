"""Who leads, as the lease says it: which node, and where clients find it."""

from __future__ import annotations

import msgspec


class Leader(msgspec.Struct, frozen=True, kw_only=True):
    """Which node leads, and where clients find it, each as host:port; empty where it does not listen."""

    node: str
    run: str = ""
    """Drawn by each run of the node, so that it knows a lease that it has taken itself."""
    epoch: int = 0
    """Of its first record; 0 as long as it has none, and does not lead yet."""
    native: str = ""
    mqtt: str = ""
    mqtts: str = ""
    http: str = ""
    next: str = ""
    """Who is to take the lease, from a node that leads no more; it is nobody else's until its time is up."""

    def place(self, door: str) -> tuple[str, int] | None:
        """Where a door of it is."""
        said: str = getattr(self, door)
        host, _, port = said.rpartition(":")
        return (host.strip("[]"), int(port)) if port.isdigit() else None


def pack(leader: Leader) -> bytes:
    """As the lease has it."""
    return msgspec.json.encode(leader)


def unpack(value: bytes) -> Leader | None:
    """Who it is; None if that cannot be read."""
    try:
        return msgspec.json.decode(value, type=Leader)
    except msgspec.DecodeError:
        return None
