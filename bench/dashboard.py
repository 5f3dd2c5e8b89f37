"""How soon the dashboard is there: `python bench/dashboard.py [--loads 5] [--topics 10000]`.

A browser loads the overview as for the first time, again and again: the time until something is painted, and until it
has text. Then it opens a level of so many topics, scrolls through it, and types into the search: the time until each is
shown, and the longest that the page did not answer meanwhile.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from playwright.sync_api import Browser, Page, sync_playwright

import headwater

PAINTS = "() => Object.fromEntries(performance.getEntriesByType('paint').map(one => [one.name, one.startTime]))"
WATCH = """() => {
  window.longest = 0; let before = performance.now();
  const look = (now) => { window.longest = Math.max(window.longest, now - before); before = now;
    requestAnimationFrame(look); };
  requestAnimationFrame(look);
}"""


def paints(browser: Browser, http: str, loads: int) -> dict[str, list[float]]:
    """Times to paint, in ms, of loads without a cache."""
    found: dict[str, list[float]] = {}
    for _ in range(loads):
        with browser.new_context() as context:
            page = context.new_page()
            page.goto(http)
            page.get_by_role("heading", name="Overview").wait_for()
            stands_ms = page.evaluate("performance.now()")
            for name, time_ms in (*page.evaluate(PAINTS).items(), ("page stands", stands_ms)):
                found.setdefault(name, []).append(time_ms)
    return found


def took(page: Page, name: str) -> float:
    """Milliseconds until a row of the tree is shown."""
    begun = time.perf_counter()
    page.get_by_role("treeitem", name=name).first.wait_for()
    return 1000 * (time.perf_counter() - begun)


def tree(browser: Browser, http: str, topics: int) -> dict[str, float]:
    """Times of a large level, in ms."""
    page = browser.new_page(base_url=http)
    page.goto("/topics")
    page.get_by_role("treeitem", name="many").wait_for()
    page.evaluate(WATCH)
    page.get_by_role("treeitem", name="many").click()
    figures = {"open level": took(page, "device-000000")}
    for _ in range(10):
        page.mouse.wheel(0, 2000)
        page.wait_for_timeout(50)
    figures["rows in the document"] = page.get_by_role("treeitem").count()
    last = f"device-{topics - 1:06}"
    page.get_by_label("Find a topic, or type a filter").press_sequentially(f"many/{last}", delay=20)
    figures["find a topic by typing"] = took(page, last)
    return {**figures, "longest pause": page.evaluate("window.longest")}


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    asked.add_argument("--loads", type=int, default=5)
    asked.add_argument("--topics", type=int, default=10_000)
    asked.add_argument("--chromium", default="/usr/bin/chromium")
    asked.add_argument("--json", action="store_true")
    given = asked.parse_args()
    with tempfile.TemporaryDirectory() as place:
        data = Path(place) / "data"
        with headwater.open(data) as bus:
            for start in range(0, given.topics, 1000):
                bus.publish_many([(f"many/device-{start + n:06}", b"on") for n in range(1000)])
        command = [
            sys.executable,
            "-m",
            "headwater",
            "serve",
            "--data",
            str(data),
            "--port",
            "0",
            "--http-port",
            "0",
            "--no-mqtt",
        ]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
            assert process.stdout is not None
            http = [process.stdout.readline().split()[-1] for _ in range(2)][1]
            try:
                with sync_playwright() as playwright:
                    browser = playwright.chromium.launch(executable_path=given.chromium, args=["--no-sandbox"])
                    painted = paints(browser, http, given.loads)
                    opened = tree(browser, http, given.topics)
                    browser.close()
            finally:
                process.terminate()
    figures = {name: round(statistics.median(times), 1) for name, times in painted.items()}
    figures |= {name: round(value, 1) for name, value in opened.items()}
    if given.json:
        print(json.dumps(figures))
        return
    for name, value in figures.items():
        print(f"{name:28} {value:8.0f}{'' if name.startswith('rows') else ' ms'}")


if __name__ == "__main__":
    main()
