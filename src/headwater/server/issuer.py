"""The issuer of tokens: its keys, fetched and kept, and the check of what clients bring.

Keys come from a file or a URL. They are fetched when the server starts, on a timer, on SIGHUP, and when a token names a
key that is not known; never twice at a time, and for a token never sooner after the last time than `jwt_refresh_s_min`.
Promises: nothing is fetched or checked on the loop; a fetch that fails leaves the keys as they were, and is logged; who
floods the server with unknown keys does not flood the issuer, and whoever has a known one does not wait for it.
"""

from __future__ import annotations

import asyncio
import http.client
import socket
import ssl
from collections.abc import Callable
from functools import partial
from math import inf
from typing import TypeVar
from urllib.parse import SplitResult, urlsplit

from headwater import threads
from headwater.access.acl import Acl
from headwater.access.jwks import KEY_SET_BYTES_MAX, KeySet, library, read_keys
from headwater.access.jwt import Bearer, UnknownKey, Verifier
from headwater.clock import Clock
from headwater.config import Serving
from headwater.errors import Failed, HeadwaterError, Malformed, TimedOut, Unauthenticated
from headwater.server.log import Log
from headwater.store.files import DiskFiles

CHECKERS = 2
"""Threads that check signatures."""

Then = Callable[[Bearer | None, HeadwaterError | None], None]
R = TypeVar("R")

log = Log("headwater.server.issuer")


