"""The dashboard, as people use it: a real browser, a real server, from log-in to log-out."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from socket import gethostname
from typing import Any, Literal

import httpx
import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, BrowserContext, Page, Route, ViewportSize, expect, sync_playwright
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect as connect_socket
from websockets.typing import Origin

import headwater
import headwater.admin
from admin.served import serving
from headwater.cli.what_if import report_lines
from headwater.client.bus import Bus

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
PATIENCE_MS = 60_000
expect.set_options(timeout=PATIENCE_MS)
SECRET = "a secret of a test"
PAGES = (
    *("/", "/topics", "/search", "/sql", "/retained", "/subscriptions", "/dead-letters", "/schedules", "/channels"),
    *("/sessions", "/clients", "/pipelines", "/what-if", "/cluster", "/settings", "/audit"),
)
EVIL = "<img src=x onerror=alert(1)>"
SCRIPT = "<script>alert(1)</script>"
WATCHMAN = """
window.caught = [];
window.alert = (text) => window.caught.push("alert " + text);
window.addEventListener("error", (event) => window.caught.push("error " + event.message));
"""
TOPICS = 10_000
NAMES = (
    *("Overview", "Topics", "Search", "SQL", "Retained", "Subscriptions", "Dead letters", "Schedules", "Channels"),
    *("Sessions", "Clients", "Pipelines", "What if", "Cluster", "Settings", "Audit"),
)
Theme = Literal["light", "dark"]
WIDE: ViewportSize = {"width": 1280, "height": 900}
PHONE: ViewportSize = {"width": 390, "height": 844}

pytestmark = [
    pytest.mark.xdist_group("browser"),
    pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium; on Debian and Ubuntu: apt-get install chromium"),
]


class House:
    """A server with authentication, its tokens, and somebody who looks after it from elsewhere."""

    def __init__(
        self, http: str, native: str, admin: headwater.admin.Admin, tokens: dict[str, str], folder: Path
    ) -> None:
        self.http = http
        self._native = native
        self.admin = admin
        self.bus: Bus = admin.bus
        self.tokens = tokens
        self.folder = folder

    def address(self, user: str) -> str:
        """Where a client of this name comes in."""
        return login(self._native, user)


def login(url: str, user: str) -> str:
    """The address of a server, with a name and the secret."""
    return url.replace("://", f"://{user}:{SECRET.replace(' ', '%20')}@")


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    folder = tmp_path_factory.mktemp("dashboard")
    with headwater.open(folder / "data") as bus:
        bus.clients.add("ann", SECRET)
        for action in ("publish", "subscribe", "create", "admin"):
            bus.acl.allow("ann", action, "#")
        tokens = {role: bus.tokens.add("ann", role).token for role in ("reader", "admin")}
        bus.publish_many([(f"many/device-{number:05}", b"on") for number in range(TOPICS)])
    with serving(folder / "data", "--auth", "scram") as served:
        http = served.read_http()
        with headwater.admin.connect(login(served.url, "ann")) as admin:
            yield House(http, served.url, admin, tokens, folder)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield found
        found.close()


def context(browser: Browser, house: House) -> BrowserContext:
    """A browser of its own; what its pages run that they should not is caught, and nothing leaves this machine."""
    found = browser.new_context(base_url=house.http, viewport=WIDE, reduced_motion="reduce")
    found.set_default_timeout(PATIENCE_MS)
    found.add_init_script(WATCHMAN)
    found.route(lambda url: not url.startswith((house.http, "data:")), _refuse)
    return found


def _refuse(route: Route) -> None:
    route.abort()
    raise AssertionError(f"a page asked for {route.request.url}")


@pytest.fixture(scope="module")
def page(browser: Browser, house: House) -> Iterator[Page]:
    """An admin's page."""
    with context(browser, house) as found:
        page = found.new_page()
        page.goto("/login")
        log_in(page, house.tokens["admin"])
        see(page.get_by_role("heading", name="Overview"))
        yield page


@pytest.fixture(scope="module")
def guest(browser: Browser, house: House) -> Iterator[Page]:
    """A page of somebody who comes and goes."""
    with context(browser, house) as found:
        yield found.new_page()


get = partial(httpx.get, timeout=PATIENCE_MS / 1000)
post = partial(httpx.post, timeout=PATIENCE_MS / 1000)


def log_in(page: Page, token: str) -> None:
    page.get_by_label("Token").fill(token)
    page.get_by_role("button", name="Log in").click()


def enter(page: Page, token: str, name: str) -> None:
    """Log in, whoever was logged in before, and stand on a page."""
    page.goto(f"/login?next=/{name.lower()}")
    log_in(page, token)
    see(page.get_by_role("heading", name=name, level=1))


def go(page: Page, name: str) -> None:
    """To another page, as people go there."""
    page.get_by_role("link", name=name, exact=True).click()
    see(page.get_by_role("heading", name=name, level=1))


def see(place: Any) -> None:
    expect(place).to_be_visible()


def cookie(page: Page) -> str:
    return "; ".join(f"{one['name']}={one['value']}" for one in page.context.cookies())


# The door


@pytest.mark.parametrize("path", PAGES)
def test_a_stranger_is_sent_to_the_log_in(house: House, path: str) -> None:
    answer = get(house.http + path, params={"topic": "a/b"})
    assert (answer.status_code, answer.headers["location"].partition("?")[0]) == (303, "/login")


