"""/v1/messages/search: messages by their topic, key, headers, payload text and JSON fields, over a range."""

from __future__ import annotations

from typing import Annotated

import msgspec
from fastapi import APIRouter, Query, Request, Response
from pydantic import Field

from headwater.admin.api.cursor import Cursor
from headwater.admin.api.dependencies import Asking, Broker, Limit, Moment, needs
from headwater.admin.api.messages import After, Filter, MessagesPage, Since
from headwater.admin.api.payload import shown_message
from headwater.admin.search.process import Told
from headwater.admin.search.searches import Searches
from headwater.clock import from_datetime
from headwater.topics.name import check_filter

SEARCH_S = 10.0
"""How long a page may take; then it has what was found by then, and says how far it looked."""

router = APIRouter(prefix="/v1/messages", tags=["messages"])


class SearchPage(MessagesPage):
    """Messages that were found."""

    looked: int = Field(description="How many of the range's messages were looked at.")
    total: int = Field(description="How many there were to look at, from `after` on.")


@router.get("/search", response_model=SearchPage, summary="Search messages, a page of what is found", **needs("reader"))
async def search(
    request: Request,
    caller: Asking,
    broker: Broker,
    filter: Filter = "#",
    where: Annotated[
        str | None,
        Query(
            description="A condition on JSON fields; several with and.", examples=['$.sensor == "a" and $.celsius > 20']
        ),
    ] = None,
    text: Annotated[str | None, Query(description="What is in the payload, as it is written.")] = None,
    key: Annotated[str | None, Query(description="What is in the key.")] = None,
    header: Annotated[str | None, Query(description="A name, or name=value with what is in the value.")] = None,
    after: After = None,
    since: Since = None,
    until: Annotated[Moment | None, Query(description="Before this moment.")] = None,
    limit: Limit = 100,
) -> Response:
    """What all that is stated holds for, in order within each root. A page ends with its `limit`, or after ten
    seconds: then `is_end` is false, `looked` of `total` says how far it is, and `next` goes on."""
    check_filter(filter, broker.bus.config)
    caller.check_sight(filter)
    cursor = Cursor.read(filter, after, since)
    asked = Told(
        filter=filter,
        where=where or "",
        text=text or "",
        key=key or "",
        header=header or "",
        after=cursor.after,
        since_us=None if cursor.since is None else from_datetime(cursor.since),
        until_us=None if until is None else from_datetime(until),
        most=limit,
    )
    searches: Searches = request.app.state.searches
    found = await searches.run(asked, caller.name, broker.bus._readable(), SEARCH_S)
    for root, offset in found.places.items():
        cursor.advance(root, offset)
    body = {
        "messages": [shown_message(message) for message in found.messages],
        "gaps": [dict(zip(("root", "first", "last", "reason"), gap, strict=True)) for gap in found.gaps],
        "next": str(cursor),
        "is_end": found.is_end,
        "looked": found.progress.looked,
        "total": found.progress.total,
    }
    return Response(msgspec.json.encode(body), media_type="application/json")
