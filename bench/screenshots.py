"""The pictures of the dashboard in docs/images: `python bench/screenshots.py [--folder docs/images] [--seconds 60]`.

A server with lively data is started, a browser looks at it, and what it sees is written as small PNGs.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser, Page, sync_playwright

import headwater
import headwater.admin
from headwater.config import Config, Retention

WIDE = {"width": 1280, "height": 860}
PHONE = {"width": 390, "height": 844}
COLOURS = 160
ROOMS = ("attic", "bath", "hall", "kitchen", "study")
HISTORY = 40_000


def prepare(folder: Path) -> None:
    """A folder with history, of which a lake has a part that the log has no more."""
    config = Config(segment_bytes=64 * 1024, retention=Retention(bytes=400_000))
    with headwater.open(folder, config) as bus:
        for start in range(0, HISTORY, 2_000):
            bus.publish_many([reading() for _ in range(start, start + 2_000)])
            if start == HISTORY // 2:
                bus.mark_archived("house", {"home": HISTORY // 2})
        bus.mark_archived("house", {"home": HISTORY - 7_000})
        bus.publish_many([position() for _ in range(6_000)])
        bus.mark_archived("house", {"home": HISTORY - 7_000, "fleet": 5_990})
        bus.publish(
            "home/kitchen/thermostat", b'{"target": 21.5, "mode": "eco", "rooms": ["kitchen", "hall"]}', retain=True
        )


def reading() -> tuple[str, bytes]:
    kind, mean = random.choice((("temp", 21), ("humidity", 45), ("light", 300)))
    return f"home/{random.choice(ROOMS)}/{kind}", f"{random.gauss(mean, mean / 20):.1f}".encode()


def position() -> tuple[str, bytes]:
    where = {
        "lat": round(48 + random.random(), 4),
        "lon": round(11 + random.random(), 4),
        "speed": random.randint(0, 90),
    }
    return f"fleet/truck-{random.randint(1, 40):02}/position", json.dumps(where).encode()


def order(number: int) -> tuple[str, bytes]:
    items = [{"sku": f"A-{random.randint(10, 99)}", "quantity": random.randint(1, 4)}]
    total = round(random.uniform(5, 90), 2)
    return f"orders/{random.choice(('asia', 'eu', 'us'))}/new", json.dumps(
        {"id": number, "total": total, "items": items}
    ).encode()


class Life:
    """Publishers and consumers, one of which fails now and then."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._is_over = threading.Event()
        self._receiver = headwater.receive(port=0)
        works = (self._publish, self._thermostat, self._billing, self._screen, self._screen, self._receive)
        self._threads = [threading.Thread(target=work, daemon=True) for work in works]
        with headwater.connect(url) as bus:
            bus.subscribe("home/#", id="history-loader", start="earliest").close()
            bus.subscribe("fleet/+/position", id="map", start=5_000).close()
        with headwater.admin.connect(url) as admin:
            port = self._receiver.port
            admin.channels.add("warehouse", "orders/#", "127.0.0.1", port)
            admin.channels.add("map tiles", "fleet/+/position", "127.0.0.1", port)
            admin.channels.add("alarm bell", "home/+/temp", "127.0.0.1", 9, kind="http", path="/hooks/alarm")
            quiet = admin.channels.add("night shift", "orders/asia/#", "127.0.0.1", port)
            admin.channels.change(quiet[0].id, paused=True)
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        self._is_over.set()
        self._receiver.close()

    def _receive(self) -> None:
        for message in self._receiver:
            message.ack()

    def _publish(self) -> None:
        number = 0
        with headwater.connect(self._url) as bus:
            while not self._is_over.wait(0.06 + 0.05 * random.random()):
                number += 1
                bus.publish_many(
                    [reading() for _ in range(random.randint(20, 50))]
                    + [position() for _ in range(4)]
                    + [order(number)]
                )

    def _thermostat(self) -> None:
        with headwater.connect(self._url) as bus, bus.subscribe("home/+/temp", id="thermostat") as sub:
            while not self._is_over.is_set():
                sub.ack(sub.batch(max=100, timeout_s=0.5))

    def _billing(self) -> None:
        options = {"order": "none", "max_attempts": 2}
        with headwater.connect(self._url) as bus, bus.subscribe("orders/#", id="billing", **options) as sub:
            while not self._is_over.is_set():
                message = sub.next(timeout_s=0.5)
                if message is None:
                    continue
                sku = json.loads(message.payload)["items"][0]["sku"]
                if sku.endswith("7"):
                    message.nack(f"ValueError: no VAT rate for {sku}", delay_s=2)
                else:
                    message.ack(wait=False)

    def _screen(self) -> None:
        with headwater.connect(self._url) as bus, bus.subscribe("home/#") as live:
            while not self._is_over.is_set():
                live.batch(max=1000, timeout_s=0.5)


@contextmanager
def serving(data: Path) -> Iterator[tuple[str, str]]:
    """A server: where it is natively, and over HTTP."""
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
        try:
            native, http = (process.stdout.readline().split()[-1] for _ in range(2))
            yield native, http
        finally:
            process.terminate()


def keep(page: Page, target: Path) -> None:
    """A picture of what a page shows, made small."""
    raw = page.screenshot()
    target.write_bytes(raw)
    with Image.open(target) as picture:
        picture.convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE).save(target, optimize=True)
    print(f"{target}  {target.stat().st_size / 1024:.0f} KiB")


def look(browser: Browser, http: str, folder: Path, seconds: float) -> None:
    """Every picture."""
    page = browser.new_page(base_url=http, viewport=WIDE)  # type: ignore[arg-type]
    page.goto("/")
    other = page.context.browser.new_page(base_url=http, viewport=WIDE)  # type: ignore[union-attr, arg-type]
    begun = time.monotonic()
    for name, path in (
        ("topics", "/topics?topic=home/kitchen/thermostat"),
        ("subscriptions", "/subscriptions"),
        ("dead-letters", "/dead-letters?id=billing"),
        ("channels", "/channels"),
        ("pipelines", "/pipelines"),
    ):
        other.goto(path)
        if name == "topics":
            other.get_by_role("tab", name="Messages").wait_for()
            other.goto("/topics?topic=home/kitchen/temp")
        time.sleep(4)
        keep(other, folder / f"{name}.png")
    other.goto("/search?filter=orders/%23")
    other.get_by_label("JSON fields").fill('$.total > 60 and $.items[*].sku contains "7"')
    other.get_by_label("JSON fields").press("Enter")
    other.get_by_text("looked at.").wait_for()
    keep(other, folder / "search.png")
    other.set_viewport_size(PHONE)  # type: ignore[arg-type]
    other.goto("/")
    time.sleep(max(4.0, seconds - (time.monotonic() - begun)))
    keep(other, folder / "phone.png")
    keep(page, folder / "overview.png")
    page.emulate_media(color_scheme="dark")
    time.sleep(2)
    keep(page, folder / "dark.png")


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    asked.add_argument("--folder", type=Path, default=Path("docs/images"))
    asked.add_argument("--seconds", type=float, default=60.0, help="how long the charts grow")
    asked.add_argument("--chromium", default="/usr/bin/chromium")
    given = asked.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as place:
        prepare(Path(place) / "data")
        with serving(Path(place) / "data") as (native, http), sync_playwright() as playwright:
            life = Life(native)
            browser = playwright.chromium.launch(executable_path=given.chromium, args=["--no-sandbox"])
            look(browser, http, given.folder, given.seconds)
            browser.close()
            life.end()


if __name__ == "__main__":
    main()