def test_a_stranger_gets_no_websocket_and_no_page_that_is_not_there(house: House) -> None:
    socket = house.http.replace("http", "ws") + "/_nicegui_ws/socket.io/?EIO=4&transport=websocket"
    with pytest.raises(InvalidStatus):
        connect_socket(socket)
    polling = get(house.http + "/_nicegui_ws/socket.io/?EIO=4&transport=polling")
    assert polling.status_code == 401
    missing = get(house.http + "/secrets")
    assert (missing.status_code, missing.headers["content-type"]) == (404, "application/problem+json")


def test_a_host_that_pretends_to_be_a_path_opens_nothing(house: House) -> None:
    answer = get(house.http + "/topics", headers={"Host": "x/_nicegui/"})
    assert answer.status_code in {303, 400, 403}
    assert "Headwater" not in answer.text


@pytest.mark.parametrize("place", ["//evil.example", "https://evil.example", "/\\evil.example", "evil", ""])
def test_a_log_in_leads_to_no_other_site(house: House, place: str) -> None:
    answer = post(house.http + "/login", data={"token": house.tokens["reader"], "next": place})
    assert (answer.status_code, answer.headers["location"]) == (303, "/")


def test_a_log_in_from_a_page_of_another_site_is_refused(house: House) -> None:
    form = {"token": house.tokens["reader"]}
    answer = post(house.http + "/login", data=form, headers={"Origin": "http://evil.example"})
    assert answer.status_code == 403


def test_a_page_of_another_site_gets_no_websocket_though_its_visitor_is_logged_in(house: House, page: Page) -> None:
    socket = house.http.replace("http", "ws") + "/_nicegui_ws/socket.io/?EIO=4&transport=websocket"
    headers = {"Cookie": cookie(page)}
    with pytest.raises(InvalidStatus):
        connect_socket(socket, origin=Origin("http://evil.example"), additional_headers=headers)
    with connect_socket(socket, origin=Origin(house.http), additional_headers=headers) as welcome:
        assert str(welcome.recv(timeout=PATIENCE_MS / 1000)).startswith("0")
    polling = house.http + "/_nicegui_ws/socket.io/?EIO=4&transport=polling"
    answer = get(polling, headers={**headers, "Origin": "http://evil.example"})
    assert answer.status_code == 403
    assert "access-control-allow-origin" not in answer.headers


def test_a_wrong_token_is_refused_with_a_sentence_and_a_right_one_leads_on(house: House, guest: Page) -> None:
    guest.goto("/subscriptions")
    log_in(guest, "hwt_wrong_" + EVIL)
    expect(guest.get_by_role("alert")).to_contain_text("opens nothing")
    log_in(guest, house.tokens["reader"])
    see(guest.get_by_role("heading", name="Subscriptions"))
    kept = guest.context.cookies()[0]
    assert (kept["httpOnly"], kept["sameSite"]) == (True, "Lax")


def test_a_reader_looks_and_changes_nothing(house: House, guest: Page) -> None:
    enter(guest, house.tokens["reader"], "Subscriptions")
    expect(guest.get_by_role("button", name="New subscription")).to_be_disabled()
    go(guest, "Clients")
    expect(guest.get_by_role("button", name="New client")).to_be_disabled()
    see(guest.get_by_text("for those whose token has the role admin"))
    assert guest.get_by_text("ann", exact=True).count() == 0
    go(guest, "Topics")
    expect(guest.get_by_role("button", name="Publish")).to_be_disabled()
    go(guest, "Schedules")
    expect(guest.get_by_role("button", name="New schedule")).to_be_disabled()
    go(guest, "Audit")
    see(guest.get_by_text("The audit is for those whose token has the role admin"))
    house.bus.publish("looked/at", b"kept", retain=True)
    go(guest, "Retained")
    see(guest.get_by_role("cell", name="looked/at"))
    assert guest.get_by_role("button", name="Clear").count() == 0
    guest.get_by_label("Filter", exact=True).fill("$sys/#")
    see(guest.get_by_text("does not see all that", exact=False))


def test_a_log_out_ends_the_visit_in_every_tab(house: House, guest: Page) -> None:
    enter(guest, house.tokens["reader"], "Topics")
    other = guest.context.new_page()
    other.goto("/sessions")
    see(other.get_by_role("heading", name="Sessions"))
    kept = cookie(guest)
    guest.get_by_role("button", name="Log out").click()
    see(guest.get_by_label("Token"))
    see(other.get_by_label("Token"))
    assert get(house.http + "/", headers={"Cookie": kept}).status_code == 303
    other.close()


def test_a_token_that_is_removed_closes_the_pages_it_opened(house: House, guest: Page) -> None:
    made = house.admin.tokens.add("ann", "operator")
    enter(guest, made.token, "Topics")
    house.admin.tokens.remove(made.id)
    see(guest.get_by_label("Token"))


# What people do


def test_what_is_published_arrives(house: House, page: Page) -> None:
    page.goto("/topics")
    page.get_by_label("Topic", exact=True).fill("walk/kitchen/temp")
    page.get_by_label("Payload").fill('{"celsius": 21.5}')
    page.get_by_role("button", name="Publish").click()
    see(page.get_by_text("Published as offset 1."))
    page.get_by_role("treeitem", name="walk").click()
    page.get_by_role("treeitem", name="kitchen").click()
    page.get_by_role("treeitem", name="temp").click()
    see(page.get_by_role("heading", name="walk/kitchen/temp"))
    see(page.get_by_role("cell", name='{"celsius": 21.5}'))
    page.get_by_role("button", name="1", exact=True).click()
    dialog = page.get_by_role("dialog")
    see(dialog.get_by_text("celsius: 21.5"))
    dialog.get_by_role("button", name="Hex").click()
    see(dialog.get_by_text("7b 22 63 65"))
    dialog.get_by_role("button", name="Close").click()
    page.get_by_role("switch", name="Follow").click()
    see(page.get_by_text("Following."))
    house.bus.publish("walk/kitchen/temp", b"and here is another", retain=True)
    see(page.get_by_role("cell", name="and here is another"))
    see(page.get_by_text("Retained since"))


