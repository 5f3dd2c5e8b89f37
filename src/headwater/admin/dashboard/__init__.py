"""The dashboard: a broker to look at, in a browser.

It is a client like any other, in the process that serves HTTP, so that no message waits for who looks. Nothing is
loaded from the internet, and nothing is written to disk.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import nicegui
from fastapi import FastAPI
from fastapi.middleware.gzip import GZipMiddleware
from nicegui import core, ui
from starlette.requests import Request
from starlette.routing import Mount

from headwater import __version__
from headwater.admin.api.growth import Growth
from headwater.admin.client import Admin
from headwater.admin.dashboard.audit import Audit
from headwater.admin.dashboard.channels import Channels
from headwater.admin.dashboard.clients import Clients
from headwater.admin.dashboard.cluster import Cluster
from headwater.admin.dashboard.dead_letters import DeadLetters
from headwater.admin.dashboard.door import Door, Rooms
from headwater.admin.dashboard.frame import DARK_COOKIE, Frame
from headwater.admin.dashboard.overview import Overview
from headwater.admin.dashboard.pipelines import Pipelines
from headwater.admin.dashboard.retained import RetainedValues
from headwater.admin.dashboard.sampler import Sampler
from headwater.admin.dashboard.schedules import Schedules
from headwater.admin.dashboard.search import Search
from headwater.admin.dashboard.sessions import Sessions
from headwater.admin.dashboard.settings import Settings
from headwater.admin.dashboard.sql import Sql
from headwater.admin.dashboard.subscriptions import Subscriptions
from headwater.admin.dashboard.topics import Topics
from headwater.admin.dashboard.visits import Visits
from headwater.admin.dashboard.what_if import WhatIf
from headwater.admin.gate import Gate
from headwater.admin.query.queries import Queries
from headwater.admin.search.searches import Searches

STATIC = Path(__file__).parent / "static"
ACCENT = "#07658c"
PAGES: tuple[tuple[str, str, str, Callable[[Frame], object]], ...] = (
    ("/", "Overview", "insights", Overview),
    ("/topics", "Topics", "account_tree", Topics),
    ("/search", "Search", "search", Search),
    ("/sql", "SQL", "table_chart", Sql),
    ("/retained", "Retained", "push_pin", RetainedValues),
    ("/subscriptions", "Subscriptions", "inbox", Subscriptions),
    ("/dead-letters", "Dead letters", "report", DeadLetters),
    ("/schedules", "Schedules", "event_repeat", Schedules),
    ("/channels", "Channels", "outbound", Channels),
    ("/sessions", "Sessions", "devices", Sessions),
    ("/clients", "Clients", "key", Clients),
    ("/pipelines", "Pipelines", "waves", Pipelines),
    ("/what-if", "What if", "science", WhatIf),
    ("/cluster", "Cluster", "hub", Cluster),
    ("/settings", "Settings", "tune", Settings),
    ("/audit", "Audit", "history", Audit),
)
"""Path, label, icon and content of each."""
HEAD = f"""
<link rel="stylesheet" href="/_headwater/style.css?{__version__}">
<script src="/_headwater/dashboard.js?{__version__}" defer></script>
"""
SPLASH = """
<div id="hw-splash"><img src="/_headwater/mark.svg" alt="" width="26" height="26"><span>Headwater</span></div>
"""
"""What is seen until the page stands."""
RECONNECT_S = 10.0
"""How long a page whose connection was lost is kept, so that it goes on where it was."""
HISTORY_MAX = 100
"""Changes that are kept for such a page."""


def mount(app: FastAPI, admin: Admin, gate: Gate, growth: Growth, searches: Searches, queries: Queries) -> None:
    """Put the dashboard of one broker onto an application; once in a process."""
    visits = Visits(gate)
    sampler = Sampler(admin)
    places = [(path, label, icon) for path, label, icon, _ in PAGES]
    contents = {path: content for path, _, _, content in PAGES}

    def show(request: Request) -> None:
        frame = Frame(admin, request.state.visit, sampler, growth, searches, queries)
        ui.add_head_html(HEAD)
        ui.add_body_html(SPLASH)
        frame.build(places, request.url.path, request.cookies.get(DARK_COOKIE, ""))
        ui.sub_pages(dict(contents), data={"frame": frame}).classes("hw-page")

    for path in contents:
        ui.page(path)(show)
    nicegui.app.add_static_files("/_headwater", STATIC, max_cache_age=3600)
    nicegui.app.colors(primary=ACCENT)
    # Whoever may connect is decided at the door; socket.io would let pages of any site in.
    core.sio.eio.cors_allowed_origins = []
    ui.run_with(
        app,
        title="Headwater",
        favicon=STATIC / "mark.svg",
        dark=None,
        binding_refresh_interval=None,
        reconnect_timeout=RECONNECT_S,
        message_history_length=HISTORY_MAX,
        gzip_middleware_factory=lambda inner: GZipMiddleware(inner, minimum_size=1000, compresslevel=4),
        tailwind=False,
        show_welcome_message=False,
    )
    # NiceGUI takes every path that is left; it is to have its own, behind a door.
    assert isinstance(app.router.routes[-1], Mount)
    app.router.routes[-1] = Rooms(Door(nicegui.app, gate, visits), contents)
