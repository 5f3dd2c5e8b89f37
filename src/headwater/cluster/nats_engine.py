"""The engine that a cluster runs on: NATS JetStream.

One stream has the records, on so many servers as `cluster_replicas` says; it drops nothing by itself. What a record is
acked by is on the disks of a quorum only where the servers have `sync_interval: always`. Two buckets have the lease,
whose rows are gone when they are not renewed, and everything else. All reads that decide anything are answered by the
server that leads the stream: others may be behind.
"""

from __future__ import annotations

import asyncio
import base64
import re
from collections import deque
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, NamedTuple

import msgspec

from headwater import threads
from headwater.clock import from_datetime
from headwater.cluster.engine import Acked, Handler, Refused, Row, Seen, StreamLost, Told, Unanswered
from headwater.cluster.nats_connection import NO_MESSAGE, NO_STREAM, WRONG_LAST, NatsConnection, Rejected, log
from headwater.cluster.nats_reader import NatsReader
from headwater.cluster.nats_rows import ASK_S, NatsRows
from headwater.config import Clustering
from headwater.errors import Conflict, HeadwaterError, Malformed, NotFound, Unavailable

ANSWER_S = 2.0
"""How long the first attempt of a publish waits for its answer; each one after longer, up to"""
ANSWER_S_MAX = 10.0
REFUSED_S = 0.2
"""How long a publish that the engine could not take is left before it is sent again; longer with each attempt."""
HEADERS_BYTES = 256
"""Of a message, beside its data."""
LEASE = "leader"
HANDLERS = 4
"""Threads that answer other nodes."""
ERROR, CODE = "Headwater-Error", "Headwater-Code"
REFUSALS: dict[str, type[HeadwaterError]] = {str(kind.code): kind for kind in (Conflict, NotFound, Malformed)}
"""What another node's refusal is here, by its code; everything else is `Unavailable`."""
NOBODY = "503"
"""What a server says where nobody listens."""
SERVERS = "$SYS.REQ.SERVER.PING.JSZ"
"""Where servers are asked about their JetStream."""
SERVERS_S = 0.5
SERVERS_MAX = 64
WRONG_SEQUENCE = re.compile(r"wrong last sequence: (\d+)")


class ServerConfig(msgspec.Struct, frozen=True):
    """Of a server's JetStream, what is looked at."""

    sync_always: bool = False


class ServerName(msgspec.Struct, frozen=True):
    """Which server it is."""

    name: str = ""


class ServerData(msgspec.Struct, frozen=True):
    """Whether it has JetStream at all."""

    config: ServerConfig | None = None


class ServerTold(msgspec.Struct, frozen=True):
    """What a server says of itself, to accounts that are let ask."""

    server: ServerName = ServerName()
    data: ServerData = ServerData()


class Waiting(NamedTuple):
    """A publish that has no answer yet."""

    told: Callable[[Told], None]
    attempt: int
    timer: asyncio.TimerHandle