def test_messages_are_searched_by_what_is_in_them_a_hundred_at_a_time(house: House, page: Page) -> None:
    house.bus.publish_many(
        [(f"sought/{n % 2}", json.dumps({"sensor": {"id": n}, "on": n % 2 == 0}).encode()) for n in range(400)]
    )
    house.bus.publish("sought/odd", b"in words alone", key=b"k7", headers={"unit": "C"})
    page.goto("/topics?topic=sought")
    page.get_by_role("button", name="Search").click()
    see(page.get_by_role("heading", name="Search", level=1))
    page.get_by_label("JSON fields").fill("$.on == true and $.sensor.id >= 100")
    page.get_by_label("JSON fields").press("Enter")
    see(page.get_by_text("100 messages found, 299 of 401 looked at. There may be more."))
    page.get_by_label("JSON fields").fill("$.on == false")  # what is typed meanwhile is for the next search
    page.get_by_role("button", name="Search on").click()
    see(page.get_by_text("150 messages found, 102 of 102 looked at."))
    page.get_by_role("button", name="101", exact=True).click()
    dialog = page.get_by_role("dialog")
    see(dialog.get_by_text("sensor: { 1 field }"))
    see(dialog.get_by_text("id: 100"))
    dialog.get_by_text("sensor: { 1 field }").click()
    expect(dialog.get_by_text("id: 100")).to_be_hidden()
    dialog.get_by_role("button", name="Close").click()
    page.get_by_label("JSON fields").fill("sensor")
    page.get_by_role("button", name="Search", exact=True).click()
    see(page.get_by_text("a field begins with $.", exact=False))
    page.get_by_label("JSON fields").fill("")
    page.get_by_label("Text in the key").fill("k7")
    page.get_by_label("Header").fill("unit=C")
    page.get_by_role("button", name="Search", exact=True).click()
    see(page.get_by_role("cell", name="in words alone"))
    see(page.get_by_text("1 message found, 401 of 401 looked at."))


def test_a_reader_searches_only_what_a_reader_sees(house: House, guest: Page) -> None:
    enter(guest, house.tokens["reader"], "Search")
    guest.get_by_label("Topic or filter").fill("$sys/#")
    guest.get_by_label("Topic or filter").press("Enter")
    see(guest.get_by_text("does not see all that", exact=False))


def test_topics_are_asked_in_sql_and_the_answer_is_drawn(house: House, page: Page) -> None:
    house.bus.publish_many([(f"asked/{n % 2}", str(n)) for n in range(10)])
    page.goto("/sql")
    page.get_by_label("Query").fill("select topic, sum(value) as total from 'asked/#' group by 1 order by 1")
    page.get_by_label("Query").press("Control+Enter")
    see(page.get_by_role("cell", name="asked/1"))
    see(page.get_by_role("cell", name="25.0"))
    see(page.get_by_role("img", name="Chart of the answer"))
    page.get_by_label("Query").fill("select * from read_csv('/etc/passwd')")
    page.get_by_role("button", name="Run").click()
    see(page.get_by_text("no files or networks", exact=False))


def test_a_live_tail_is_paused_and_goes_on(house: House, page: Page) -> None:
    house.bus.publish("tail/a", b"first")
    page.goto("/topics?topic=tail/a")
    page.get_by_role("switch", name="Follow").click()
    see(page.get_by_text("Following."))
    page.get_by_role("button", name="Pause").click()
    house.bus.publish("tail/a", b"while it is paused")
    see(page.get_by_text("Paused; 1 offset of tail came since."))
    assert page.get_by_role("cell", name="while it is paused").count() == 0
    page.get_by_role("button", name="Go on").click()
    see(page.get_by_role("cell", name="while it is paused"))


def test_an_error_of_many_lines_is_told_on_one_and_in_full(house: House, page: Page) -> None:
    error = 'Traceback (most recent call last):\n  File "a.py", line 1, in price\nValueError: no VAT rate'
    with house.bus.subscribe("failed/#", id="fails", max_attempts=1) as consumer:
        house.bus.publish("failed/a", b"{}")
        message = consumer.next(timeout_s=20)
        assert message is not None
        message.nack(error)
        page.goto("/dead-letters?id=fails")
        see(page.get_by_role("cell", name="ValueError: no VAT rate", exact=True))
        page.get_by_role("button", name="1", exact=True).click()
        whole = page.get_by_role("dialog").get_by_text("Traceback")
        assert whole.inner_text().splitlines() == error.splitlines()
        page.keyboard.press("Escape")


def test_the_life_of_a_message_is_told(house: House, page: Page) -> None:
    bus = house.bus
    with bus.subscribe("lived/#", id="told", states="stream", order="none") as consumer:
        bus.publish("lived/a", b"{}")
        message = consumer.next(timeout_s=20)
        assert message is not None
        message.nack("no VAT rate", delay_s=0.01)
        message = consumer.next(timeout_s=20)
        assert message is not None
        message.ack()
    told = bus.follow("$sys/states/told", after=0)
    assert any(one.json()["event"] == "acked" for one in told)
    told.close()
    page.goto("/topics?topic=lived/a")
    page.get_by_role("button", name="1", exact=True).click()
    page.get_by_text("What became of it").click()
    life = page.get_by_role("dialog").get_by_role("listitem")
    see(life.get_by_text("was taken by", exact=False).first)
    see(life.get_by_text("attempt 1, again at", exact=False))
    see(life.get_by_text("no VAT rate", exact=False))
    see(life.get_by_text("was acked", exact=False))
    see(page.get_by_text("It is done with, or was passed over."))
    assert not barriers(page, DIALOG)


