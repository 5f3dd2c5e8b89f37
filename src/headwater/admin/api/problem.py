"""Problems: every error that the API answers with, as RFC 9457 has them (application/problem+json).

Besides the members of that document each has `code`, `kind` and `retryable` of the tree in errors.py, and a conflict
has `existing`: what is there already. One of messages that were stored in part has `receipts`.
"""

from __future__ import annotations

import http
import re
from collections.abc import Mapping
from typing import Any

import msgspec
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException
from starlette.responses import Response

from headwater import errors
from headwater.errors import Conflict, HeadwaterError
from headwater.message import Receipt
from headwater.server.log import Log

MEDIA_TYPE = "application/problem+json"
RETRY_AFTER_S = 1
WAIT_S = re.compile(r"try again in ([0-9.]+) s")
KINDS = {
    400: "Malformed",
    401: "Unauthenticated",
    403: "NotAllowed",
    404: "NotFound",
    405: "NotAllowed",
    408: "TimedOut",
    409: "Conflict",
    413: "TooLarge",
    415: "Malformed",
    422: "Malformed",
    429: "QuotaExceeded",
    431: "TooLarge",
    503: "Disconnected",
}
RETRYABLE = frozenset((408, 429, 503, 504))
UNREAD = frozenset((408, 413))
"""Some of the body was not read: nothing after it on the same connection could be."""
DETAIL_CHARS_MAX = 2000

log = Log("headwater.admin.api")


class Problem(BaseModel):
    """What went wrong, and what to do about it."""

    type: str = Field(examples=["urn:headwater:error:NotFound"])
    title: str = Field(examples=["Not Found"])
    status: int = Field(examples=[404])
    detail: str = Field(examples=['there is no subscription "thermostat"; GET /v1/subscriptions lists those that are'])
    code: int = Field(examples=[404], description="Of the error, as in every other client.")
    kind: str = Field(examples=["NotFound"], description="Its class in the tree of errors.")
    retryable: bool = Field(description="Whether the same request may succeed later.")
    existing: Any | None = Field(None, description="Of a conflict: what is there already.")
    receipts: list[Any] | None = Field(
        None, description="Of messages that were stored in part: the receipt of each, null where it was not stored."
    )


class Exists(Conflict):
    """There is one of this id already, which is shown."""

    def __init__(self, text: str, existing: Any) -> None:
        super().__init__(text)
        self.existing = existing


def answer(
    status: int,
    detail: str,
    *,
    kind: str | None = None,
    retryable: bool | None = None,
    headers: Mapping[str, str] | None = None,
    **others: Any,
) -> Response:
    """A problem as an answer."""
    kind = kind or KINDS.get(status, "Failed" if status >= http.HTTPStatus.INTERNAL_SERVER_ERROR else "Malformed")
    body = {
        "type": f"urn:headwater:error:{kind}",
        "title": http.HTTPStatus(status).phrase,
        "status": status,
        "detail": detail[:DETAIL_CHARS_MAX].encode(errors="replace").decode(),
        "code": status,
        "kind": kind,
        "retryable": status in RETRYABLE if retryable is None else retryable,
        **others,
    }
    return Response(msgspec.json.encode(body), status, dict(headers or {}), MEDIA_TYPE)


LISTS = re.compile(r"\bbus\.(subscriptions|schedules|schemas|topics)\(\) lists")
LETTERS = re.compile(r'\bbus\.dead_letters\("(.*?)"\)')


def over_http(sentence: str) -> str:
    """What an error advises, as requests in place of calls in Python."""
    return LETTERS.sub(r"GET /v1/subscriptions/\1/dead-letters", LISTS.sub(r"GET /v1/\1 lists", sentence))


def of_error(error: HeadwaterError) -> Response:
    """An error of the tree as an answer."""
    text = over_http(str(error.args[0])) if error.args else ""
    kind = next(one.__name__ for one in type(error).__mro__ if one.__module__ == errors.__name__)
    others: dict[str, Any] = {"existing": error.existing} if isinstance(error, Exists) else {}
    if isinstance(error, errors.PartlyStored):
        others["receipts"] = [None if one is None else _receipt(one) for one in error.receipts]
    return answer(error.code, text, kind=kind, retryable=error.retryable, headers=_headers(error, text), **others)


