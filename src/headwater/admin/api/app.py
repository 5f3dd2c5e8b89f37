"""The application: the API, metrics, health and the dashboard, behind one port and one guard."""

from __future__ import annotations

from fastapi import FastAPI

from headwater import __version__
from headwater.admin.api import problem
from headwater.admin.client import Admin
from headwater.admin.dashboard import mount
from headwater.admin.gate import Gate
from headwater.admin.guard import Guard
from headwater.admin.settings import Outside


def make_app(admin: Admin, outside: Outside) -> FastAPI:
    """The application of one broker."""
    app = FastAPI(title="Headwater", version=__version__, debug=False)
    app.state.admin = admin
    app.state.outside = outside
    app.state.gate = Gate(admin, outside)
    problem.install(app)
    app.add_middleware(Guard, gate=app.state.gate, outside=outside)

    @app.get("/healthz")
    async def healthz() -> dict[str, bool]:
        """Whether this process runs and reaches the broker."""
        await admin.bus.ends()
        return {"ok": True}

    mount(app, admin, app.state.gate)
    return app