def test_what_is_lost_is_named_before_it_is_purged_or_removed(house: House, page: Page) -> None:
    house.bus.publish_many([("lost/a", b"1"), ("lost/a", b"2"), ("lost/b", b"3")])
    house.admin.subscriptions.create("loses", "lost/b", start="earliest")
    page.goto("/topics?topic=lost/a")
    page.get_by_role("button", name="Purge").click()
    asked = page.get_by_role("dialog", name="2 messages of 1 topic will be gone for good. This")
    asked.get_by_role("button", name="Purge").click()
    see(page.get_by_text("1 topic purged."))
    assert [one.offset for one in house.bus.replay("lost/#")] == [3]
    page.goto("/topics?topic=lost")
    page.get_by_role("button", name="Remove root").click()
    asked = page.get_by_role("dialog", name="gone for good, also for those who are behind: loses")
    asked.get_by_role("button", name="Remove").click()
    page.get_by_role("button", name="Remove anyway").click()
    see(page.get_by_text("lost is removed."))
    assert house.bus.topics("lost/#") == []


def test_a_topic_is_found_at_any_level_and_its_rate_is_drawn(house: House, page: Page) -> None:
    house.bus.publish("deep/in/the/Cellar/temp", b"12")
    page.goto("/topics")
    page.get_by_label("Find a topic, or type a filter").fill("cellar")
    page.get_by_role("button", name="deep/in/the/Cellar/temp").click()
    see(page.get_by_role("cell", name="12", exact=True))
    page.get_by_role("tab", name="Over time").click()
    see(page.locator("canvas").first)
    place = page.locator(".hw-detail .hw-charts")
    assert place.evaluate("one => one.getBoundingClientRect().width") > 300  # those of the past have room to be drawn


FITS = """
() => { const one = document.querySelector(".hw-table .q-table__middle"); return one.scrollWidth <= one.clientWidth }
"""


def test_columns_of_messages_fit(house: House, page: Page) -> None:
    house.bus.publish("fits/a/rather/long/topic", b"x" * 400, key=b"a key of a message", headers={"unit": "C"})
    page.goto("/topics?topic=fits")
    see(page.get_by_role("cell", name="unit=C"))
    page.wait_for_function(FITS, timeout=PATIENCE_MS)
    cell = page.locator("td.hw-line").last.bounding_box()
    assert cell is not None
    assert cell["width"] >= 180


def test_columns_fit_and_break_no_name(house: House, page: Page) -> None:
    house.admin.channels.add("a name", "home/kitchen/temp", "127.0.0.1", 9)
    with house.bus.subscribe("home/#"):
        for path in ("/audit", "/sessions", "/channels", "/subscriptions"):
            page.goto(path)
            see(page.locator(".hw-table td").first)
            page.wait_for_function(FITS, timeout=PATIENCE_MS)
            for cell in page.locator("td.hw-name, td.hw-mono:not(.hw-line)").all():
                box = cell.bounding_box()
                assert box is None or box["width"] >= 98, path


def test_a_subscription_of_a_session_is_known_by_its_client(house: House, page: Page) -> None:
    with house.bus.subscribe("walls/+/temp", kind="session"):
        name = f"{gethostname()}:{os.getpid()}: walls/+/temp"
        page.goto("/subscriptions")
        page.get_by_role("button", name=name).click()
        see(page.get_by_role("heading", name=name))
        page.keyboard.press("Escape")


def test_a_session_is_looked_at_disconnected_and_ended(house: House, page: Page) -> None:
    house.admin.clients.add("bob", SECRET)
    for action in ("subscribe", "create"):
        house.admin.acl.allow("bob", action, "ends/#")
    with headwater.connect(house.address("bob")) as bus, bus.subscribe("ends/#", kind="session"):
        page.goto("/sessions")
        row = page.get_by_role("row").filter(has_text="bob")
        row.get_by_role("button", name=f"{gethostname()}:{os.getpid()}").click()
        see(page.get_by_role("dialog").get_by_text("ends/# (session)", exact=True))
        page.get_by_role("button", name="Close").click()
        row.get_by_role("button", name="Disconnect").click()
        see(page.get_by_text("Disconnected; the client may come back."))
        row.get_by_role("button", name="End session").click()
        asked = page.get_by_role("dialog", name="1 subscription of its own, with what waits there, will be gone")
        asked.get_by_role("button", name="End session").click()
        see(page.get_by_text("is ended."))


def test_a_chart_shows_its_whole_span_though_little_was_sampled(page: Page) -> None:
    page.goto("/")
    see(page.locator("canvas").first)
    first = page.evaluate("headwater.first({ min: 5_000_000, max: 5_001_000 }, 600)")
    assert first == 5_001_000 - 600_000
    assert page.evaluate("headwater.first({ min: Infinity, max: -Infinity }, 600)") is None
    shown = """() => {
        const chart = getElement(Number(document.querySelector(".hw-chart").id.slice(1))).chart;
        const [from, to] = chart.getModel().getComponent("xAxis").axis.scale.getExtent();
        return to - from;
    }"""
    assert page.evaluate(shown) >= 599_000


