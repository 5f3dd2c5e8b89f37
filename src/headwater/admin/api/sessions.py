"""/v1/sessions: who is here, and who may come back."""

from __future__ import annotations

from fastapi import APIRouter
from pydantic import BaseModel, Field

from headwater.admin.api.dependencies import Broker, Id, Limit, ShownTime, cut, needs, shown
from headwater.wire.administration import SessionInfo

router = APIRouter(prefix="/v1/sessions", tags=["sessions"])


class SessionSubscription(BaseModel):
    """What a session subscribes to."""

    kind: str
    filter: str
    id: str | None = Field(description="Of a durable one.")


class Session(BaseModel):
    """What the broker keeps for a client."""

    id: str
    user: str
    address: str = Field(description="Of who is connected; empty if nobody is.")
    connected: ShownTime = Field(
        validation_alias="connected_us", description="Since when; null if nobody is connected."
    )
    expire_after_s: float = Field(description="How long it is kept without a connection.")
    subscriptions: list[SessionSubscription]
    waiting_bytes: int = Field(description="Written, and not yet taken by the client.")
    dropped: int = Field(description="Messages that its live subscriptions have lost, as it was too slow.")
    client: str = Field(description="The id that an MQTT client chose, or that of a native one.")
    protocol: str = Field(description="Headwater, MQTT 5, MQTT 3.1.1 over WebSocket, …; empty without a connection.")
    host: str = Field(description="The name of the client's machine, if it told one.")
    pid: int = Field(description="The number of its process there, or 0.")
    bytes_in: int = Field(description="Read from its connection since that began.")
    bytes_out: int = Field(description="Written to it.")


class SessionsPage(BaseModel):
    """Sessions by id."""

    sessions: list[Session]
    next: str | None = Field(description="Send it as `after` for the next page; null at the end.")


@router.get("", summary="List sessions", **needs("reader"))
async def list_sessions(broker: Broker, after: str | None = None, limit: Limit = 100) -> SessionsPage:
    """By id."""
    found: list[SessionInfo] = await broker.sessions.list(after=after, limit=limit + 1)
    rows, last = cut(found, limit)
    return SessionsPage(sessions=[shown(Session, one) for one in rows], next=None if last is None else last.id)


@router.get("/{id:segment}", summary="Show a session", **needs("reader"))
async def show(id: Id, broker: Broker) -> Session:
    """Who it is, and what it subscribes to."""
    (found,) = await broker.sessions.show(id)
    return shown(Session, found)


@router.post("/{id:segment}/disconnect", status_code=204, summary="Cut a session's connection", **needs("operator"))
async def disconnect(id: Id, broker: Broker) -> None:
    """Its client may come back."""
    await broker.sessions.disconnect(id)


@router.delete("/{id:segment}", status_code=204, summary="End a session", **needs("admin"))
async def end(id: Id, broker: Broker) -> None:
    """For good, and its own subscriptions with it."""
    await broker.sessions.end(id)
