"""The application: the API, metrics, health and the dashboard, behind one port."""

from __future__ import annotations

from fastapi import FastAPI

from headwater import __version__
from headwater.admin.client import Admin
from headwater.admin.settings import Outside


def make_app(admin: Admin, outside: Outside) -> FastAPI:
    """The application of one broker."""
    app = FastAPI(title="Headwater", version=__version__, debug=False)
    app.state.outside = outside

    @app.get("/healthz")
    async def healthz() -> dict[str, bool]:
        """Whether this process runs and reaches the broker."""
        await admin.bus.ends()
        return {"ok": True}

    return app
