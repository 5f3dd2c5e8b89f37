"""/v1/sql: one select over topics, live and archived."""

from __future__ import annotations

from typing import Annotated

import msgspec
from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel, Field

from headwater.admin.api.dependencies import Asking, needs
from headwater.admin.query.queries import ROWS_MAX, Queries

QUERY_CHARS_MAX = 8_000

router = APIRouter(prefix="/v1", tags=["messages"])


class Answer(BaseModel):
    """The first rows of an answer."""

    columns: list[tuple[str, str]] = Field(description="Name and type of each.")
    rows: list[list[object]] = Field(description="Payloads are texts; whole numbers beyond 2^53, too.")
    total: int = Field(description="How many rows the answer has.")


@router.get("/sql", response_model=Answer, summary="Ask topics in SQL", **needs("reader"))
async def ask(
    request: Request,
    caller: Asking,
    query: Annotated[
        str,
        Query(
            max_length=QUERY_CHARS_MAX,
            description="One select by DuckDB; a filter in quotes is a table.",
            examples=["select topic, count(*) from 'home/#' group by 1"],
        ),
    ],
    limit: Annotated[int, Query(ge=1, le=ROWS_MAX, description="Rows that are sent.")] = 1000,
) -> Response:
    """It reads topics and the lake, and nothing else; it is limited in time, memory and rows."""
    queries: Queries = request.app.state.queries
    answered = await queries.run(query, limit, caller)
    body = {"columns": answered.columns, "rows": answered.rows, "total": answered.total}
    return Response(msgspec.json.encode(body), media_type="application/json")
