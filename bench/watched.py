"""What it costs to be watched: `python bench/watched.py [--rounds 7] [--seconds 4]`.

A server is published to as fast as it goes, in frames of 1,000 messages of 400 bytes, by turns alone and while the
dashboard's overview is open in a browser and /metrics is scraped every second. Told is the ratio of the two medians;
the goal is 0.9. The browser is on the same cores, so that what it draws with counts, too.
"""

from __future__ import annotations

import argparse
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import Browser, sync_playwright

from headwater.cli.bench.served.publish import Stream, batches_of

GOAL = 0.9


@contextmanager
def served(folder: str) -> Iterator[tuple[int, str]]:
    """The native port of a server, and the URL of its dashboard."""
    command = [
        sys.executable,
        "-m",
        "headwater",
        "serve",
        "--data",
        folder,
        "--port",
        "0",
        "--http-port",
        "0",
        "--no-mqtt",
    ]
    process = subprocess.Popen([*command, "--log-level", "error"], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        port = int(re.findall(r"headwater://\S+:(\d+)", process.stdout.readline())[0])
        yield port, process.stdout.readline().split()[-1]
    finally:
        process.terminate()
        process.wait()


def publish(port: int, pieces: list[bytes], seconds: float) -> float:
    """Messages a second that are on disk."""
    stream = Stream(("127.0.0.1", port), None, pieces)
    begun = time.perf_counter()
    while time.perf_counter() - begun < seconds:
        stream.fill()
        stream.receive()
    stream.finish()
    took_s = time.perf_counter() - begun
    stream.client.close()
    return stream.done * 1000 / took_s


@contextmanager
def watched(browser: Browser, http: str) -> Iterator[None]:
    """The overview is open, and the figures are scraped."""
    over = threading.Event()

    def scrape() -> None:
        while not over.wait(1.0):
            with urllib.request.urlopen(f"{http}/metrics", timeout=10) as answer:
                answer.read()

    thread = threading.Thread(target=scrape)
    with browser.new_context() as context:
        page = context.new_page()
        page.goto(http)
        page.get_by_role("heading", name="Overview").wait_for()
        thread.start()
        time.sleep(2)
        try:
            yield
        finally:
            over.set()
            thread.join()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--chromium", default="/usr/bin/chromium")
    given = parser.parse_args()
    alone: list[float] = []
    under: list[float] = []
    with tempfile.TemporaryDirectory() as folder, served(folder) as (port, http), sync_playwright() as playwright:
        pieces = batches_of(1, "bench")
        publish(port, pieces, given.seconds)
        for _ in range(given.rounds):
            alone.append(publish(port, pieces, given.seconds))
            browser = playwright.chromium.launch(executable_path=given.chromium, args=["--no-sandbox"])
            with watched(browser, http):
                under.append(publish(port, pieces, given.seconds))
            browser.close()
            print(
                f"alone {alone[-1]:>12,.0f}/s   watched {under[-1]:>12,.0f}/s   {under[-1] / alone[-1]:.2f}×",
                flush=True,
            )
    ratio = statistics.median(under) / statistics.median(alone)
    print(
        f"medians: {statistics.median(alone):,.0f}/s and {statistics.median(under):,.0f}/s, {ratio:.2f}× (goal {GOAL}×)"
    )


if __name__ == "__main__":
    main()