CONTRAST = """() => {
    const light = (text) => text.match(/[0-9a-f]{2}/g).slice(0, 3)
        .map((one) => parseInt(one, 16) / 255)
        .map((one) => one <= 0.04045 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4)
        .reduce((sum, one, at) => sum + one * [0.2126, 0.7152, 0.0722][at], 0.05);
    const chart = getElement(Number(document.querySelector(".hw-chart").id.slice(1))).chart.getOption();
    const drawn = [chart.legend[0].textStyle, chart.xAxis[0].axisLabel, chart.yAxis[0].axisLabel];
    const card = light(getComputedStyle(document.body).getPropertyValue("--hw-card"));
    return Math.min(...drawn.map((one) => light(one.color) / card).map((one) => Math.max(one, 1 / one)));
}"""


@pytest.mark.parametrize("themes", [("light", "dark"), ("dark", "light")])
def test_what_charts_say_can_be_read_in_the_theme_they_are_opened_in_and_in_the_next(
    page: Page, themes: tuple[Theme, Theme]
) -> None:
    page.emulate_media(color_scheme=themes[0])
    page.goto("/")
    see(page.locator("canvas").first)
    for theme in themes:
        page.emulate_media(color_scheme=theme)
        page.wait_for_function(f"({CONTRAST})() >= 4.5", timeout=PATIENCE_MS)
    page.emulate_media(color_scheme="light")


def test_a_report_of_new_code_is_shown(house: House, page: Page) -> None:
    def parse(message: headwater.Message) -> None:
        float(message.payload)

    with headwater.open(house.folder / "tried") as bus:
        bus.publish_many([("tried/a", b"1"), ("tried/a", b"warm")])
        with bus.subscribe("tried/#", id="tries", start="earliest", max_attempts=1) as consumer:
            consumer.ack(consumer.batch(2, timeout_s=20))
        report = report_lines(bus.what_if("tries", parse))
    shutil.rmtree(house.folder / "tried")
    house.bus.publish("what-if/tries", report)
    house.bus.publish("what-if/tries", b"no report")
    page.goto("/what-if")
    see(page.get_by_text("1 message there is no report."))
    see(page.get_by_role("row").filter(has_text="tries").filter(has_text="parse"))
    page.get_by_role("row").filter(has_text="tries").get_by_role("button").click()
    dialog = page.get_by_role("dialog")
    see(dialog.get_by_role("cell", name="newly fail"))
    see(dialog.get_by_text("could not convert string to float", exact=False))
    assert not barriers(page, DIALOG)


def test_messages_are_downloaded_and_published_once_more(house: House, page: Page) -> None:
    house.bus.publish("taken/a", {"celsius": 21.5}, key=b"k", headers={"unit": "C"})
    house.bus.publish("taken/a", b"\xff\x00")
    page.goto("/topics?topic=taken/a")
    see(page.get_by_role("cell", name="unit=C"))
    with page.expect_download() as taken:
        page.get_by_role("button", name="Download as JSON lines").click()
    first, second = map(json.loads, Path(taken.value.path()).read_text(encoding="utf-8").splitlines())
    assert (first["offset"], first["json"], ["unit", "C"] in first["headers"]) == (1, {"celsius": 21.5}, True)
    assert (second["topic"], second["payload_base64"]) == ("taken/a", "/wA=")
    page.get_by_role("button", name="1", exact=True).click()
    page.get_by_role("button", name="Publish again").click()
    page.get_by_role("dialog", name="once more?").get_by_role("button", name="Publish").click()
    see(page.get_by_text("Published as offset 3."))
    (again,) = house.bus.replay("taken/#", after=2)
    assert (again.json(), again.key, again.headers["unit"]) == ({"celsius": 21.5}, b"k", "C")


def test_messages_are_paged_back_and_found_by_offset_and_time(house: House, page: Page) -> None:
    house.bus.publish_many([("pages/a", f"number {n}".encode()) for n in range(1, 121)])
    page.goto("/topics?topic=pages/a")
    see(page.get_by_role("cell", name="number 120", exact=True))
    page.get_by_role("button", name="Older").click()
    see(page.get_by_role("cell", name="number 70", exact=True))
    page.get_by_label("Go to").fill("10")
    page.get_by_role("button", name="Go", exact=True).click()
    see(page.get_by_role("cell", name="number 10", exact=True))
    see(page.get_by_text("These are the oldest."))
    page.get_by_label("Go to").fill("2999-01-01")
    page.get_by_label("Go to").press("Enter")
    see(page.get_by_role("cell", name="number 120", exact=True))
    page.get_by_label("Go to").fill("nowhere")
    page.get_by_label("Go to").press("Enter")
    see(page.get_by_text('"nowhere" is no place', exact=False))


def test_a_broken_consumer_s_dead_letter_is_redriven(house: House, page: Page) -> None:
    bus = house.bus
    with bus.subscribe("broken/#", id="breaker", start="earliest", max_attempts=2) as consumer:
        bus.publish("broken/order", json.dumps({"id": 7}).encode())
        for attempt in (1, 2):
            message = consumer.next(timeout_s=20)
            assert message is not None
            assert message.attempt == attempt
            message.nack("no VAT rate for 7", delay_s=0.01)
        page.goto("/dead-letters?id=breaker")
        see(page.get_by_role("cell", name="no VAT rate for 7"))
        page.get_by_role("button", name="Redrive", exact=True).click()
        see(page.get_by_text("1 redriven."))
        message = consumer.next(timeout_s=20)
        assert message is not None
        message.ack()
    see(page.get_by_text("No dead letters", exact=False))
    page.goto("/subscriptions?id=breaker")
    see(page.get_by_text("everything it was handed is done", exact=False))


