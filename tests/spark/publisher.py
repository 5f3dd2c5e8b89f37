"""A process that publishes until it is told to end: `python publisher.py PLACE`, a folder of its own or a server.

Each message says its own number within its root; a line on stdout says how far each root is acknowledged.
"""

from __future__ import annotations

import sys
import threading

import headwater

ROOTS = ("home", "office", "yard")


def main(place: str) -> None:
    ending = threading.Event()

    def wait() -> None:
        sys.stdin.read()
        ending.set()

    threading.Thread(target=wait, daemon=True).start()
    served = place.startswith("headwater")
    config = headwater.Config(segment_bytes=64 * 1024)
    with headwater.connect(place) if served else headwater.open(place, config) as bus:
        numbers = dict.fromkeys(ROOTS, 0)
        turn = 0
        while not ending.wait(0.02 if served else 0.005):
            turn += 1
            # Sometimes one root, sometimes all of them through the journal; small batches and large ones.
            roots = ROOTS if turn % 3 == 0 else (ROOTS[turn % len(ROOTS)],)
            messages = []
            for root in roots:
                for _ in range(1 + turn % 40):
                    numbers[root] += 1
                    messages.append((f"{root}/{numbers[root] % 7}", b"%d" % numbers[root] + b"." * (turn % 200)))
            bus.publish_many(messages)
            sys.stdout.write(" ".join(f"{root}={number}" for root, number in numbers.items()) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1])
