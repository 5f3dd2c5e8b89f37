"""Who begins large frames and ends none, over as many connections as it likes: what that holds is its own share."""

from __future__ import annotations

import socket
import time

import pytest

from headwater.config import KIB, MIB, Config
from headwater.errors import Malformed, QuotaExceeded
from headwater.mqtt.encoding import encode
from headwater.mqtt.kinds import V5
from headwater.mqtt.kinds import Kind as MqttKind
from headwater.mqtt.packets import Disconnect, Publish
from headwater.mqtt.reasons import Reason
from headwater.server.holdings import Holding
from headwater.store.batch import checksum
from headwater.wire import requests
from headwater.wire.frame import Kind, pack
from mqtt.peer import MqttPeer, Served
from server.harness import Ended, Peer, Running, make_body, nothing_is_committed

BUDGET = 1 * MIB
LIMITS = Config(batch_bytes_max=256 * KIB, message_bytes_max=256 * KIB)
HOGS = 12
PART_BYTES = 200 * KIB


def begun_bytes(running: Running) -> int:
    """What all connections hold of frames that have not ended; on the loop."""
    return sum(one._begun_bytes for one in running.server.listener.connections)


def cut_off(peer: Peer) -> bool:
    """Whether it was told that it holds too much, and closed."""
    try:
        error = peer.ends(timeout_s=0.2)
    except TimeoutError:
        return False
    assert isinstance(error, QuotaExceeded)
    assert "unanswered_bytes_per_client_max" in str(error)
    return True


@pytest.mark.parametrize("auth", ["none", "scram"])
def test_a_client_without_rules_holds_no_more_than_its_share_in_frames_that_do_not_end(auth: str):
    with Running(config=LIMITS, auth=auth, unanswered_bytes_per_client_max=BUDGET) as running:
        if auth == "scram":
            running.client("hog")
            running.client("other", ("publish #", "create #"))
        hogs = [running.peer("hog") for _ in range(HOGS)]
        frame = pack(Kind.PING, 0, bytes(LIMITS.batch_bytes_max))
        for hog in hogs:
            try:
                hog.send(frame[:PART_BYTES])
            except OSError:
                pass
        running.until(lambda: len(running.server.listener.connections) < HOGS, "the end of some")
        ended = sum(map(cut_off, hogs))
        assert running.call(lambda: begun_bytes(running)) <= BUDGET
        assert HOGS - ended >= BUDGET // PART_BYTES - 1  # those that are within it stay
        other = running.peer("other")
        other.publish("home/x", bytes(LIMITS.message_bytes_max - 4096))
        for hog in hogs:
            hog.close()
        running.until(lambda: not begun_bytes(running), "all to be given back")
        running.peer("hog").ping(bytes(PART_BYTES))


def test_the_same_with_mqtt():
    with Served(":memory:", LIMITS, unanswered_bytes_per_client_max=BUDGET, auth="scram") as served:
        served.client("hog")
        hogs: list[MqttPeer] = [served.mqtt(f"hog{number}", user="hog") for number in range(HOGS)]
        packet = encode(Publish("home/x", bytes(LIMITS.message_bytes_max)), V5)
        for hog in hogs:
            try:
                hog.send(packet[:PART_BYTES])
            except OSError:
                pass
        served.until(lambda: sum(one.is_closed for one in served.server.listener.connections), "the end of some")
        reasons = []
        for hog in hogs:
            try:
                hog.more(0.2)
            except (TimeoutError, Ended):
                continue
            reasons += [one.reason for one in hog.inbox if isinstance(one, Disconnect)]
            hog.close()
        assert served.call(lambda: begun_bytes(served)) <= BUDGET
        assert set(reasons) == {Reason.QUOTA_EXCEEDED}
        assert HOGS - len(reasons) >= BUDGET // PART_BYTES - 1


def test_a_large_frame_that_stands_still_ends_though_most_of_it_has_come():
    with Running(frame_s=0.3) as running:
        hog = running.peer("hog")
        frame = pack(Kind.PING, 0, bytes(60 * MIB))
        hog.send(frame[: 50 * MIB])
        error = hog.ends()
        assert isinstance(error, Malformed)
        assert "frame_s" in str(error)


def test_a_large_packet_that_gets_on_may_take_longer_than_a_frame_that_does_not():
    with Served(frame_s=0.4) as served:
        peer = served.mqtt("slow")
        packet = encode(Publish("home/x", bytes(400 * KIB), qos=1, packet_id=1), V5)
        for place in range(0, len(packet), 40 * KIB):
            peer.send(packet[place : place + 40 * KIB])
            time.sleep(0.1)  # a second in all, at several times the speed that is asked for
        assert peer.ack(MqttKind.PUBACK, 1).reason < Reason.UNSPECIFIED_ERROR


def test_publishes_that_wait_for_the_disk_are_read_no_further_and_none_is_refused(monkeypatch: pytest.MonkeyPatch):
    waits: list[int] = []
    wait = Holding.wait

    def noted(self: Holding, connection: object) -> None:
        waits.append(self.bytes)
        wait(self, connection)  # type: ignore[arg-type]

    monkeypatch.setattr(Holding, "wait", noted)
    with Running(config=LIMITS, unanswered_bytes_per_client_max=BUDGET, requests_in_flight_max=64) as running:
        peers = [running.peer("service") for _ in range(6)]
        for peer in peers:
            peer.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8 * MIB)
        with nothing_is_committed(running.bus):
            numbers = {peer: [peer.publish_soon("home/x", bytes(100 * KIB)) for _ in range(6)] for peer in peers}
            running.until(lambda: waits, "some to wait")
            assert max(waits) <= BUDGET + len(peers) * 256 * KIB
            with running.peer("other") as other:
                other.ping()
        for peer, sent in numbers.items():
            assert all(peer.published(number).first_offset for number in sent)
        body = make_body(["home/x"], [bytes(100 * KIB)])
        stages = [
            peer.begin(
                requests.Stage(
                    producer="p", epoch=1, part=f"{place}", root="home", count=1, crc=checksum(body), body=body
                )
            )
            for place, peer in enumerate(peers)
        ]
        for peer, number in zip(peers, stages, strict=True):
            peer.finish(number, requests.Stage)
        for peer in peers:
            peer.close()
        running.until(lambda: not len(running.server.listener._holdings), "all to be given back")