def test_a_channel_is_made_tried_and_delivers(house: House, page: Page) -> None:
    with headwater.receive(port=0) as receiver:
        page.goto("/channels")
        page.get_by_role("button", name="New channel").click()
        page.get_by_label("Name").fill("alarms")
        page.get_by_label("Filter").fill("alarms/#")
        page.get_by_label("Destination port").fill(str(receiver.port))
        page.get_by_role("button", name="Create").click()
        row = page.get_by_role("row").filter(has_text="alarms/#")
        see(row)
        row.get_by_role("button", name="Test").click()
        see(page.locator(".q-notification.bg-positive").last)
        house.bus.publish("alarms/kitchen", b"smoke")
        message = receiver.next(timeout_s=20)
        assert message is not None
        assert message.payload == b"smoke"
        message.ack()
        see(row.get_by_text("idle").or_(row.get_by_text("delivering")))
        expect(row.get_by_role("cell", name="1", exact=True)).to_be_visible(timeout=PATIENCE_MS)
        row.get_by_role("button", name="Pause").click()
        page.get_by_role("dialog", name="Pause alarms?").get_by_role("button", name="Pause").click()
        see(row.get_by_text("paused"))
    made = next(one for one in house.admin.channels.list() if one.name == "alarms")
    page.goto(f"/subscriptions?id=channel:{made.id}")
    see(page.get_by_role("heading", name="channel alarms"))
    page.get_by_role("button", name="Delete").click()
    see(page.get_by_role("dialog", name="Delete channel alarms, its place, 0 messages that wait"))
    page.goto("/channels")
    house.bus.publish("alarms/kitchen", b"fire")
    expect(row.get_by_role("cell", name="1", exact=True)).to_have_count(2)  # delivered, and behind
    row.get_by_role("button", name="Remove").click()
    asked = page.get_by_role("dialog", name="its place, 1 message that wait and 0 dead letters")
    asked.get_by_role("button", name="Remove").click()
    page.get_by_role("button", name="Remove anyway").click()
    see(page.get_by_text("alarms is removed."))
    assert "alarms" not in {channel.name for channel in house.admin.channels.list()}


def test_a_subscription_is_made_paused_sought_and_deleted(house: House, page: Page) -> None:
    house.bus.publish_many([("made/a", b"x")] * 5)
    page.goto("/subscriptions")
    page.get_by_role("button", name="New subscription").click()
    page.get_by_label("Id", exact=True).fill("by-hand")
    page.get_by_label("Filter", exact=True).fill("made/#")
    page.get_by_label("Attempts", exact=False).fill("2")
    page.get_by_label("Filter", exact=True).press("Enter")
    page.get_by_role("button", name="by-hand").click()
    see(page.get_by_text("max_attempts 2", exact=False))
    page.get_by_label("Seek to").fill("earliest")
    page.get_by_role("button", name="Seek", exact=True).click()
    asked = page.get_by_role("dialog", name="from the beginning")
    see(asked.get_by_text("Everything that it has done is handed out again."))
    asked.get_by_role("button", name="Seek").click()
    see(page.get_by_text("5 messages"))
    page.get_by_role("button", name="Pause").click()
    asked = page.get_by_role("dialog", name="Nothing is lost; 5 messages")
    asked.get_by_role("button", name="Pause").click()
    see(page.get_by_role("button", name="Resume"))
    page.get_by_label("Seek to").fill("latest")
    page.get_by_role("button", name="Seek", exact=True).click()
    asked = page.get_by_role("dialog", name="That passes over 5 messages")
    asked.get_by_role("button", name="Cancel").click()
    page.get_by_role("button", name="Delete").click()
    see(page.get_by_text("This cannot be taken back.", exact=False))
    page.get_by_role("button", name="Delete").last.click()
    see(page.get_by_text("by-hand is deleted."))
    assert "by-hand" not in {one.id for one in house.bus.subscriptions()}


def test_values_schedules_settings_and_changes_are_found_and_changed(house: House, page: Page) -> None:
    house.bus.publish("keeps/temp", b"21.5 degrees", retain=True)
    page.goto("/retained")
    page.get_by_label("Filter", exact=True).fill("keeps/#")
    row = page.get_by_role("row").filter(has_text="keeps/temp")
    see(row.get_by_text("21.5 degrees"))
    row.get_by_role("button", name="Clear").click()
    page.get_by_role("dialog").get_by_role("button", name="Clear").click()
    see(page.get_by_text("No topic that matches keeps a value."))
    assert dict(house.bus.retained("keeps/#")) == {}

    go(page, "Schedules")
    page.get_by_role("button", name="New schedule").click()
    page.get_by_label("Topic", exact=True).fill("jobs/nightly")
    page.get_by_label("Payload").fill("run")
    page.get_by_label("Cron", exact=False).fill("0 3 1 1 *")
    page.get_by_label("Cron", exact=False).press("Enter")
    row = page.get_by_role("row").filter(has_text="jobs/nightly")
    see(row.get_by_text("-01-01 03:00:00"))
    assert [(one.id, one.payload) for one in house.bus.schedules()] == [("jobs/nightly", b"run")]
    row.get_by_role("button", name="Remove").click()
    page.get_by_role("dialog").get_by_role("button", name="Remove").click()
    see(page.get_by_text("Nothing is published by a schedule."))
    assert house.bus.schedules() == []

    go(page, "Settings")
    page.get_by_role("switch", name="Only those that were set").click()
    page.get_by_label("Find a setting").fill("auth")
    see(page.get_by_role("row").filter(has_text="--auth").get_by_text("scram"))
    expect(page.get_by_role("row").filter(has_text="default")).to_have_count(1)  # the head

    go(page, "Audit")
    page.get_by_label("Find a change").fill("jobs/nightly")
    row = page.get_by_role("row").filter(has_text="unscheduled")
    see(row)
    expect(page.get_by_role("row")).to_have_count(3)  # the head, made and removed
    row.get_by_role("button", name="unscheduled").click()
    see(page.get_by_role("dialog").get_by_text('"cron": "0 3 1 1 *"'))


