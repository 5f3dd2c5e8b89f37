"""What every route of the API has: who asks, the broker that is asked for them, pages, moments and ids in a path."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from difflib import get_close_matches
from typing import Annotated, Any, TypeVar
from urllib.parse import quote, unquote

from fastapi import Depends, Path, Query, Request, Security
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from pydantic import AfterValidator, AwareDatetime, BaseModel, BeforeValidator, ConfigDict
from starlette.convertors import Convertor, register_url_convertor

from headwater.admin.client import Admin
from headwater.admin.gate import Caller
from headwater.clock import to_datetime
from headwater.errors import Malformed
from headwater.wire.administration import Role
from headwater.wire.request import PAGE_BYTES, carried

T = TypeVar("T")
M = TypeVar("M", bound=BaseModel)
PAGE_MAX = 1000
NUMBER_MAX = 2**63 - 1
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
CALENDAR_END = datetime(9999, 12, 31, tzinfo=UTC)

BEARER = HTTPBearer(
    auto_error=False,
    description="A token of a client: `headwater tokens add CLIENT --role reader`, or one of the issuer.",
)


class Segment(Convertor[str]):
    """A segment of a path, percent-encoded: it may stand for anything, slashes included."""

    regex = "[^/]+"

    def convert(self, value: str) -> str:
        """What it stands for."""
        return unquote(value)

    def to_string(self, value: str) -> str:
        """How it is written in a path."""
        return quote(value, safe="")


class Levels(Segment):
    """The rest of a path as a topic: its slashes may be encoded, or be those of the path."""

    regex = ".+"


register_url_convertor("segment", Segment())
register_url_convertor("levels", Levels())


async def _caller(request: Request, _: Annotated[HTTPAuthorizationCredentials | None, Security(BEARER)]) -> Caller:
    caller: Caller = request.state.caller  # the guard has let it in
    return caller


Asking = Annotated[Caller, Depends(_caller)]
"""Who asks."""


def needs(role: Role, **described: Any) -> dict[str, Any]:
    """What a route says of the role that it takes: to those who ask, and to those who read /docs."""

    async def check(request: Request, caller: Asking) -> None:
        caller.check(role)
        check_query(request)

    return {"dependencies": [Depends(check)], "openapi_extra": {"x-role": role, **described}}


def check_query(request: Request) -> None:
    """Malformed (422) for a parameter that the route does not have, or a # or + that was not meant as it came."""
    raw = request.scope["query_string"].decode("latin-1")
    if "#" in raw:
        raise Malformed("an unescaped # ends a URL; write it as %23: filter=home/%23")
    if not raw or not request.scope["path"].startswith("/v1/"):
        return
    path = request.scope["route"].path_format
    said = request.app.openapi()["paths"][path][request.method.lower()]  # as /docs has it
    known = {one["name"] for one in said.get("parameters", ()) if one["in"] == "query"}
    for name in request.query_params:
        if name not in known:
            near = get_close_matches(name, known, 1)
            hint = f"did you mean {near[0]}?" if near else f"it has {', '.join(sorted(known)) or 'none'}"
            raise Malformed(f'{path} has no parameter "{name[:80]}"; {hint}')
    if "filter" in known:
        _check_filter(request.query_params.get("filter"), raw)


def _check_filter(filter: str | None, raw: str) -> None:
    """A client leaves out what follows a #, and a + is a space: then a filter comes that nobody meant."""
    written = next((part for part in raw.split("&") if part.startswith("filter=")), "")
    if filter == "" or written.endswith("/"):
        raise Malformed(f'filter is "{filter}": an unescaped # ends a URL; write it as %23, and / at the end as %2F')
    if filter is not None and "+" in written and " " in filter.split("/"):
        raise Malformed(f'filter is "{filter}": an unescaped + is a space; write it as %2B')


async def _broker(request: Request, caller: Asking) -> Admin:
    admin: Admin = request.app.state.admin
    return admin.acting_for(caller.name, caller.check_sight)


Broker = Annotated[Admin, Depends(_broker)]
"""The broker, asked for the caller: the audit names them."""


def _in_calendar(moment: datetime) -> datetime:
    if not EPOCH <= moment <= CALENDAR_END:
        raise ValueError("a moment is from 1970 to 9999")
    return moment


Moment = Annotated[AwareDatetime, AfterValidator(_in_calendar)]
Limit = Annotated[int, Query(ge=1, le=PAGE_MAX, description="How many at most.")]
Topic = Annotated[str, Path(description="A topic: home/kitchen/temp, or with its slashes as %2F.")]
Id = Annotated[str, Path(description="One segment of the path: percent-encode what is in it, as / is %2F.")]


class Body(BaseModel):
    """What is sent: unknown members are refused, as they are misspelt ones."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


def example(**members: Any) -> ConfigDict:
    """What /docs shows of a body, to try it with."""
    return ConfigDict(json_schema_extra={"examples": [members]})


def shown_time(time_us: int) -> datetime | None:
    """A moment as it is shown; None for none."""
    return to_datetime(time_us) if time_us else None


ShownTime = Annotated[datetime | None, BeforeValidator(shown_time)]
"""Of microseconds, 0 for none."""


def shown(model: type[M], found: object) -> M:
    """What the broker answered, as the API shows it: the attributes that a model names."""
    return model.model_validate(found, from_attributes=True)


def page(found: Sequence[T], key: Callable[[T], Any], after: Any | None, limit: int) -> tuple[list[T], Any | None]:
    """So many of a sorted list after a key, and the key after which the next page begins, if there is one."""
    left = list(found) if after is None else [one for one in found if key(one) > after]
    return left[:limit], key(left[limit - 1]) if len(left) > limit else None


def cut(found: Sequence[T], limit: int) -> tuple[Sequence[T], T | None]:
    """So many of what was asked for with a limit of one more; and the last of them, if there may be others after it: a
    page of the wire that is large has fewer."""
    rows = found[:limit]
    is_more = len(found) > limit or sum(map(carried, found)) >= PAGE_BYTES
    return rows, rows[-1] if is_more else None


async def or_none(asked: Awaitable[T], *errors: type[Exception]) -> T | None:
    """What was asked for, or None where that fails in one of these ways."""
    try:
        return await asked
    except errors:
        return None