def _receipt(one: Receipt) -> dict[str, Any]:
    return {"topic": one.topic, "offset": one.offset, "time": one.time, "duplicate": one.duplicate}


def _headers(error: HeadwaterError, text: str) -> dict[str, str]:
    if error.code == http.HTTPStatus.UNAUTHORIZED:
        return {"WWW-Authenticate": 'Bearer realm="headwater"'}
    if error.code in UNREAD:
        return {"Connection": "close"}
    if error.retryable:
        wait = WAIT_S.search(text)
        return {"Retry-After": str(max(RETRY_AFTER_S, round(float(wait[1]) + 0.5) if wait else RETRY_AFTER_S))}
    return {}


def install(app: FastAPI) -> None:
    """Have every error of an application answered with a problem."""
    app.add_exception_handler(HeadwaterError, _on_error)
    app.add_exception_handler(HTTPException, _on_http)
    app.add_exception_handler(RequestValidationError, _on_invalid)
    app.add_exception_handler(Exception, _on_failure)


async def _on_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, HeadwaterError)
    return of_error(error)


async def _on_http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if isinstance(error.__cause__, HeadwaterError):  # FastAPI met it while it read the body
        return of_error(error.__cause__)
    detail = str(error.detail)
    match error.status_code:
        case http.HTTPStatus.NOT_FOUND:
            detail = f"there is nothing at {request.url.path}; /docs shows what there is"
        case http.HTTPStatus.METHOD_NOT_ALLOWED:
            detail = f"{request.method} is not for {request.url.path}; /docs shows what is"
    return answer(error.status_code, detail, headers=error.headers)


async def _on_invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    said = request.headers.get("content-type", "")
    if not is_json(said) and any(one["loc"] == ("body",) for one in error.errors()):
        # FastAPI takes such a body for a string, and says what a string lacks.
        what = f'says "{said[:80]}"' if said else "is missing"
        detail = f"the body is to be JSON, and its Content-Type {what}; send Content-Type: application/json"
        return answer(http.HTTPStatus.UNPROCESSABLE_ENTITY, detail, kind="Malformed")
    found = dict.fromkeys(_said(one) for one in error.errors())  # of a union each of its kinds says it
    return answer(http.HTTPStatus.UNPROCESSABLE_ENTITY, "; ".join(found), kind="Malformed")


def _said(one: Mapping[str, Any]) -> str:
    """What is wrong with one thing in a request, and what to write instead."""
    where = ".".join(map(str, one["loc"]))
    match one["type"]:
        case "json_invalid":
            return f"the body is no JSON: {one['ctx']['error']}, at character {one['loc'][-1]}"
        case "missing":
            return f"{where} is missing"
        case "extra_forbidden":
            return f"{where}: nothing is called so here; /docs shows what is"
        case kind if kind.startswith(("datetime_", "timezone_")):
            return f"{where} is no moment with a zone; write 2026-01-31T12:00:00Z"
    return f"{where}: {one['msg']}"


def is_json(content_type: str) -> bool:
    """Whether a Content-Type says that a body is JSON."""
    kind = content_type.partition(";")[0].strip().lower()
    return kind == "application/json" or (kind.startswith("application/") and kind.endswith("+json"))


async def _on_failure(request: Request, error: Exception) -> Response:
    log.error("failed", method=request.method, path=request.url.path, error=type(error).__name__)
    return answer(500, "the server failed at this; its log says more", kind="Failed")


def describe(described: dict[str, Any]) -> None:
    """Say in an OpenAPI document that every operation may answer with a problem."""
    components = described.setdefault("components", {}).setdefault("schemas", {})
    components["Problem"] = Problem.model_json_schema(ref_template="#/components/schemas/{model}")
    for unused in ("HTTPValidationError", "ValidationError"):
        components.pop(unused, None)
    content = {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}
    for path in described["paths"].values():
        for operation in path.values():
            operation["responses"].pop("422", None)
            operation["responses"]["default"] = {"description": "What went wrong", "content": content}