def test_a_client_gets_a_rule_and_a_token_that_is_shown_once(house: House, page: Page) -> None:
    page.goto("/clients")
    page.get_by_role("button", name="New client").click()
    page.get_by_label("Name").fill("sensor-7")
    page.get_by_role("button", name="Add").click()
    see(page.get_by_text("The secret of sensor-7"))
    page.get_by_role("button", name="Done").click()
    row = page.get_by_role("row").filter(has_text="sensor-7")
    row.get_by_role("button", name="New token").click()
    page.get_by_role("button", name="Make").click()
    secret = page.get_by_text("hwt_", exact=False)
    see(secret)
    token = secret.inner_text()
    page.get_by_role("button", name="Done").click()
    expect(page.get_by_text(token)).to_have_count(0)
    page.get_by_role("button", name="New rule").click()
    page.get_by_label("Client", exact=True).fill("sensor-7")
    page.get_by_label("Filter", exact=True).fill("home/#")
    page.get_by_role("button", name="Add").click()
    see(page.get_by_role("row").filter(has_text="home/#"))
    assert any((rule.user, rule.filter) == ("sensor-7", "home/#") for rule in house.bus.acl.list())
    page.get_by_role("row").filter(has_text="home/#").get_by_role("button", name="Remove").click()
    asked = page.get_by_role("dialog", name="Remove the rule allow sensor-7 publish home/#?")
    asked.get_by_role("button", name="Remove").click()
    see(page.get_by_text("The rule is removed."))
    assert not any(rule.user == "sensor-7" for rule in house.bus.acl.list())


# What must hold on every page


def test_names_from_messages_stay_inert(house: House, page: Page) -> None:
    bus = house.bus
    for _ in range(2):
        bus.publish(f"evil/{EVIL}", SCRIPT.encode(), retain=True, headers={EVIL: SCRIPT}, key=EVIL.encode())
    bus.publish(EVIL, EVIL.encode())
    with bus.subscribe("evil/#", id=f"evil {EVIL}", start="earliest", order="none") as consumer:
        dead, failed = consumer.next(timeout_s=20), consumer.next(timeout_s=20)
        assert dead is not None
        assert failed is not None
        dead.reject(f"{EVIL}{SCRIPT}")
        failed.nack(f"{EVIL}{SCRIPT}", delay_s=3600)
    page.goto(f"/topics?topic=evil/{EVIL}")
    see(page.get_by_role("treeitem", name=EVIL).first)
    see(page.get_by_text(SCRIPT).first)
    page.get_by_role("button", name="1", exact=True).click()
    see(page.get_by_text(f"Header {EVIL}"))
    page.goto(f"/dead-letters?id=evil {EVIL}")
    see(page.get_by_role("cell", name=f"{EVIL}{SCRIPT}"))
    page.goto(f"/subscriptions?id=evil {EVIL}")
    see(page.get_by_role("heading", name=EVIL, level=2))
    see(page.get_by_role("cell", name=f"{EVIL}{SCRIPT}"))
    page.get_by_role("button", name="Delete").click()
    see(page.get_by_text("This cannot be taken back.", exact=False))
    page.goto("/")
    see(page.get_by_role("cell", name=EVIL).first)
    for name in NAMES:
        go(page, name)
        assert page.locator("img[src=x]").count() == 0
        assert page.evaluate("window.caught") == []


def test_a_phone_shows_every_page_without_scrolling_sideways(house: House, page: Page) -> None:
    house.bus.publish("a-root-with-a-rather-long-name/" + "level/" * 20, b"x" * 500)
    page.set_viewport_size(PHONE)
    page.goto("/topics?topic=a-root-with-a-rather-long-name")
    see(page.get_by_role("treeitem", name="a-root-with"))
    page.get_by_role("button", name="Pages").click()
    go(page, "Overview")
    for path, name in zip(PAGES, NAMES, strict=True):
        page.evaluate("path => emitEvent('sub_pages_navigate', path)", path)
        see(page.get_by_role("heading", name=name, level=1))
        page.wait_for_function("document.documentElement.scrollWidth <= innerWidth", timeout=PATIENCE_MS)
    page.set_viewport_size(WIDE)


def test_dark_mode_follows_the_system_and_can_be_turned(page: Page) -> None:
    page.emulate_media(color_scheme="dark")
    page.goto("/pipelines")
    expect(page.locator("body.body--dark")).to_have_count(1, timeout=PATIENCE_MS)
    turn = page.get_by_role("button", name="Dark mode")
    turn.click()
    turn.click()  # automatic, dark, light
    expect(page.locator("body.body--light")).to_have_count(1, timeout=PATIENCE_MS)
    page.reload()
    expect(page.locator("body.body--light")).to_have_count(1, timeout=PATIENCE_MS)


