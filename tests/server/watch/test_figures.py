"""Figures of a server: what is counted, who may see it, and that looking is cheap however much there is."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from headwater.config import Config, Retention
from headwater.counts import COUNTERS, GAUGES, HISTOGRAMS
from headwater.server.watch import figures as collecting
from headwater.store import readers
from headwater.store.batch import checksum
from headwater.store.files import DiskFiles
from headwater.store.readers import Reader
from headwater.wire import administration as wire
from headwater.wire import requests
from server.harness import Peer, Running, code, make_body


def look(peer: Peer) -> wire.Figures:
    found: wire.Figures = peer.ask(wire.Metrics())
    return found


@pytest.fixture(autouse=True)
def _no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a test sees at once what it did."""
    monkeypatch.setattr(collecting, "FRESH_US", 0)
    monkeypatch.setattr(collecting, "SIZES_US", 0)


def test_every_figure_that_is_named_is_told_and_no_other():
    with Running() as running:
        found = look(running.peer())
        assert list(found.counters) == list(COUNTERS)
        assert list(found.gauges) == list(GAUGES)
        assert list(found.histograms) == list(HISTOGRAMS)


def test_messages_are_counted_in_and_out_and_as_acked_failed_and_dead():
    with Running(config=Config(dead_topics=False)) as running:
        peer = running.peer()
        peer.subscribe(1, "home/#", kind="named", id="s", options={"max_attempts": 2})
        peer.publish(["home/a"] * 10, b"x" * 100)
        got = peer.take(1, 10)
        peer.ack(1, got[:9])
        peer.nack(1, got[9])
        (again,) = peer.take(1, 1)
        peer.nack(1, again)
        counted = look(peer).counters
        assert (counted["messages_in"], counted["messages_out"]) == (10, 11)
        assert (counted["acks"], counted["nacks"], counted["retries"], counted["dead_letters"]) == (9, 2, 1, 1)
        assert counted["bytes_in"] > 1000 < counted["bytes_out"]
        assert counted["commits"] == sum(look(peer).histograms["commit"].counts) == 1
        assert look(peer).gauges["dead"] == 1


def test_readers_of_the_folder_beside_the_server_are_told_where_they_are_by_now(tmp_path: Path):
    with Running(tmp_path) as running:
        peer = running.peer()
        peer.publish(["home/a"] * 10)
        for place, lag in ((1, 10), (8, 3), (11, 0)):
            reader = Reader(id="job", filter="#", places={"home": place}, expire_after_s=60.0)
            readers.leave(DiskFiles(), str(running.bus.folder), reader)
            (found,) = look(peer).subscriptions
            assert (found.id, found.lag, found.is_named) == ("job", lag, True)
            (info,) = peer.ask(requests.Subscriptions())
            assert info.lag == lag


def test_counters_begin_with_the_server(tmp_path: Path):
    with Running(tmp_path) as running:
        running.peer().publish(["home/a"] * 10)
    with Running(tmp_path) as running:
        peer = running.peer()
        peer.publish("home/a")
        found = look(peer)
        assert found.counters["messages_in"] == 1
        assert found.roots[0].end == 12
        assert found.counters["bytes_in"] < 200


