"""A connection to NATS servers, in a thread with a loop of its own, for callers in any thread.

Promises: it reconnects for ever, to whichever server is there; what is asked for while there is none raises
`Unavailable`; nothing waits longer than it was told to.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import ssl
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, TypeVar, cast
from urllib.parse import urlsplit

import msgspec

from headwater import threads
from headwater.config import Clustering
from headwater.errors import Incompatible, Malformed, Unavailable
from headwater.server.log import Log

CONNECT_S = 5.0
"""How long a node that starts waits for a server."""
RECONNECT_S = 0.25
PING_S = 2
"""How often a silent server is asked whether it is there; after two times without an answer another is tried."""
LOOK_S = 1.0
"""How often it is looked whether a server that is silent keeps it from trying another."""
END_S = 1.0
"""How long what is under way may take to end when the connection is closed."""
PENDING_BYTES = 16 << 20
"""What may wait to be sent to a server."""
TROUBLES_KEPT = 16
NO_STREAM = 10059
NO_MESSAGE = 10037
WRONG_LAST = frozenset((10071, 10164))
"""What the engine's refusals are called: the stream's last sequence, or the row's, is not the expected one."""

T = TypeVar("T")
log = Log("headwater.cluster.nats")


class ApiError(msgspec.Struct):
    """What is wrong, as the engine says it."""

    code: int = 0
    err_code: int = 0
    description: str = ""


class EngineAnswer(msgspec.Struct):
    """Of any answer of the engine, what is looked at."""

    error: ApiError | None = None
    seq: int = 0
    ts: str = ""
    state: dict[str, Any] = {}
    message: dict[str, Any] = {}
    name: str = ""
    config: dict[str, Any] = {}
    cluster: dict[str, Any] = {}


_answers = msgspec.json.Decoder(EngineAnswer)


class Rejected(Exception):
    """The engine answered that it will not."""

    def __init__(self, error: ApiError) -> None:
        super().__init__(f"{error.description} ({error.err_code})")
        self.error = error