class NatsEngine:
    """A node's engine."""

    def __init__(self, settings: Clustering, node: str = "") -> None:
        """Connect; raises `Unavailable` if there is no server."""
        self._settings = settings
        self._stream = f"HW-{settings.bus}"
        self._subject = f"hw.{settings.bus}.log"
        self._connection = connection = NatsConnection(settings, node)
        replicas = settings.cluster_replicas
        self._leases = NatsRows(connection, f"HW-{settings.bus}-lease", replicas, settings.lease_s)
        self._rows = NatsRows(connection, f"HW-{settings.bus}", replicas)
        self._lock = threads.Lock()
        self._outgoing: deque[tuple[int, bytes, int, Callable[[Told], None]]] = deque()
        self._is_woken = self._is_over = False
        self._waiting: dict[int, Waiting] = {}
        self._token = 0
        self._handlers: threads.ThreadPoolExecutor | None = None
        try:
            connection.call(self._begin(), 3 * ASK_S)
        except BaseException:
            connection.close()
            raise

    async def _begin(self) -> None:
        client = self._connection.client
        self._inbox = client.new_inbox()
        self._wake = asyncio.Event()
        await client.subscribe(f"{self._inbox}.*", cb=self._answered, pending_msgs_limit=-1)
        self._sender = asyncio.get_running_loop().create_task(self._send())

    def open_rows(self) -> None:
        """Make the buckets, unless they are there."""
        self._connection.call(self._leases.make(), 4 * ASK_S)
        self._connection.call(self._rows.make(), 4 * ASK_S)

    @property
    def server(self) -> str:
        """The address of the NATS server that this node is connected to."""
        return self._connection.server

    @property
    def part_bytes_max(self) -> int:
        return int(self._connection.client.max_payload) - HEADERS_BYTES

    # Publishing

    def publish(self, after: int, data: bytes, attempt: int, told: Callable[[Told], None]) -> None:
        with self._lock:
            self._outgoing.append((after, data, attempt, told))
            if self._is_woken:
                return
            self._is_woken = True
        self._connection.soon(self._wake.set)

    async def _send(self) -> None:
        while not self._is_over:  # the library may swallow that it is cancelled
            await self._wake.wait()
            self._wake.clear()
            with self._lock:
                going, self._outgoing = self._outgoing, deque()
                self._is_woken = False
            for after, data, attempt, told in going:
                await self._send_one(after, data, attempt, told)

    async def _send_one(self, after: int, data: bytes, attempt: int, told: Callable[[Told], None]) -> None:
        client = self._connection.client
        self._token += 1
        token = self._token
        delay_s = min(ANSWER_S * attempt, ANSWER_S_MAX)
        timer = self._connection.loop.call_later(delay_s, self._silent, token)
        self._waiting[token] = Waiting(told, attempt, timer)
        if not self._connection.is_connected:
            return  # and not kept for when it is: it will be sent again then
        headers = {"Nats-Expected-Last-Sequence": str(after)}
        try:
            await client.publish(self._subject, data, reply=f"{self._inbox}.{token}", headers=headers)
        except Exception as error:  # whatever the library raises, the record is tried again
            log.info("nats-not-sent", reason=error)

    def _silent(self, token: int, why: str = "the NATS servers did not answer in time") -> None:
        waiting = self._waiting.pop(token, None)
        if waiting is not None:
            waiting.told(Unanswered(why))

    async def _answered(self, message: Any) -> None:
        token = int(message.subject.rpartition(".")[2])
        waiting = self._waiting.get(token)
        if waiting is None:
            return  # too late
        told = self._judged(message)
        waiting.timer.cancel()
        if isinstance(told, Unanswered):
            delay_s = min(REFUSED_S * waiting.attempt, ANSWER_S_MAX)
            timer = self._connection.loop.call_later(delay_s, self._silent, token, told.why)
            self._waiting[token] = waiting._replace(timer=timer)
            return
        del self._waiting[token]
        waiting.told(told)

    def _judged(self, message: Any) -> Told:
        if not message.data:
            return Unanswered("JetStream has no leader for the stream")
        try:
            answer = self._connection.opened(message.data)
        except Unavailable as error:
            return Unanswered(str(error.args[0]))
        except Rejected as error:
            if error.error.err_code in WRONG_LAST:
                found = WRONG_SEQUENCE.search(error.error.description)
                return Refused(int(found[1]) if found else None)
            return Unanswered(str(error))
        return Acked(answer.seq)

    # The stream

    def look(self, sequence: int, told: Callable[[Seen | None], None]) -> None:
        async def look() -> None:
            try:
                told(await self._look(sequence))
            except HeadwaterError:
                await asyncio.sleep(REFUSED_S)
                told(None)

        # The task is kept alive by its future.
        asyncio.run_coroutine_threadsafe(look(), self._connection.loop)

    async def _look(self, sequence: int) -> Seen:
        data: bytes | None = None
        try:
            found = await self._connection.api(f"STREAM.MSG.GET.{self._stream}", {"seq": sequence}, ASK_S)
            data = base64.b64decode(found.message.get("data", ""))
        except Rejected as error:
            if error.error.err_code != NO_MESSAGE:
                raise Unavailable(f"the NATS servers refuse to read {self._stream}: {error}") from None
        return Seen(data, *await self._bounds())

    async def _info(self) -> Any:
        try:
            return await self._connection.api(f"STREAM.INFO.{self._stream}", None, ASK_S)
        except Rejected as error:
            if error.error.err_code == NO_STREAM:
                raise StreamLost(f'the NATS servers have no stream "{self._stream}"') from None
            raise Unavailable(f"the NATS servers refuse to show {self._stream}: {error}") from None

    async def _bounds(self) -> tuple[int, int]:
        state = (await self._info()).state
        return int(state["first_seq"]), int(state["last_seq"])

    def bounds(self) -> tuple[int, int]:
        return self._connection.call(self._bounds(), 2 * ASK_S)

    def extent(self) -> tuple[int, int, int]:
        state = self._connection.call(self._info(), 2 * ASK_S).state
        return int(state["first_seq"]), int(state["last_seq"]), int(state["bytes"])

    def stream_leader(self) -> str:
        """The name of the NATS server that leads the stream; empty if none does."""
        return str(self._connection.call(self._info(), 2 * ASK_S).cluster.get("leader", ""))

    def time_us(self) -> int:
        said = self._connection.call(self._info(), 2 * ASK_S).ts
        try:
            return from_datetime(datetime.fromisoformat(said))
        except ValueError:
            raise Unavailable(f'the NATS servers tell no time: "{said}"') from None

    def make(self, first: int = 1) -> None:
        wanted = {
            "name": self._stream,
            "subjects": [self._subject],
            "retention": "limits",
            "storage": "file",
            "num_replicas": self._settings.cluster_replicas,
            "discard": "new",
            "allow_direct": True,
            "deny_delete": True,
            "first_seq": first,
            "metadata": {"headwater": self._settings.bus},
        }
        try:
            self._connection.call(self._connection.api(f"STREAM.CREATE.{self._stream}", wanted, 2 * ASK_S), 4 * ASK_S)
        except Rejected as error:
            raise Malformed(
                f'the NATS servers refuse to make the stream "{self._stream}": {error.error.description}; '
                f"cluster_replicas is {self._settings.cluster_replicas}"
            ) from None

    def unmake(self) -> None:
        try:
            self._connection.call(self._connection.api(f"STREAM.DELETE.{self._stream}", None, 2 * ASK_S), 4 * ASK_S)
        except Rejected as error:
            if error.error.err_code != NO_STREAM:
                raise Unavailable(f"the NATS servers refuse to delete {self._stream}: {error}") from None

    def read(self, after: int) -> NatsReader:
        return NatsReader(self._connection, self._stream, after)

    def trim(self, upto: int) -> None:
        asked = {"seq": upto + 1}
        try:
            self._connection.call(self._connection.api(f"STREAM.PURGE.{self._stream}", asked, 2 * ASK_S), 4 * ASK_S)
        except Rejected as error:
            raise Unavailable(f"the NATS servers refuse to trim {self._stream}: {error}") from None

    def unsynced(self) -> list[str]:
        try:
            told = self._connection.call(self._gather(SERVERS, b"", SERVERS_S, SERVERS_MAX), SERVERS_S + 1)
            found = [msgspec.json.decode(data, type=ServerTold) for data in told]
        except (Unavailable, msgspec.MsgspecError) as error:
            log.info("servers-not-asked", reason=error.args[0])
            return []
        return sorted(one.server.name for one in found if one.data.config and not one.data.config.sync_always)

    # Other nodes

    def ask(self, node: str, verb: str, data: bytes, timeout_s: float) -> bytes:
        subject = f"hw.{self._settings.bus}.node.{node}.{verb}"
        try:
            answer = self._connection.call(self._connection.request(subject, data, timeout_s), timeout_s + 1)
        except Unavailable as error:
            raise Unavailable(f'node "{node}" does not answer: {error.args[0]}') from None
        headers = answer.headers or {}
        said = headers.get(ERROR)
        if said is not None:
            kind = REFUSALS.get(headers.get(CODE, ""), Unavailable)
            raise kind(f'node "{node}" answers: {said}')
        return bytes(answer.data)

    def ask_all(self, verb: str, data: bytes, timeout_s: float, enough: int) -> list[bytes]:
        subject = f"hw.{self._settings.bus}.nodes.{verb}"
        return self._connection.call(self._gather(subject, data, timeout_s, enough), timeout_s + 1)

    async def _gather(self, subject: str, data: bytes, timeout_s: float, enough: int) -> list[bytes]:
        """What all answer who listen there."""
        client = self._connection.client
        found: list[bytes] = []
        is_enough = asyncio.Event()

        async def heard(message: Any) -> None:
            headers = message.headers or {}
            is_nobody = headers.get("Status") == NOBODY
            if ERROR not in headers and not is_nobody:
                found.append(bytes(message.data))
            if is_nobody or len(found) >= enough:
                is_enough.set()

        inbox = client.new_inbox()
        listening = await client.subscribe(inbox, cb=heard)
        try:
            await client.publish(subject, data, reply=inbox)
            await asyncio.wait_for(is_enough.wait(), timeout_s)
        except TimeoutError:
            pass
        except Exception as error:  # whatever the library raises, nobody is there
            raise Unavailable(f"the NATS servers cannot be asked: {str(error) or type(error).__name__}") from None
        finally:
            await listening.unsubscribe()
        return found

    def answer(self, node: str, handlers: Mapping[str, Handler]) -> None:
        pool = self._handlers = self._handlers or threads.ThreadPoolExecutor(HANDLERS, "headwater-node")
        loop = self._connection.loop
        asked: set[asyncio.Task[None]] = set()

        async def respond(message: Any, handler: Handler) -> None:
            headers = None
            try:
                said = await loop.run_in_executor(pool, handler, message.data)
            except HeadwaterError as error:
                said, headers = b"", {ERROR: one_line(str(error.args[0])), CODE: str(error.code)}
            except Exception as error:  # a handler that fails fails one question
                log.error("node-question-failed")
                said, headers = b"", {ERROR: one_line(f"{type(error).__name__}: {error}")}
            if message.reply:
                await self._connection.client.publish(message.reply, said, headers=headers)

        async def heard(message: Any) -> None:
            handler = handlers.get(message.subject.rpartition(".")[2])
            if handler is not None:
                task = loop.create_task(respond(message, handler))
                asked.add(task)
                task.add_done_callback(asked.discard)

        async def listen() -> None:
            await self._connection.client.subscribe(f"hw.{self._settings.bus}.node.{node}.*", cb=heard)
            await self._connection.client.subscribe(f"hw.{self._settings.bus}.nodes.*", cb=heard)
            await self._connection.client.flush()

        self._connection.call(listen(), ASK_S)

    # Rows

    def take_lease(self, value: bytes) -> int | None:
        return self._connection.call(self._leases.create(LEASE, value), 3 * ASK_S)

    def renew_lease(self, value: bytes, revision: int) -> int | None:
        return self._connection.call(self._leases.put(LEASE, value, revision), 2 * ASK_S)

    def release_lease(self, revision: int) -> None:
        self._connection.call(self._leases.put(LEASE, b"", revision, is_gone=True), 2 * ASK_S)

    def lease(self) -> Row | None:
        return self._connection.call(self._leases.get(LEASE), 2 * ASK_S)

    def row(self, key: str) -> Row | None:
        return self._connection.call(self._rows.get(key), 2 * ASK_S)

    def rows(self, prefix: str) -> dict[str, Row]:
        keys = self._connection.call(self._rows.keys(prefix), 2 * ASK_S)
        found = ((key, self.row(key)) for key in keys)
        return {key: row for key, row in found if row is not None}

    def put_row(self, key: str, value: bytes, revision: int | None = None) -> int | None:
        if revision == 0:
            return self._connection.call(self._rows.create(key, value), 3 * ASK_S)
        return self._connection.call(self._rows.put(key, value, revision), 2 * ASK_S)

    def delete_row(self, key: str) -> None:
        self._connection.call(self._rows.put(key, b"", None, is_gone=True), 2 * ASK_S)

    def close(self) -> None:
        def end() -> None:
            self._is_over = True
            self._sender.cancel()
            for token in tuple(self._waiting):
                self._waiting[token].timer.cancel()
                self._silent(token, "the connection was closed")

        self._connection.soon(end)
        if self._handlers is not None:
            self._handlers.shutdown(wait=False, cancel_futures=True)
        self._connection.close()


def one_line(text: str) -> str:
    """A sentence as a header may have it."""
    return " ".join(text.split())[:1000]
