"""A process that hands out copies of a node's folder until it is killed; the first line it prints says that it does."""

from __future__ import annotations

import sys
import time

from headwater.clock import SystemClock
from headwater.cluster.copies import PIECE, Copies
from headwater.cluster.engine import Handler
from headwater.cluster.nats_engine import NatsEngine
from headwater.cluster.replica import Replica
from headwater.config import Clustering
from headwater.store.files import DiskFiles


def slowly(handler: Handler, pause_s: float) -> Handler:
    def answer(data: bytes) -> bytes:
        time.sleep(pause_s)
        return handler(data)

    return answer


def main(path: str, urls: str, bus: str, node: str, pause_s: str) -> None:
    replica = Replica(path)
    copies = Copies(path, DiskFiles(), SystemClock())
    copies.take = replica.snapshot
    engine = NatsEngine(Clustering(cluster=tuple(urls.split(",")), bus=bus), node)
    handlers = copies.handlers()
    engine.answer(node, handlers | {PIECE: slowly(handlers[PIECE], float(pause_s))})
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    time.sleep(600)


if __name__ == "__main__":
    main(*sys.argv[1:])
