"""The door of the dashboard: every request for a page, and the websocket behind it, comes through here.

- Who is not known sees the log-in page and nothing else; the libraries that browsers load are no secret.
- A page of another site gets neither the websocket nor the log-in: its Origin gives it away.
- Pages load nothing from elsewhere, are shown in no frame, and say so to the browser.
"""

from __future__ import annotations

import html
from collections.abc import Collection
from urllib.parse import parse_qs, quote, urlsplit

from starlette.datastructures import MutableHeaders
from starlette.requests import HTTPConnection, Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Match, Mount
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from headwater.admin.api.problem import of_error
from headwater.admin.dashboard.visits import IDLE_US_MAX, Visits
from headwater.admin.gate import Gate
from headwater.clock import SECOND_US
from headwater.errors import HeadwaterError, NotAllowed, TooLarge

ASSETS = ("/_nicegui/", "/_headwater/", "/favicon.ico")
"""What a browser loads to show any page at all."""
SOCKET = "/_nicegui_ws/"
LOGIN = "/login"
LOGOUT = "/logout"
FORM_BYTES_MAX = 32 * 1024
POLICY = (
    "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data:; font-src 'self' data:; connect-src 'self'; object-src 'none'; base-uri 'none'; "
    "form-action 'self'; frame-ancestors 'none'"
)
"""NiceGUI starts its pages from a script within them, and Vue compiles templates; nothing comes from elsewhere."""
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
}


class Rooms(Mount):
    """Where the dashboard is, among what else the port serves: at its pages, and at what they need."""

    def __init__(self, app: ASGIApp, pages: Collection[str]) -> None:
        super().__init__("/", app)
        self._paths = {*pages, LOGIN, LOGOUT}

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Whether a request is for the dashboard; what is not stays with the API, whose errors it then gets."""
        path = scope.get("path", "")
        if path in self._paths or path.startswith((SOCKET, *ASSETS)):
            return super().matches(scope)
        return Match.NONE, {}


class Door:
    """Stands before the dashboard."""

    def __init__(self, app: ASGIApp, gate: Gate, visits: Visits) -> None:
        self._app = app
        self._gate = gate
        self._visits = visits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let in, turn away, or ask who it is."""
        if scope["type"] not in {"http", "websocket"}:
            await self._app(scope, receive, send)
            return
        connection = HTTPConnection(scope)
        is_socket = scope["type"] == "websocket"
        try:
            answer = await self._answer(connection, scope, receive)
        except HeadwaterError as error:
            answer = of_error(error)
        if answer is None:
            await self._app(scope, receive, send if is_socket else _guarded(send))
        elif is_socket:
            await send({"type": "websocket.close", "code": 1008})
        else:
            answer.headers.update(HEADERS)
            await answer(scope, receive, send)

    async def _answer(self, connection: HTTPConnection, scope: Scope, receive: Receive) -> Response | None:
        """What is answered here; None for what goes on to the dashboard."""
        # Not connection.url: that is made up from the Host header, which whoever asks may choose.
        path, method = scope["path"], scope.get("method", "GET")
        is_talk = path.startswith(SOCKET)
        self._gate.check_site(connection, "POST" if is_talk else method)
        if path.startswith(ASSETS):
            return None
        if path == LOGIN:
            return await self._log_in(Request(scope, receive))
        if path == LOGOUT and method == "POST":
            return self._log_out(connection)
        try:
            scope.setdefault("state", {})["visit"] = await self._visits.find(connection, self._key(connection))
        except HeadwaterError as error:
            if is_talk or error.code != 401:
                raise
            return RedirectResponse(f"{LOGIN}?next={quote(_place(scope), safe='')}", 303)
        return None

    async def _log_in(self, request: Request) -> Response:
        advice = self._gate.first_steps(request)
        if request.method == "GET":
            return HTMLResponse(_form(request.query_params.get("next", "/"), advice))
        if request.method != "POST":
            raise NotAllowed("a log-in is a form that is posted")
        form = await _read_form(request)
        place = _inner(form.get("next", "/"))
        try:
            key = await self._visits.begin(request, form.get("token", "").strip())
        except HeadwaterError as error:
            return HTMLResponse(_form(place, advice, str(error.args[0])), error.code)
        answer = RedirectResponse(place, 303)
        is_https = request.scope["scheme"] == "https"
        answer.set_cookie(
            _cookie(request), key, max_age=IDLE_US_MAX // SECOND_US, httponly=True, samesite="lax", secure=is_https
        )
        return answer

    def _log_out(self, connection: HTTPConnection) -> Response:
        self._visits.end(self._key(connection))
        answer = RedirectResponse(LOGIN, 303)
        answer.delete_cookie(_cookie(connection))
        return answer

    def _key(self, connection: HTTPConnection) -> str | None:
        return connection.cookies.get(_cookie(connection))


def _cookie(connection: HTTPConnection) -> str:
    """Its name: cookies do not tell ports apart, and two brokers may run on a machine."""
    server = connection.scope.get("server")
    return f"headwater-{server[1] if server else 0}"


def _guarded(send: Send) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            MutableHeaders(scope=message).update(HEADERS)
        await send(message)

    return sending


def _place(scope: Scope) -> str:
    query = scope["query_string"].decode("latin-1")
    return f"{scope['path']}?{query}" if query else str(scope["path"])


def _inner(place: str) -> str:
    """A place within this site; its beginning if it is none."""
    parts = urlsplit(place)
    is_inner = place.startswith("/") and not place.startswith("//") and "\\" not in place and place.isprintable()
    return place if is_inner and not parts.scheme and not parts.netloc else "/"


async def _read_form(request: Request) -> dict[str, str]:
    body = b""
    async for piece in request.stream():
        body += piece
        if len(body) > FORM_BYTES_MAX:
            raise TooLarge(f"a log-in of more than {FORM_BYTES_MAX} bytes is none")
    return {name: values[-1] for name, values in parse_qs(body.decode(errors="replace")).items()}


def _form(place: str, advice: tuple[str, str], trouble: str = "") -> str:
    first, another = map(html.escape, advice)
    said = f'<p class="hw-login-trouble" role="alert">{html.escape(trouble)}</p>' if trouble else ""
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>Log in · Headwater</title>
<link rel="icon" href="/_headwater/mark.svg"><link rel="stylesheet" href="/_headwater/login.css">
</head>
<body>
<main>
<img src="/_headwater/mark.svg" alt="" width="44" height="44">
<h1>Headwater</h1>
{said}
<form method="post" action="{LOGIN}">
<input type="hidden" name="next" value="{html.escape(_inner(place), quote=True)}">
<label for="token">Token</label>
<input id="token" name="token" type="password" autocomplete="current-password" required autofocus
 spellcheck="false" placeholder="hwt_…">
<button type="submit">Log in</button>
</form>
<p class="hw-login-advice">No token yet? On the server, as its user: <code>{first}</code> makes the first administrator,
<code>{another}</code> a token for a client.</p>
</main>
</body>
</html>
"""