class Issuer:
    """Whoever issues the tokens that are taken here."""

    def __init__(self, loop: asyncio.AbstractEventLoop, serving: Serving, acl: Acl, clock: Clock) -> None:
        self._loop = loop
        self._serving = serving
        self._clock = clock
        self._verifier = Verifier(serving, acl)
        self._keys = KeySet({})
        self._checking = threads.ThreadPoolExecutor(CHECKERS, "headwater-jwt")
        self._fetching = threads.ThreadPoolExecutor(1, "headwater-jwks")
        self._fetch_now: Fetch | None = None
        """The one that is under way."""
        self._fetched_s: float | None = None
        """When the last fetch began."""
        self._has_failed = False
        """Whether it brought nothing, so that a key which is not known may be a good one all the same."""
        self._waiting: list[Callable[[], None]] = []
        """Who waits for the fetch that is under way."""
        self._timer: asyncio.TimerHandle | None = None
        self._is_closed = False

    def start(self) -> None:
        """Have the keys fetched, now and from time to time."""
        self.refresh()

    async def close(self) -> None:
        """Fetch and check nothing more."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        if self._fetch_now is not None:
            self._fetch_now.cut()
        await self._loop.run_in_executor(None, self._fetching.shutdown)
        await self._loop.run_in_executor(None, self._checking.shutdown)

    # Checking

    def check(self, token: str, then: Then, waiting_max: float = inf) -> None:
        """Find out whose token this is: `then` hears of it on the loop. One of an unknown key waits for keys that are
        fetched, unless so many do already."""
        self._check(token, partial(self._on_checked, token, then, waiting_max, self._keys))

    def _check(self, token: str, then: Callable[[Bearer | None, BaseException | None], None]) -> None:
        keys, now_us = self._keys, self._clock.now_us()
        self._do(self._checking, lambda: self._verifier.check(token, keys, now_us), then)

    def _on_checked(
        self,
        token: str,
        then: Then,
        waiting_max: float,
        keys: KeySet,
        found: Bearer | None,
        error: BaseException | None,
    ) -> None:
        last = partial(self._check, token, lambda found, error: then(found, self._told(error)))
        if not isinstance(error, UnknownKey):
            then(found, self._told(error))
        elif keys is not self._keys:  # there are others since
            last()
        elif self._is_due() and len(self._waiting) < waiting_max:
            self._waiting.append(last)
            self._fetch()
        else:
            then(None, self._told(error))

    def _told(self, error: BaseException | None) -> HeadwaterError | None:
        """What whoever brought a token is told is wrong."""
        if isinstance(error, UnknownKey) and (self._has_failed or self._fetch_now is not None):
            # It may be a good one: who brings it is not to take this for the last word.
            return TimedOut("the keys of the token's issuer are not here yet; try again in a while")
        if isinstance(error, UnknownKey):
            return Unauthenticated(error.args[0])
        if error is None or isinstance(error, HeadwaterError):
            return error
        log.error("token-failed", error=repr(error))
        return Failed("the token could not be checked; see the server's log")

    # Keys

    def refresh(self) -> None:
        """Fetch the keys anew, unless that is being done."""
        self._fetch()

    def _is_due(self) -> bool:
        """Whether a token of an unknown key may have the keys fetched, or waits for a fetch that is under way."""
        last_s = self._fetched_s
        return (
            self._fetch_now is not None
            or last_s is None
            or self._loop.time() - last_s >= self._serving.jwt_refresh_s_min
        )

    def _fetch(self) -> None:
        if self._fetch_now is not None or self._is_closed:
            return
        self._fetched_s = self._loop.time()
        if self._timer is not None:
            self._timer.cancel()
        fetch = self._fetch_now = Fetch(self._serving)
        deadline = self._loop.call_later(self._serving.jwt_fetch_s, fetch.cut)
        self._do(self._fetching, fetch.keys, partial(self._on_fetched, deadline))

    def _on_fetched(self, deadline: asyncio.TimerHandle, keys: KeySet | None, error: BaseException | None) -> None:
        deadline.cancel()
        self._fetch_now = None
        self._has_failed = keys is None
        serving = self._serving
        if keys is None:
            reason = error.args[0] if isinstance(error, HeadwaterError) else repr(error)
            log.warning("jwks-kept", reason=reason, source=serving.jwt_keys, kept=len(self._keys))
        elif keys != self._keys:
            self._keys = keys
            log.info("jwks-loaded", source=serving.jwt_keys, keys=len(keys), ids=",".join(keys.ids))
        delay_s = serving.jwt_refresh_s if keys is not None else min(serving.jwt_refresh_s, _patience_s(serving))
        if not self._is_closed:
            self._timer = self._loop.call_later(delay_s, self._fetch)
        waiting, self._waiting = self._waiting, []
        for again in waiting:
            again()

    def _do(
        self,
        pool: threads.ThreadPoolExecutor,
        work: Callable[[], R],
        then: Callable[[R | None, BaseException | None], None],
    ) -> None:
        """Have something done in a thread, then hear of it on the loop."""
        try:
            started = self._loop.run_in_executor(pool, work)
        except RuntimeError as error:  # the threads are gone: the server has ended meanwhile
            then(None, error)
            return
        started.add_done_callback(
            lambda done: then(None, done.exception()) if done.exception() else then(done.result(), None)
        )


def _patience_s(serving: Serving) -> float:
    """How long after a fetch that failed the next is tried."""
    return max(1.0, serving.jwt_refresh_s_min)


# In a thread


def check_keys(serving: Serving) -> None:
    """Malformed (422) if tokens are to be taken and cannot be: what checks them is not installed, or a file of keys is
    wrong. What a URL has is seen when it is fetched."""
    if "jwt" not in serving.methods:
        return
    library()
    if "://" not in serving.jwt_keys:
        try:
            _from_file(serving.jwt_keys)
        except HeadwaterError as error:
            raise Malformed(f'setting jwt_keys, "{serving.jwt_keys}": {error.args[0]}') from None


def _from_file(path: str) -> KeySet:
    try:
        data = DiskFiles().read(path)
    except OSError as error:
        raise Failed(f"it cannot be read: {error.strerror or error}") from None
    return read_keys(data)


class Fetch:
    """One fetch of the keys; whoever waits for it cuts it off when its time is over."""

    def __init__(self, serving: Serving) -> None:
        self._source = serving.jwt_keys
        self._most_s = serving.jwt_fetch_s
        self._line: socket.socket | None = None
        self._is_cut = False

    def keys(self) -> KeySet:
        """The keys as they are now; an error says why they could not be had."""
        return read_keys(self._get()) if "://" in self._source else _from_file(self._source)

    def cut(self) -> None:
        """Give it up: from any thread."""
        self._is_cut = True
        line = self._line
        if line is not None:
            try:
                line.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass  # it has ended by itself

    def _get(self) -> bytes:
        """What the URL has. Redirects are not followed: keys come from where the settings say."""
        parts = urlsplit(self._source)
        connection = _connection(parts, self._most_s)
        try:
            connection.connect()
            self._line = connection.sock
            connection.request("GET", _path(parts), headers={"Accept": "application/json", "Connection": "close"})
            answer = connection.getresponse()
            if answer.status != http.HTTPStatus.OK:
                raise Failed(f"it answered {answer.status}")
            return answer.read(KEY_SET_BYTES_MAX + 1)
        except (OSError, http.client.HTTPException, ValueError) as error:
            if self._is_cut or isinstance(error, TimeoutError):
                raise Failed(f"it did not answer within {self._most_s:g} s (jwt_fetch_s)") from None
            raise Failed(f"it cannot be fetched: {str(error) or type(error).__name__}") from None
        finally:
            self._line = None
            connection.close()


def _connection(parts: SplitResult, most_s: float) -> http.client.HTTPConnection:
    host = parts.hostname or ""
    if parts.scheme == "https":
        return http.client.HTTPSConnection(host, parts.port, timeout=most_s, context=ssl.create_default_context())
    return http.client.HTTPConnection(host, parts.port, timeout=most_s)


def _path(parts: SplitResult) -> str:
    return (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
