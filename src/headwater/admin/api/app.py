"""The application: the API, metrics, health and the dashboard, behind one port and one guard."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI, HTTPException, Request
from fastapi.openapi.utils import get_openapi
from fastapi_offline import FastAPIOffline
from starlette.routing import Match, Route

from headwater import __version__
from headwater.admin import tunnel
from headwater.admin.api import (
    channels,
    clients,
    config,
    dead_letters,
    figures,
    health,
    messages,
    pipelines,
    problem,
    rules,
    schedules,
    schemas,
    search,
    sessions,
    sql,
    subscriptions,
    tokens,
    topics,
)
from headwater.admin.api.following import Followers
from headwater.admin.api.growth import Growth
from headwater.admin.client import Admin
from headwater.admin.dashboard import mount
from headwater.admin.gate import Gate
from headwater.admin.guard import Guard
from headwater.admin.query.queries import Queries
from headwater.admin.search.searches import Searches
from headwater.serving.outside import Outside

NOUNS = (
    messages,
    search,
    sql,
    schedules,
    schemas,
    topics,
    dead_letters,  # before subscriptions, whose paths they extend
    subscriptions,
    sessions,
    channels,
    clients,
    rules,
    tokens,
    pipelines,
    config,
    figures,
    health,
)
OURS = ("/v1/{rest:path}", "/healthz", "/readyz", "/metrics")
"""Where the API answers, even if it has nothing there."""
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE")
DESCRIPTION = """
Look after a Headwater broker, publish to it, and read it.

Send a token as `Authorization: Bearer TOKEN`; a broker without authentication asks those on its own machine for none.
Each route names the role that it takes as `x-role`: **reader** looks, **operator** also publishes and looks after what
is there, **admin** may do everything. Errors are `application/problem+json` (RFC 9457). An id in a path is one segment:
percent-encode it.
"""
TAGS = {
    "messages": "Publish, read history in pages, follow what is new.",
    "schedules": "Messages that are published again and again.",
    "schemas": "What the payloads of topics have to be.",
    "topics": "The tree, level by level, with counts, rates and retained values.",
    "subscriptions": "Durable ones: where they are, what they have in hand.",
    "dead letters": "What subscriptions gave up on.",
    "sessions": "Who is here, and who may come back.",
    "channels": "Where messages are pushed to.",
    "clients": "Who may come in.",
    "rules": "Who may do what.",
    "tokens": "What opens this API.",
    "pipelines": "How far each root is archived.",
    "config": "How the server is set up, and what happened lately.",
    "figures": "How much of everything there is and was.",
    "health": "For those who watch the process.",
}


def make_app(admin: Admin, outside: Outside) -> FastAPI:
    """The application of one broker."""
    app = FastAPIOffline(
        redoc_url=None,
        static_url="/docs-files",
        title="Headwater",
        version=__version__,
        description=DESCRIPTION,
        debug=False,
        redirect_slashes=False,
        openapi_tags=[{"name": name, "description": text} for name, text in TAGS.items()],
    )
    app.state.admin = admin
    app.state.outside = outside
    app.state.gate = Gate(admin, outside)
    app.state.followers = Followers(app.state.gate, outside.followers_max, outside.followers_per_client_max)
    app.state.searches = Searches(outside)
    app.state.queries = Queries(outside)
    app.state.growth = Growth()
    problem.install(app)
    app.add_middleware(Guard, gate=app.state.gate, outside=outside)
    for noun in NOUNS:
        app.include_router(noun.router)
    app.include_router(tunnel.router)
    for path in OURS:
        app.add_api_route(path, _elsewhere, methods=list(METHODS), include_in_schema=False)
    app.openapi = lambda: _described(app)  # type: ignore[method-assign]  # as FastAPI's manual has it
    mount(app, admin, app.state.gate, app.state.growth, app.state.searches, app.state.queries)
    return app


async def _elsewhere(request: Request) -> None:
    """What is no route of the API is a problem, whatever else is mounted on the application."""
    routes = (route for noun in NOUNS for route in noun.router.routes if isinstance(route, Route))
    found = [route for route in routes if route.matches(request.scope)[0] is Match.PARTIAL]
    allowed = sorted({method for route in found for method in route.methods or ()})
    if allowed:
        raise HTTPException(405, headers={"Allow": ", ".join(allowed)})
    raise HTTPException(404)


def _described(app: FastAPI) -> dict[str, Any]:
    """What /openapi.json says: every route may answer with a problem."""
    if app.openapi_schema is None:
        described = get_openapi(
            title=app.title, version=app.version, description=app.description, routes=app.routes, tags=app.openapi_tags
        )
        problem.describe(described)
        app.openapi_schema = described
    return app.openapi_schema
