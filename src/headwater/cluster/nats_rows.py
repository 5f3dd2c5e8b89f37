"""Rows in the engine: a JetStream stream each, with one message a key, as NATS's own key-value buckets have them."""

from __future__ import annotations

import base64
from typing import Any

from headwater.cluster.engine import Row
from headwater.cluster.nats_connection import NO_MESSAGE, NO_STREAM, WRONG_LAST, NatsConnection, Rejected
from headwater.errors import Unavailable

ASK_S = 2.0


class NatsRows:
    """A bucket."""

    def __init__(self, connection: NatsConnection, name: str, replicas: int, age_s: float = 0.0) -> None:
        """With an age, rows are gone when they were not written for so long."""
        self._connection = connection
        self._name = name
        self._stream = f"KV_{name}"
        self._replicas = replicas
        self._age_ns = round(age_s * 1e9)

    async def make(self) -> None:
        """Make it, unless it is there."""
        wanted: dict[str, Any] = {
            "name": self._stream,
            "subjects": [f"$KV.{self._name}.>"],
            "retention": "limits",
            "storage": "file",
            "num_replicas": self._replicas,
            "max_msgs_per_subject": 1,
            "max_age": self._age_ns,
            "discard": "new",
            "duplicate_window": min(self._age_ns, 120_000_000_000) or 120_000_000_000,
            "allow_rollup_hdrs": True,
            "deny_delete": True,
        }
        try:
            found = await self._connection.api(f"STREAM.INFO.{self._stream}", None, ASK_S)
        except Rejected as error:
            if error.error.err_code != NO_STREAM:
                raise Unavailable(f"the NATS servers refuse to show {self._stream}: {error}") from None
            verb = "CREATE"
        else:
            if found.config.get("max_age") == self._age_ns:
                return
            verb = "UPDATE"  # another lease_s
        try:
            await self._connection.api(f"STREAM.{verb}.{self._stream}", wanted, 2 * ASK_S)
        except Rejected as error:
            raise Unavailable(f"the NATS servers refuse to make {self._stream}: {error}") from None

    async def get(self, key: str) -> Row | None:
        """A row, as the server has it that leads this stream."""
        asked = {"last_by_subj": f"$KV.{self._name}.{key}"}
        try:
            found = await self._connection.api(f"STREAM.MSG.GET.{self._stream}", asked, ASK_S)
        except Rejected as error:
            if error.error.err_code == NO_MESSAGE:
                return None
            raise Unavailable(f"the NATS servers refuse to read {self._stream}: {error}") from None
        message = found.message
        if "hdrs" in message and b"KV-Operation" in base64.b64decode(message["hdrs"]):
            return None
        return Row(base64.b64decode(message.get("data", "")), int(message["seq"]))

    async def put(self, key: str, value: bytes, revision: int | None, *, is_gone: bool = False) -> int | None:
        """Write a row over one revision (0: none, None: any); its new revision, None if it was another."""
        headers = {} if revision is None else {"Nats-Expected-Last-Subject-Sequence": str(revision)}
        if is_gone:
            headers["KV-Operation"] = "DEL"
        subject = f"$KV.{self._name}.{key}"
        answer = await self._connection.request(subject, value, ASK_S, headers or None)
        try:
            return self._connection.opened(answer.data).seq
        except Rejected as error:
            if error.error.err_code in WRONG_LAST:
                return None
            raise Unavailable(f"the NATS servers refuse to write to {self._stream}: {error}") from None

    async def create(self, key: str, value: bytes) -> int | None:
        """Write a row where there is none."""
        revision = await self.put(key, value, 0)
        if revision is not None:
            return revision
        # Where a row was deleted, its marker is what is written over.
        asked = {"last_by_subj": f"$KV.{self._name}.{key}"}
        try:
            found = await self._connection.api(f"STREAM.MSG.GET.{self._stream}", asked, ASK_S)
        except Rejected:
            return None
        message = found.message
        if "hdrs" not in message or b"KV-Operation" not in base64.b64decode(message["hdrs"]):
            return None
        return await self.put(key, value, int(message["seq"]))

    async def keys(self, prefix: str) -> list[str]:
        """Those that begin so."""
        asked = {"subjects_filter": f"$KV.{self._name}.>"}
        try:
            found = await self._connection.api(f"STREAM.INFO.{self._stream}", asked, ASK_S)
        except Rejected as error:
            raise Unavailable(f"the NATS servers refuse to show {self._stream}: {error}") from None
        before = len(f"$KV.{self._name}.")
        names = (subject[before:] for subject in found.state.get("subjects") or {})
        return sorted(name for name in names if name.startswith(prefix))
