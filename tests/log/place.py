"""The roots of a folder, for tests of what is done with them."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from faults.faulty_state import FaultyState
from headwater.clock import ManualClock
from headwater.config import Config
from headwater.errors import (
    HeadwaterError,
)
from headwater.log.checks import Checks
from headwater.log.publish import Publish
from headwater.log.root import Root
from headwater.log.roots import Roots
from headwater.store.batch import Batch, Seed
from headwater.store.files import DiskFiles, Files
from headwater.store.log import Found
from headwater.store.state import MemoryState, State
from headwater.store.streams import Streams
from headwater.topics.name import compile_filter

WAIT_S = 60.0


class Place:
    """The roots of a folder, and what they told."""

    def __init__(
        self, folder: str, config: Config | None = None, files: Files | None = None, state: State | None = None
    ) -> None:
        self.config = config or Config()
        self.files = files or DiskFiles()
        self.state = state or MemoryState()
        self.clock = ManualClock()
        self.told: list[tuple[str, list[tuple[int, int]]]] = []
        self.troubles: list[str] = []
        self.files.make_folder(folder)
        self.log = Streams(self.files, folder, Seed(0), self.config)
        self.roots = Roots(self.log, self.state, self.config, self.clock, self.troubles.append)
        self.roots.committer.hearers = self
        self.met: dict[str, Found] = self.roots.recover()
        self.checks = Checks(self.config, self.clock)

    is_any = True

    def on_durable(self, appended: Mapping[Root, Sequence[Batch]]) -> None:
        for root, batches in appended.items():
            self.told.append((root.name, [(batch.first_offset, batch.last_offset) for batch in batches]))

    def one(self, topic: str, payload: bytes = b"x", **more: Any) -> Publish:
        given = {
            "retain": False,
            "key": None,
            "headers": (),
            "ttl_s": None,
            "producer": None,
            "sequence": None,
            "deliver_at": None,
        }
        return self.checks.one(topic, payload, **{**given, **more})

    def many(self, *topics: str, producer: str | None = None, sequence: int | None = None) -> Publish:
        return self.checks.many([(topic, topic.encode()) for topic in topics], producer, sequence)

    def publish(self, item: Publish) -> Any:
        self.roots.commit.submit_and_wait(item)
        return item.result()

    def group(self, *items: Publish) -> None:
        """Commit these together; each may be refused."""
        inside, go_on = threading.Event(), threading.Event()

        def hold() -> None:
            inside.set()
            assert go_on.wait(WAIT_S)

        holder = threading.Thread(target=lambda: self.roots.commit.run(hold))
        holder.start()
        assert inside.wait(WAIT_S)
        for item in items:
            self.roots.commit.submit(item)
        go_on.set()
        holder.join(WAIT_S)
        for item in items:
            with suppress(HeadwaterError):
                item.wait()

    def payloads(self, name: str) -> list[bytes]:
        root = self.roots.get(name)
        found: list[bytes] = []
        offset = 1
        while root is not None and (pieces := root.stream.read(offset, 1 << 20)):
            for piece in pieces:
                assert isinstance(piece, Batch)
                found += [message.payload for message in piece.body.messages(piece.first_offset)]
                offset = piece.last_offset + 1
        return found

    def topics(self) -> dict[str, int]:
        everything = compile_filter("#")
        return {info.topic: info.messages for root in self.roots.all() for info in root.topics(everything)}

    def close(self) -> None:
        self.roots.close()
        self.log.close()


class AskedState(FaultyState):
    """A state that remembers what it was asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[bytes] = []

    def get(self, key: bytes) -> bytes | None:
        self.asked.append(key)
        return super().get(key)
