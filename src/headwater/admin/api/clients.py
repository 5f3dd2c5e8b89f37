"""/v1/clients: who may come in."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request
from pydantic import BaseModel, Field

from headwater.admin.api.dependencies import Body, Broker, Id, ShownTime, example, needs, shown
from headwater.admin.api.problem import Exists
from headwater.admin.client import Admin
from headwater.admin.gate import Gate
from headwater.errors import Conflict, NotFound

router = APIRouter(prefix="/v1/clients", tags=["clients"])

Secret = Annotated[str | None, Field(description="Null: one is drawn.", max_length=1024)]


class NewClient(Body):
    """A client to let in."""

    model_config = example(name="sensor-7")

    name: str = Field(examples=["sensor-7"])
    secret: Secret = None


class NewSecret(Body):
    """A secret instead of the one that a client has."""

    model_config = example(secret=None)

    secret: Secret = None


class Registration(BaseModel):
    """A client and its secret, which is told this once."""

    id: str
    name: str
    secret: str


class Client(BaseModel):
    """A client."""

    id: str
    name: str
    created: ShownTime = Field(validation_alias="created_us")
    rotated: ShownTime = Field(validation_alias="rotated_us", description="When it got its secret.")


class ClientsList(BaseModel):
    """Clients by name."""

    clients: list[Client]


@router.get("", summary="List clients", **needs("admin"))
async def list_clients(broker: Broker) -> ClientsList:
    """Every one, by name."""
    return ClientsList(clients=[shown(Client, one) for one in await broker.clients.list()])


@router.post("", status_code=201, summary="Let a client in", **needs("admin"))
async def add(new: NewClient, broker: Broker) -> Registration:
    """Its secret is told this once."""
    try:
        made = await broker.clients.add(new.name, new.secret)
    except Conflict as error:
        raise Exists(str(error.args[0]), (await _found(broker, new.name)).model_dump(mode="json")) from None
    return shown(Registration, made)


@router.get("/{name:segment}", summary="Show a client", **needs("admin"))
async def show(name: Id, broker: Broker) -> Client:
    """Without its secret, which nobody knows."""
    return await _found(broker, name)


@router.post("/{name:segment}/rotate", summary="Give a client another secret", **needs("admin"))
async def rotate(name: Id, broker: Broker, new: NewSecret | None = None) -> Registration:
    """It is told this once."""
    made = await broker.clients.rotate(name, None if new is None else new.secret)
    return shown(Registration, made)


@router.delete("/{name:segment}", status_code=204, summary="Let a client in no more", **needs("admin"))
async def remove(
    request: Request,
    name: Id,
    broker: Broker,
    force: Annotated[bool, Query(description="Even if it is connected.")] = False,
) -> None:
    """Its tokens go with it. One that is connected: a conflict, unless forced."""
    client = await _found(broker, name)
    if not force:
        connected = [one.id for one in await broker.sessions.list() if one.user == client.name and one.address]
        if connected:
            raise Conflict(f'client "{client.name}" is connected (sessions: {len(connected)}); say ?force=true')
    await broker.clients.remove(client.name)
    gate: Gate = request.app.state.gate
    gate.forget()


async def _found(broker: Admin, name: str) -> Client:
    for one in await broker.clients.list():
        if one.name == name:
            return shown(Client, one)
    raise NotFound(f'there is no client "{name}"; GET /v1/clients lists those that are')