class NatsConnection:
    """One connection."""

    def __init__(self, settings: Clustering, name: str) -> None:
        try:
            import nats
        except ImportError:
            raise Incompatible(
                "a cluster needs what comes with headwater[cluster]; pip install 'headwater[cluster]'"
            ) from None
        self._nats = nats
        self._settings = settings
        self._name = name
        self._is_closed = False
        self._troubles: deque[str] = deque(maxlen=TROUBLES_KEPT)
        """What has gone wrong since there was a server: each is told once, however often it is tried."""
        self.loop = _new_loop()
        self._thread = threads.Thread(target=self._run, name="headwater-nats", daemon=True)
        self._thread.start()
        self.client: Any = None
        options = self._options()
        try:
            self.call(self._connect(options), CONNECT_S + 1)
        except BaseException:
            self.close()
            raise

    def _options(self) -> dict[str, Any]:
        settings = self._settings
        options: dict[str, Any] = {}
        if settings.nats_credentials:
            options["user_credentials"] = settings.nats_credentials
        if settings.nats_ca or settings.nats_certificate or any(url.startswith("tls:") for url in settings.cluster):
            try:
                context = ssl.create_default_context(cafile=settings.nats_ca or None)
                if settings.nats_certificate:
                    context.load_cert_chain(settings.nats_certificate, settings.nats_key)
            except (OSError, ssl.SSLError) as error:
                raise Malformed(f"nats_ca, nats_certificate or nats_key cannot be used: {error}") from None
            options["tls"] = context
        return options

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
        finally:
            tasks = asyncio.all_tasks(self.loop)
            for task in tasks:
                task.cancel()
            if tasks:
                self.loop.run_until_complete(asyncio.wait(tasks, timeout=END_S))
            self.loop.close()

    async def _connect(self, options: Mapping[str, Any]) -> None:
        # Ours, so that what the library itself logs of each failed attempt is one line of ours.
        logging.getLogger("nats").setLevel(logging.CRITICAL)
        client = self._nats.NATS()
        try:
            async with asyncio.timeout(CONNECT_S):
                await client.connect(
                    servers=list(self._settings.cluster),
                    name=f"headwater {self._name}",
                    error_cb=self._on_error,
                    disconnected_cb=self._on_disconnected,
                    reconnected_cb=self._on_reconnected,
                    connect_timeout=2,
                    reconnect_time_wait=RECONNECT_S,
                    max_reconnect_attempts=-1,
                    ping_interval=PING_S,
                    max_outstanding_pings=2,
                    pending_size=PENDING_BYTES,
                    **options,
                )
        except TimeoutError:
            raise self._unreached("; ".join(self._troubles) or "none of them answers") from None
        except (OSError, self._nats.errors.Error) as error:
            raise self._unreached(str(error) or type(error).__name__) from None
        self.client = client
        self._watching = asyncio.get_running_loop().create_task(self._watch())

    async def _watch(self) -> None:
        """Before the library tries another server, it waits until the one that is silent has taken all that was sent:
        as long as that stands still, or until TCP gives up, if its machine is gone."""
        while True:
            await asyncio.sleep(LOOK_S)
            transport = self._transport()
            if self.client.is_reconnecting and transport is not None and transport.is_closing():
                transport.abort()

    def _transport(self) -> asyncio.Transport | None:
        """What the library sends by, or has sent by before."""
        writer = getattr(getattr(self.client, "_transport", None), "_io_writer", None)
        return cast("asyncio.Transport", writer.transport) if writer is not None else None

    def _unreached(self, why: str) -> Unavailable:
        where = ", ".join(urlsplit(url).netloc.rpartition("@")[2] for url in self._settings.cluster)
        return Unavailable(f"no NATS server can be used at {where}: {why}; start them, or name others with --cluster")

    async def _on_error(self, error: Exception) -> None:
        transport = self._transport()
        if transport is not None and self.client.is_reconnecting:
            transport.abort()  # of a try that failed: the library forgets it as it is
        why = str(error) or type(error).__name__
        if why not in self._troubles:
            self._troubles.append(why)
            if self.client is not None:  # else whoever wants the connection is told
                log.info("nats-error", reason=why)

    async def _on_disconnected(self) -> None:
        if not self._is_closed:
            log.warning("nats-disconnected", advice="it connects again by itself; see whether the NATS servers are up")

    async def _on_reconnected(self) -> None:
        self._troubles.clear()
        log.info("nats-reconnected", server=self.server)

    @property
    def server(self) -> str:
        """The address of the server that it is connected to."""
        url = self.client.connected_url
        return "" if url is None else str(url.netloc).rpartition("@")[2]

    @property
    def is_connected(self) -> bool:
        """Whether there is a server at the moment."""
        return self.client is not None and bool(self.client.is_connected)

    def call(self, work: Coroutine[Any, Any, T], timeout_s: float) -> T:
        """What a coroutine on the connection's loop answers; `Unavailable` if it takes too long."""
        if self._is_closed:
            work.close()
            raise Unavailable("the connection to the NATS servers is closed")
        future = asyncio.run_coroutine_threadsafe(work, self.loop)
        try:
            return future.result(timeout_s)
        except (TimeoutError, concurrent.futures.CancelledError):
            future.cancel()
            raise Unavailable("the NATS servers did not answer in time") from None

    def soon(self, call: Callable[..., object], *arguments: object) -> None:
        """Have something called on the connection's loop; nothing of it if that is closed."""
        try:
            self.loop.call_soon_threadsafe(call, *arguments)
        except RuntimeError:
            return

    async def request(self, subject: str, data: bytes, timeout_s: float, headers: dict[str, str] | None = None) -> Any:
        """A message that answers; `Unavailable` if there is none."""
        errors = self._nats.errors
        try:
            return await self.client.request(subject, data, timeout=timeout_s, headers=headers)
        except errors.NoRespondersError:
            raise Unavailable("nobody answers there: JetStream is off, without a leader, or it is starting") from None
        except (TimeoutError, errors.TimeoutError):
            raise Unavailable("the NATS servers did not answer in time") from None
        except (OSError, errors.Error) as error:
            raise Unavailable(f"the NATS servers cannot be asked: {error or type(error).__name__}") from None

    async def api(self, verb: str, asked: object, timeout_s: float) -> EngineAnswer:
        """An answer of JetStream's API; raises `Rejected` or `Unavailable`."""
        message = await self.request(f"$JS.API.{verb}", msgspec.json.encode(asked) if asked else b"", timeout_s)
        return self.opened(message.data)

    @staticmethod
    def opened(data: bytes) -> EngineAnswer:
        """An answer, unless it says that there is none."""
        try:
            answer = _answers.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError):
            raise Unavailable(f"the NATS servers answered what is no answer: {data[:80]!r}") from None
        if answer.error is None:
            return answer
        if answer.error.code >= 500 and answer.error.err_code not in WRONG_LAST:
            raise Unavailable(f"the NATS servers cannot at the moment: {answer.error.description}")
        raise Rejected(answer.error)

    def close(self) -> None:
        """Let go of it."""
        if self._is_closed:
            return
        self._is_closed = True
        if self.client is not None:
            future = asyncio.run_coroutine_threadsafe(self.client.close(), self.loop)
            try:
                future.result(CONNECT_S)
            except (OSError, TimeoutError, concurrent.futures.CancelledError, self._nats.errors.Error):
                log.info("nats-not-closed")
        self.soon(self.loop.stop)
        self._thread.join(CONNECT_S)


def _new_loop() -> asyncio.AbstractEventLoop:
    """uvloop's, where it is installed: each record takes several turns of it."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return cast("asyncio.AbstractEventLoop", uvloop.new_event_loop())
