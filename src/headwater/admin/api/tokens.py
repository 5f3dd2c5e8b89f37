"""/v1/tokens: what opens this API; /v1/me: as whom one asks."""

from __future__ import annotations

from fastapi import APIRouter, Request
from pydantic import BaseModel, Field

from headwater.admin.api.dependencies import Asking, Body, Broker, Id, ShownTime, example, needs, shown
from headwater.admin.gate import Gate
from headwater.wire.administration import Role

router = APIRouter(prefix="/v1", tags=["tokens"])


class NewToken(Body):
    """A token to make."""

    model_config = example(client="grafana", role="reader")

    client: str = Field(examples=["grafana"], description="A client of the registry; its tokens go with it.")
    role: Role


class MadeToken(BaseModel):
    """A token, whose text is told this once."""

    id: str
    client: str
    role: str
    token: str = Field(examples=["hwt_…"])


class Token(BaseModel):
    """A token."""

    id: str
    client: str
    role: str
    created: ShownTime = Field(validation_alias="created_us")


class TokensList(BaseModel):
    """Every token."""

    tokens: list[Token]


class Me(BaseModel):
    """As whom one asks."""

    name: str
    role: Role


@router.get("/me", summary="Say as whom one asks", **needs("reader"))
async def me(caller: Asking) -> Me:
    """Whose token this is, and its role."""
    return shown(Me, caller)


@router.get("/tokens", summary="List tokens", **needs("admin"))
async def list_tokens(broker: Broker) -> TokensList:
    """Every one, without its text."""
    return TokensList(tokens=[shown(Token, one) for one in await broker.tokens.list()])


@router.post("/tokens", status_code=201, summary="Make a token", **needs("admin"))
async def add(new: NewToken, broker: Broker) -> MadeToken:
    """Its text is told this once."""
    return shown(MadeToken, await broker.tokens.add(new.client, new.role))


@router.delete("/tokens/{id:segment}", status_code=204, summary="Remove a token", **needs("admin"))
async def remove(request: Request, id: Id, broker: Broker) -> None:
    """It opens nothing from now on."""
    await broker.tokens.remove(id)
    gate: Gate = request.app.state.gate
    gate.forget()
