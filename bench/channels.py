"""How fast channels push: `python bench/channels.py [--messages 500000] [--runs 5] [--topics 1]`.

Messages of 400 bytes are stored first; then a channel is added that begins at the earliest, to a receiver in a process
of its own on this machine, and it is measured how long it takes until the last of them is acked: the channel's lag
is 0. So the time has in it the connection, the greeting and every ack. `tcp` goes to `headwater.receive`, whose every
batch is acked; `http` to a small HTTP server that reads each request whole, checks its signature and answers 204.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import hmac
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager

import headwater

PAYLOAD = bytes(range(256)) + bytes(144)
BATCH = 1000
SECRET = base64.b64encode(bytes(32)).decode()
GOALS = {"tcp": 100_000, "http": 20_000}


def receive_tcp() -> None:
    with headwater.receive(0) as receiver:
        print(receiver.port, flush=True)
        while True:
            receiver.ack(receiver.batch(BATCH), wait=False)


async def serve_http() -> None:
    key = base64.b64decode(SECRET)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            try:
                head = await reader.readuntil(b"\r\n\r\n")
            except asyncio.IncompleteReadError:
                writer.close()
                return
            fields = dict(line.split(": ", 1) for line in head.decode().split("\r\n")[1:-2])
            body = await reader.readexactly(int(fields["content-length"]))
            signed = f"{fields['webhook-id']}.{fields['webhook-timestamp']}.".encode() + body
            wanted = "v1," + base64.b64encode(hmac.digest(key, signed, "sha256")).decode()
            assert fields["webhook-signature"] == wanted
            writer.write(b"HTTP/1.1 204 No Content\r\n\r\n")

    server = await asyncio.start_server(serve, "127.0.0.1", 0, limit=1 << 20)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


@contextmanager
def started(*words: str) -> Iterator[str]:
    """A process, and the last word of its first line."""
    process = subprocess.Popen([sys.executable, *words], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert process.stdout is not None
    try:
        yield process.stdout.readline().split()[-1]
    finally:
        process.terminate()
        process.wait()


def measure(bus: headwater.client.bus.Bus, kind: str, count: int) -> float:
    with started(__file__, "--receive", kind) as port:
        secret = {"secret": f"whsec_{SECRET}"} if kind == "http" else {}
        start = time.perf_counter()
        (made,) = bus.channels.add("bench", "bench/#", "127.0.0.1", int(port), kind, start="earliest", **secret)
        while bus.channels.list(made.id)[0].lag:
            time.sleep(0.02)
        elapsed = time.perf_counter() - start
        assert bus.channels.list(made.id)[0].delivered == count
        bus.channels.remove(made.id)
    return count / elapsed


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--messages", type=int, default=500_000)
    parser.add_argument("--topics", type=int, default=1)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--receive", choices=("tcp", "http"), help="be the receiver of a run")
    args = parser.parse_args()
    if args.receive == "tcp":
        receive_tcp()
    elif args.receive == "http":
        asyncio.run(serve_http())
    with tempfile.TemporaryDirectory(prefix="headwater-bench-") as folder:
        serve = ("-m", "headwater", "serve", "--data", f"{folder}/data", "--port", "0", "--no-http", "--no-mqtt")
        with started(*serve) as url, headwater.connect(url) as bus:
            for first in range(0, args.messages, BATCH):
                topics = (f"bench/{number % args.topics}" for number in range(first, first + BATCH))
                bus.publish_many([(topic, PAYLOAD) for topic in topics])
            print("| channel | messages/s, median | best | worst | goal |\n|---|---|---|---|---|")
            for kind, goal in GOALS.items():
                rates = sorted(measure(bus, kind, args.messages) for _ in range(args.runs))
                middle = statistics.median(rates)
                print(f"| {kind} | {middle:,.0f} | {rates[-1]:,.0f} | {rates[0]:,.0f} | ≥ {goal:,} |", flush=True)


if __name__ == "__main__":
    main()
