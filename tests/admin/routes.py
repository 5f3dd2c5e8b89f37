"""Every route of the API, as it says itself, and as the table in docs/reference/http.md."""

from __future__ import annotations

from typing import Any

from headwater.admin.api.app import make_app
from headwater.admin.client import Admin
from headwater.serving.outside import Outside


class _NoBus:
    """Stands where the bus would: what the API says of itself needs none."""

    ask = None


OPENAPI: dict[str, Any] = make_app(Admin(_NoBus()), Outside(url="")).openapi()

ROUTES: list[tuple[str, str, str]] = [
    (method, path, said["x-role"])
    for path, methods in OPENAPI["paths"].items()
    for method, said in methods.items()
    if "x-role" in said
]
"""Method, path and role."""


def table() -> str:
    """The table in docs/reference/http.md."""
    rows = [
        f"| `{method.upper()} {path}` | {_begun(said['summary'])} | {said.get('x-role', '–')} |\n"
        for path, methods in OPENAPI["paths"].items()
        for method, said in methods.items()
    ]
    return "| | | role |\n|---|---|---|\n" + "".join(rows)


def _begun(sentence: str) -> str:
    return sentence[0].lower() + sentence[1:]