def test_gauges_say_what_is_there():
    with Running() as running:
        peer, other = running.peer(), running.peer()
        peer.subscribe(1, "home/#", kind="named", id="s")
        peer.subscribe(2, "home/#")
        other.publish(["home/a", "home/b"])
        other.publish("hall", retain=[True])
        other.ask(
            requests.Delay(topic="home/a", payload=b"later", deliver_at_us=time.time_ns() // 1000 + 3_600_000_000)
        )
        body = make_body(["home/a"], [b"1"])
        other.ask(requests.Stage(producer="p", epoch=1, part="", root="home", count=1, crc=checksum(body), body=body))
        peer.take(1, 2)
        gauges = look(other).gauges
        assert (gauges["connections"], gauges["sessions"]) == (2, 2)
        assert (gauges["subscriptions_durable"], gauges["subscriptions_served"], gauges["subscriptions_live"]) == (
            1,
            1,
            1,
        )
        assert (gauges["lag"], gauges["in_flight"]) == (2, 2)
        assert (gauges["topics"], gauges["retained"], gauges["delayed"], gauges["staged"]) == (3, 1, 1, 1)
        assert gauges["disk_free_bytes"] > 0
        assert gauges["stream_bytes"] == sum(root.bytes for root in look(other).roots)
        assert look(other).counters["messages_in"] == 3


def test_refusals_are_counted_by_their_reason():
    with Running(config=Config(roots_max=1), auth="scram") as running:
        running.client("ann", allow=("publish #", "create #")), running.client("root", admin=True)
        peer = running.peer("ann")
        peer.publish("home/a")
        with code(429):
            peer.publish("hall/a")
        with code(403):
            peer.subscribe(1, "home/#")
        with code(403):
            peer.publish("$sys/a")
        with code(403):
            peer.ask(wire.Metrics())
        counters = look(running.peer("root")).counters
        assert (counters["quota_refusals"], counters["rights_refusals"]) == (1, 3)


def test_connections_are_counted_also_those_that_fail():
    with Running() as running:
        peer = running.peer()
        stranger = running.connect()
        stranger.send(b"GET / HTTP/1.1\r\n\r\n")
        stranger.ends()
        running.until(lambda: running.server.listener.count == 1)
        counters = look(peer).counters
        assert (counters["connections_opened"], counters["handshakes_failed"]) == (2, 1)


def test_a_reader_that_does_not_keep_up_is_named_with_what_it_lost():
    config = Config(live_messages_max=100)
    with Running(config=config, write_bytes_max=64 * 1024) as running:
        slow, peer = running.peer("turtle", receive_bytes=4096), running.peer()
        slow.subscribe(1, "home/#", bytes=1 << 28)
        for _ in range(300):
            peer.publish(["home/a"] * 50, b"x" * 1000)
        (subscriber,) = running.session_of(slow).pumps.values()
        running.until(lambda: running.server.sessions.counts.dropped == subscriber.live.dropped, "a note of drops")
        found = look(peer)
        assert [(one.session, one.user) for one in found.slow] == [(slow.session, "turtle")]
        assert found.slow[0].waiting_bytes > 0
        assert found.gauges["waiting_bytes"] >= found.slow[0].waiting_bytes
        assert found.counters["messages_dropped"] == found.slow[0].dropped > 0
        slow.close()
        running.until(lambda: not running.session_of(slow).pumps)
        after = look(peer)
        assert after.slow == ()
        assert after.counters["messages_dropped"] >= found.counters["messages_dropped"]


def test_rows_are_the_largest_and_those_furthest_behind_and_bounded():
    with Running(figures_max=2) as running:
        peer = running.peer()
        for number in range(4):
            peer.publish([f"root{number}/a"] * (number + 1), b"x" * 1000)
            running.bus.subscribe(f"root{number}/#", id=f"s{number}", start="earliest").close()
        found = look(peer)
        assert [one.root for one in found.roots] == ["root3", "root2"]
        assert [(one.id, one.lag) for one in found.subscriptions] == [("s3", 4), ("s2", 3)]
        assert (found.gauges["lag"], found.gauges["roots"]) == (10, 4)


def test_only_those_who_look_after_the_server_see_how_it_is_doing():
    with Running(auth="scram") as running:
        running.client("ann", allow=("subscribe #",)), running.client("root", admin=True)
        ann, root = running.peer("ann"), running.peer("root")
        for request in (wire.Metrics(), wire.CheckHealth(), wire.ListSettings(), wire.ListPipelines(), wire.ListJobs()):
            with code(403):
                ann.ask(request)
            root.ask(request)


def test_who_asks_again_at_once_gets_the_same_answer(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(collecting, "FRESH_US", 60_000_000)
    with Running() as running:
        peer = running.peer()
        before = look(peer)
        peer.publish("home/a")
        assert look(peer) == before


def test_the_event_loop_tells_how_late_it_is():
    with Running() as running:
        peer = running.peer()
        running.call(lambda: time.sleep(0.3))
        running.until(lambda: sum(running.server.pulse.lags.counts) > 1, "a beat")
        found = look(peer).histograms["loop_lag"]
        assert found.sum_s > 0.04
        assert running.server.pulse.worst_s > 0.04


def test_settings_are_told_with_their_source_and_without_secrets():
    config = Config(retention_roots={"home": Retention(age_s=60.0)})
    nightly = {"nightly": "archive --url headwater://me:hidden@host:7411"}
    with Running(config=config, figures_max=7, pipelines=nightly) as running:
        found: dict[str, Any] = {one.name: one for one in running.peer().ask(wire.ListSettings())}
        assert (found["figures_max"].value, found["figures_max"].default, found["figures_max"].source) == (
            7,
            100,
            "program",
        )
        assert (found["roots_max"].value, found["roots_max"].source) == (4096, "default")
        assert found["retention_roots.home.age_s"].value == 60.0
        assert found["pipelines.nightly"].value == "archive --url headwater://***@host:7411"
        assert not [name for name in found if "secret" in name or "password" in name]


def test_pipelines_are_told_by_root_and_lake(tmp_path: Path):
    with Running(tmp_path) as running:
        peer = running.peer()
        peer.publish(["home/a"] * 10)
        peer.publish(["hall/a"] * 3)
        running.bus.mark_archived("cold", {"home": 4})
        running.bus.mark_archived("other", {"home": 10})
        found = [
            (one.root, one.lake, one.first, one.end, one.archived, one.lag) for one in peer.ask(wire.ListPipelines())
        ]
        assert found == [("hall", "", 1, 4, 0, 3), ("home", "cold", 1, 11, 4, 6), ("home", "other", 1, 11, 10, 0)]
