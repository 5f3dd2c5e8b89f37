"""/healthz and /readyz: whether the process lives, and whether the broker can do its work.

Both need no token, as those who ask them have none; what ails a broker is told to readers alone.
"""

from __future__ import annotations

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel

from headwater.admin.client import Admin
from headwater.admin.gate import Gate
from headwater.errors import QuotaExceeded, Unauthenticated

router = APIRouter(tags=["health"])
VITAL = ("state",)
"""What /healthz tells of: without it whatever clients say is not kept, though they are served."""


class Alive(BaseModel):
    """Whether it lives, and keeps what it is told."""

    ok: bool
    ailing: list[str] | None = None
    """Checks of /readyz for which it is not so."""


class Check(BaseModel):
    """One of the things that must be well."""

    name: str
    ok: bool
    detail: str | None = None


class Readiness(BaseModel):
    """Whether the broker can do its work."""

    ok: bool
    role: str | None = None
    """Of a node of a cluster: leading, following or joining."""
    checks: list[Check]


@router.get(
    "/healthz",
    response_model_exclude_none=True,
    responses={503: {"model": Alive, "description": "Acks and changes are not stored, or the broker does not answer."}},
    summary="Say whether this process lives, reaches the broker, and what it is told is kept",
)
async def healthz(request: Request, response: Response) -> Alive:
    """503 if the broker does not answer, or its state takes nothing; a full disk alone is for /readyz to tell."""
    admin: Admin = request.app.state.admin
    ailing = [one.name for one in (await admin.health()).checks if not one.ok and one.name in VITAL]
    response.status_code = 503 if ailing else 200
    return Alive(ok=not ailing, ailing=ailing or None)


@router.get(
    "/readyz",
    response_model_exclude_unset=True,
    responses={503: {"model": Readiness, "description": "It cannot, and why."}},
    summary="Say whether the broker can do its work",
)
async def readyz(request: Request, response: Response) -> Readiness:
    """Disk, streams and state; details with a token."""
    admin: Admin = request.app.state.admin
    gate: Gate = request.app.state.gate
    found = await admin.health()
    try:
        await gate.admit(request)
    except (Unauthenticated, QuotaExceeded):
        is_reader = False
    else:
        is_reader = True
    checks = [Check(name=one.name, ok=one.ok, detail=one.detail if is_reader else None) for one in found.checks]
    response.status_code = 200 if found.ok else 503
    cluster = await admin.cluster()
    if cluster is not None:
        return Readiness(ok=found.ok, role=cluster.role, checks=checks)
    return Readiness(ok=found.ok, checks=checks)
