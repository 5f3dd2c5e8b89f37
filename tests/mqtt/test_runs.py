"""Runs: packets that come most are one value, and the messages are those that one by one would be read."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headwater.mqtt import runs
from headwater.mqtt.decoding import Decoder
from headwater.mqtt.encoding import acks_bytes, encode
from headwater.mqtt.fields import Fields
from headwater.mqtt.kinds import V4, V5, Kind
from headwater.mqtt.packets import Ack, Acks, Packet, Pingreq, Publish, Run
from headwater.mqtt.properties import Properties
from headwater.mqtt.reader import PacketReader
from headwater.mqtt.reasons import Reason
from mqtt.samples import LIMITS, VERSIONS, cut_at, encoded, outcome

# Few topics and lengths, so that packets are often alike; sizes on both sides of one byte of remaining length.
PLAIN = st.builds(
    Publish,
    st.sampled_from(("a", "a/b", "b/c", "é", "home/kitchen/temp")),
    st.sampled_from((b"", b"x", b"y", b"z" * 150, b"\0" * 118, b"\0" * 130)),
    st.just(1),
    packet_id=st.integers(1, 3),
)
EXTRA = Properties(user_properties=(("a", "b"),))


@st.composite
def streams(draw: st.DrawFn) -> list[Packet]:
    found: list[Packet] = []
    for packet in draw(st.lists(PLAIN, max_size=8)):
        found += [packet] * draw(st.sampled_from((1, 2, 9, 40)))
        found += draw(st.lists(st.sampled_from((Publish(packet.topic, b"x" * 150), Pingreq())), max_size=1))
        found += draw(st.lists(st.just(Publish(packet.topic, packet.payload[7:], 1, packet_id=1, properties=EXTRA))))
        found += [Ack(Kind.PUBACK, 7)] * draw(st.sampled_from((0, 1, 3, 50)))
        found += [Ack(Kind.PUBREC, 7)] * draw(st.sampled_from((0, 1, 9)))
    return found


def one_by_one(data: bytes, version: int) -> list[Packet]:
    """The model: no runs."""
    found, at = [], 0
    decoder = Decoder(LIMITS, is_server=True, version=version)
    while at < len(data):
        header = Fields(data, at + 1, len(data))
        length = header.variable("it")
        found.append(decoder.decode(Kind(data[at] >> 4), data[at] & 15, Fields(data, header.at, header.at + length)))
        at = header.at + length
    return found


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(streams(), VERSIONS, st.lists(st.integers(0, 3000), max_size=4))
def test_a_run_holds_what_its_packets_would_one_by_one(sent: list[Packet], version: int, places: list[int]) -> None:
    data = encoded(sent, version)
    expected = one_by_one(data, version)
    assert outcome(PacketReader(LIMITS, version=version), [data]) == (expected, 0)
    assert outcome(PacketReader(LIMITS, version=version), cut_at(data, places)) == (expected, 0)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 4000), st.integers(0, 7), VERSIONS)
def test_a_flipped_bit_in_a_long_run_gives_what_one_by_one_would(place: int, bit: int, version: int) -> None:
    sent = [Publish("home/kitchen/temp", b"x" * 30, 1, packet_id=number) for number in range(1, 80)]
    data = bytearray(encoded(sent, version))
    data[place % len(data)] ^= 1 << bit
    whole = outcome(PacketReader(LIMITS, version=version), [bytes(data)])
    assert (
        outcome(PacketReader(LIMITS, version=version), [bytes(data[at : at + 1]) for at in range(len(data))]) == whole
    )


@pytest.mark.parametrize("version", [V4, V5])
def test_a_bad_number_anywhere_in_a_run_ends_it_there(version: int) -> None:
    good: list[Packet] = [Publish("a/b", b"x" * 20, 1, packet_id=number) for number in range(1, 100)]
    raw = [encode(packet, version) for packet in good]
    bad = raw[0].replace(b"a/b\0\1", b"a/b\0\0")
    for place in range(0, 99, 7):
        data = b"".join(raw[:place]) + bad + b"".join(raw[place:])
        assert outcome(PacketReader(LIMITS, version=version), [data]) == (good[:place], Reason.PROTOCOL_ERROR)
    acks: list[Packet] = [Ack(Kind.PUBACK, number) for number in range(1, 100)]
    for place in range(0, 99, 7):
        data = encoded(acks[:place], version) + bytes.fromhex("40 02 0000") + encoded(acks, version)
        assert outcome(PacketReader(LIMITS, version=version), [data]) == (acks[:place], Reason.PROTOCOL_ERROR)


def test_properties_anywhere_in_a_run_are_read() -> None:
    plain = Publish("a", b"x" * 8, 1, packet_id=1)
    other = Publish("a", b"x", 1, packet_id=1, properties=EXTRA)
    for place in range(0, 60, 7):
        sent: list[Packet] = [*[plain] * place, other, *[plain] * 40]
        assert outcome(PacketReader(LIMITS, version=V5), [encoded(sent, V5)]) == (sent, 0)


@pytest.mark.parametrize("version", [V4, V5])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_plain_messages_with_the_same_flags_are_one_run_whatever_their_topics(version: int, qos: int) -> None:
    sent = [
        Publish(f"home/{number % 7}", b"x" * (number % 5), qos, packet_id=number if qos else 0)
        for number in range(1, 200)
    ]
    (run,) = PacketReader(LIMITS, version=version).feed(encoded(sent, version))
    assert isinstance(run, Run)
    assert run.publishes() == sent
    assert len(run.topics) == len(run.payloads) == 199
    assert run.packet_ids == (list(range(1, 200)) if qos else [])


def test_other_flags_begin_another_run() -> None:
    sent = [Publish("a", b"1"), Publish("a", b"2", retain=True), Publish("a", b"3", 1, packet_id=1)]
    sent.append(Publish("a", b"4", 1, dup=True, packet_id=1))
    found = PacketReader(LIMITS, version=V4).feed(encoded(sent, V4))
    assert [(one.qos, one.retain, one.dup) for one in found if isinstance(one, Run)] == [
        (0, False, False),
        (0, True, False),
        (1, False, False),
        (1, False, True),
    ]


def test_a_message_with_properties_stands_alone() -> None:
    sent = [Publish("a", b"1"), Publish("a", b"2", properties=EXTRA), Publish("a", b"3")]
    found = PacketReader(LIMITS, version=V5).feed(encoded(sent, V5))
    assert [type(one) for one in found] == [Run, Publish, Run]


def test_acknowledgements_of_success_are_one_value() -> None:
    numbers = list(range(1, 1001))
    for kind in (Kind.PUBACK, Kind.PUBREC, Kind.PUBREL, Kind.PUBCOMP):
        data = acks_bytes(kind, numbers)
        assert data == encoded([Ack(kind, number) for number in numbers], V5)
        assert PacketReader(LIMITS, version=V5).feed(data) == [Acks(kind, numbers)]
    refused = encode(Ack(Kind.PUBACK, 5, 0x87), V5)
    found = PacketReader(LIMITS, version=V5).feed(acks_bytes(Kind.PUBACK, [1, 2]) + refused)
    assert found == [Acks(Kind.PUBACK, [1, 2]), Ack(Kind.PUBACK, 5, 0x87)]
    assert acks_bytes(Kind.PUBACK, []) == b""


def test_a_run_falls_into_its_roots_in_order() -> None:
    run = Run(1, False, False, ["a/x", "b", "a/y", "/c", "a/x"], [b"1", b"2", b"3", b"4", b"5"], [1, 2, 3, 4, 5])
    assert run.by_root() == {
        "a": Run(1, False, False, ["a/x", "a/y", "a/x"], [b"1", b"3", b"5"], [1, 3, 5], places=[0, 2, 4]),
        "b": Run(1, False, False, ["b"], [b"2"], [2], places=[1]),
        "": Run(1, False, False, ["/c"], [b"4"], [4], places=[3]),
    }
    before = Run(1, False, False, ["a/x", "a/y"], [b"1", b"3"], [1, 3], places=[0, 2])
    assert run.by_root()["a"].before(3) == run.by_root()["a"].before(4) == before
    assert not run.by_root()["b"].before(1).topics
    one = Run(0, False, False, ["a/x", "a/y"], [b"1", b"2"], [])
    assert one.by_root()["a"] is one


def test_what_is_remembered_has_limits() -> None:
    reader = PacketReader(LIMITS, version=V4)
    for number in range(runs.TOPICS_CACHED_MAX + 10):
        assert reader.feed(encode(Publish(f"t/{number}", b""), V4))
        assert len(runs.TOPICS.known) <= runs.TOPICS_CACHED_MAX
    for number in range(runs.LAYOUTS_CACHED_MAX + 10):
        assert reader.feed(encoded([Publish("t", bytes(number))] * 20, V4))
        assert len(runs.LAYOUTS.known) <= runs.LAYOUTS_CACHED_MAX
    assert reader.feed(encode(Publish("x" * 300, b""), V4))
    assert max(map(len, runs.TOPICS.known)) <= runs.TOPIC_CACHED_BYTES_MAX


def test_a_client_cannot_make_runs_costly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Packets that begin alike, with one among them that is not plain: how many are taken to be alike, in all."""
    tried = 0
    take = runs._take_alike

    def counting(data: bytes, at: int, count: int, *more: Any) -> bool:
        nonlocal tried
        tried += count
        return take(data, at, count, *more)

    monkeypatch.setattr(runs, "_take_alike", counting)
    plain = encode(Publish("a", b"x" * 8, 1, packet_id=1), V5)
    other = encode(Publish("a", b"x", 1, packet_id=1, properties=EXTRA), V5)
    assert len(plain) == len(other)
    for period in (2, 3, 9, 33, 150):
        tried = 0
        data = (plain * (period - 1) + other) * (3000 // period)
        PacketReader(LIMITS, version=V5).feed(data)
        assert tried <= 9 * 3000