def test_the_keyboard_alone_publishes(house: House, page: Page) -> None:
    page.goto("/")
    see(page.get_by_role("heading", name="Overview"))
    page.get_by_role("link", name="Topics").focus()
    page.keyboard.press("Enter")
    see(page.get_by_role("heading", name="Topics"))
    _tab_to(page, "Topic")
    page.keyboard.type("keys/a")
    _tab_to(page, "Payload")
    page.keyboard.type("typed")
    _tab_to(page, "Publish")
    page.keyboard.press("Enter")
    see(page.get_by_text("Published as offset 1."))
    see(page.get_by_role("treeitem", name="keys"))
    page.locator('[role=treeitem][tabindex="0"]').focus()
    page.keyboard.press("End")
    expect(page.get_by_role("treeitem").last).to_be_focused(timeout=PATIENCE_MS)
    page.keyboard.press("Home")
    expect(page.get_by_role("treeitem").first).to_be_focused(timeout=PATIENCE_MS)
    for _ in range(20):
        page.keyboard.press("ArrowDown")
        if "keys" in page.locator("[role=treeitem]:focus").inner_text():
            break
    page.keyboard.press("ArrowRight")
    see(page.get_by_role("treeitem", name="a", exact=False).and_(page.locator('[aria-level="2"]')))
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    see(page.get_by_role("cell", name="typed"))


def _tab_to(page: Page, name: str) -> None:
    for _ in range(60):
        page.keyboard.press("Tab")
        reached = page.evaluate("document.activeElement.ariaLabel || document.activeElement.innerText")
        if reached and name in str(reached).split("\n"):
            return
    raise AssertionError(f"no Tab led to {name}")


def test_a_page_that_nobody_sees_asks_for_nothing(house: House, page: Page) -> None:
    house.bus.publish("seen/a", b"before")
    page.goto("/topics?topic=seen/a")
    page.get_by_role("switch", name="Follow").click()
    see(page.get_by_text("Following."))
    hide = "is => { Object.defineProperty(document, 'hidden', {value: is, configurable: true});"
    page.evaluate(hide + "document.dispatchEvent(new Event('visibilitychange')); }", True)
    for number in range(10):  # the server has to hear of it first
        house.bus.publish("seen/a", b"meanwhile %d" % number)
        page.wait_for_timeout(1200)
        last = page.get_by_role("cell", name=f"meanwhile {number}", exact=True)
        if last.count() == 0:
            break
    else:
        raise AssertionError("it goes on asking")
    page.evaluate(hide + "document.dispatchEvent(new Event('visibilitychange')); }", False)
    see(last)


def test_a_tree_of_ten_thousand_topics_is_loaded_as_far_as_it_is_looked_at(page: Page) -> None:
    page.goto("/topics")
    page.get_by_role("treeitem", name="many").click()
    see(page.get_by_role("treeitem", name="device-00000"))
    assert page.get_by_role("treeitem").count() < 200
    page.get_by_label("Find a topic, or type a filter").fill("many/device-09999")
    see(page.get_by_role("treeitem", name="device-09999"))
    page.get_by_label("Find a topic, or type a filter").fill("many/#")
    page.get_by_label("Find a topic, or type a filter").press("Enter")
    see(page.get_by_role("cell", name="many/device-09999"))
    page.goto("/topics?topic=many/%2B/x")
    see(page.get_by_role("heading", name="many/+/x"))
    see(page.get_by_role("treeitem", name="device-00000"))


def test_the_dashboard_writes_nothing_beside_the_data(house: House) -> None:
    assert [one.name for one in house.folder.iterdir()] == ["data"]


THEMES = pytest.mark.parametrize("theme", ["light", "dark"])
DIALOG = "[role=dialog]"
TOAST = ".q-notification"
BUTTON_TEXT = '<span class="block">'
STILL = """
!document.querySelector(".q-dialog__inner--animating, [class*='-enter-active']")
&& document.getAnimations().every((one) => one.playState !== "running")
"""


def barriers(page: Page, within: str = "html") -> list[str]:
    """What keeps somebody from reading it: contrast, names for screen readers, and the like."""
    page.wait_for_function(STILL)
    found = Axe().run(page, within, options={"resultTypes": ["violations"]}).response["violations"]
    return [
        f"{one['id']}: {node['html'][:120]} {node['failureSummary']}"
        for one in found
        if one["impact"] in ("serious", "critical")
        for node in one["nodes"][:9]
        # Behind the buttons of a dialog axe sees the page below it; they are the same as those of pages.
        if within != DIALOG or one["id"] != "color-contrast" or BUTTON_TEXT not in node["html"]
    ]


@THEMES
def test_everybody_can_read_every_page(house: House, page: Page, theme: Theme) -> None:
    page.emulate_media(color_scheme=theme)
    page.goto("/")
    for name in NAMES:
        go(page, name)
        if name == "Overview":
            see(page.locator("canvas").first)
        assert not barriers(page), name
    page.emulate_media(color_scheme="light")


@THEMES
def test_everybody_can_read_the_log_in_and_what_opens_on_a_page(
    house: House, page: Page, guest: Page, theme: Theme
) -> None:
    house.bus.publish("read/me", b'{"celsius": 21.5}', retain=True, key=b"k", headers={"unit": "C"})
    house.admin.subscriptions.create(f"read-{theme}", "read/#", start="earliest")
    guest.context.clear_cookies()
    for one in (guest, page):
        one.emulate_media(color_scheme=theme)
    guest.goto("/login")
    assert not barriers(guest)
    page.goto("/topics?topic=read/me")
    see(page.get_by_role("cell", name="celsius").first)
    assert not barriers(page)
    page.get_by_label("Go to").fill("nowhere")
    page.get_by_label("Go to").press("Enter")
    see(page.locator(TOAST))
    assert not barriers(page, TOAST)
    page.goto("/subscriptions")
    page.get_by_role("button", name=f"read-{theme}").click()
    see(page.get_by_role("heading", name=f"read-{theme}"))
    assert not barriers(page, DIALOG)
    page.goto("/channels")
    page.get_by_role("button", name="New channel").click()
    see(page.get_by_role("heading", name="New channel"))
    assert not barriers(page, DIALOG)
    page.emulate_media(color_scheme="light")
