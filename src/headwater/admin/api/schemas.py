"""/v1/schemas: what the payloads of topics have to be."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec
from fastapi import APIRouter
from pydantic import BaseModel, Field

from headwater.admin.api.dependencies import Body, Broker, Id, Limit, cut, example, needs
from headwater.message import SchemaInfo
from headwater.schemas import Depth
from headwater.wire.administration import RemoveSchema, SetSchema

router = APIRouter(prefix="/v1/schemas", tags=["schemas"])

READING = {"type": "object", "properties": {"celsius": {"type": "number"}}, "required": ["celsius"]}


class NewSchema(Body):
    """What payloads have to be."""

    model_config = example(schema=READING)

    document: dict[str, Any] = Field(alias="schema", description="A JSON Schema, of the words that the guide lists.")
    check: Depth = Field("recent", description="Stored messages that are looked at before.")


class Schema(BaseModel):
    """A schema, in the form in which it is stored."""

    filter: str
    document: dict[str, Any] = Field(alias="schema")
    changed: datetime


class SchemasPage(BaseModel):
    """Schemas by filter."""

    schemas: list[Schema]
    next: str | None = Field(description="Send it as `after` for the next page; null at the end.")


@router.get("", summary="List schemas", **needs("reader"))
async def list_schemas(broker: Broker, after: str | None = None, limit: Limit = 100) -> SchemasPage:
    """By the filters of the topics that they are about."""
    found: list[SchemaInfo] = await broker.bus.schemas(after=after, limit=limit + 1)
    rows, last = cut(found, limit)
    return SchemasPage(schemas=[_shown(one) for one in rows], next=None if last is None else last.filter)


@router.put("/{filter:segment}", summary="Refuse payloads that do not fit", **needs("admin"))
async def put(filter: Id, new: NewSchema, broker: Broker) -> Schema:
    """In place of what this filter had. The same again changes nothing; one that contradicts what is stored is 409."""
    text = msgspec.json.encode(new.document).decode()
    return _shown(await broker.ask(SetSchema(filter=filter, schema=text, check=new.check)))


@router.delete("/{filter:segment}", status_code=204, summary="Let everything be published again", **needs("admin"))
async def remove(filter: Id, broker: Broker) -> None:
    """To the topics of this filter."""
    await broker.ask(RemoveSchema(filter=filter))


def _shown(one: SchemaInfo) -> Schema:
    return Schema(filter=one.filter, schema=one.schema, changed=one.changed_at)
