"""The page of a what-if: what is on it, and what it does not need."""

from __future__ import annotations

import re
from typing import Any
from xml.etree import ElementTree

import headwater
from headwater.work.report import COLUMNS, ROWS_MAX


def page(payloads: list[bytes], handler: Any, topic: str = "home/x") -> str:
    with headwater.open(":memory:") as bus:
        bus.subscribe("home/#", id="<b>s</b>").close()
        if payloads:
            bus.publish_many([(topic, payload) for payload in payloads])
        consumer = bus.subscribe("home/#", id="<b>s</b>", start="earliest")
        while found := consumer.batch(1000, 0.0):
            consumer.ack(found)
        consumer.close()
        return bus.what_if("<b>s</b>", handler).html()


def fails(message: Any) -> None:
    raise ValueError("<script>alert(1)</script>")


def test_it_needs_nothing_from_elsewhere_and_nothing_on_it_is_taken_for_markup():
    said = page([b"<i>1</i>"], fails, topic="home/<u>")
    assert not re.search(r"(?:src|href|url)\s*[=(]|@import|<script", said)
    for text in ("<b>s", "<i>1", "home/<u>"):
        assert text not in said
    assert "&lt;script&gt;alert(1)" in said
    assert "newly fail" in said


def test_its_picture_has_every_message_twice_above_and_below_the_line():
    said = page([b"%d" % number for number in range(500)], lambda message: None)
    drawn = re.search(r"<svg.*?</svg>", said, re.DOTALL)
    assert drawn
    picture = ElementTree.fromstring(drawn[0])
    titles = [one.text or "" for one in picture.iter("title")]
    counts = [int(text.split()[0].replace(",", "")) for text in titles]
    assert sum(counts) == 1000
    assert len(list(picture.iter("rect"))) <= 2 * COLUMNS
    for rect in picture.iter("rect"):
        assert 0 <= float(rect.get("x") or -1) < 900
        assert 0 <= float(rect.get("y") or -1) <= 240


def test_of_very_many_it_lists_the_first_and_counts_the_others():
    said = page([b""] * (ROWS_MAX + 7), fails)
    assert said.count("<code>home/x</code>") == ROWS_MAX
    assert "And 7 more." in said


def test_where_there_was_nothing_it_says_so():
    said = page([], fails)
    assert "There were no messages" in said
    assert "Nothing." in said
