"""The reader: packets in any pieces, limits before memory, packets before errors, and nothing after them."""

from __future__ import annotations

import sys
import traceback

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headwater.mqtt.decoding import Limits
from headwater.mqtt.encoding import encode
from headwater.mqtt.kinds import FROM_CLIENT, FROM_SERVER, V4, V5, Kind
from headwater.mqtt.packets import Connect, Disconnect, Packet, Pingreq, Publish
from headwater.mqtt.reader import PacketReader
from headwater.mqtt.reasons import MqttError, Reason, VersionRefused
from mqtt.samples import LIMITS, VERSIONS, connects, cut_at, each, encoded, kinds, outcome, packets

SENT_LATER = [kind for kind in Kind if kind in FROM_CLIENT and kind != Kind.CONNECT]
BAD = ["00 00", "f1 00", "36 04 0001 61 00", "30 02 0000", "c0 ff ff ff ff 7f", "30 ff ff 7f", "20 02 00 00", "d0 00"]
MALFORMED, VIOLATION = Reason.MALFORMED_PACKET, Reason.PROTOCOL_ERROR
HEAD = encode(Connect("c", V4), V4)


@st.composite
def conversations(draw: st.DrawFn) -> tuple[list[Packet], int]:
    """What a client may say in one connection."""
    version = draw(VERSIONS)
    found: list[Packet] = [draw(connects(version))]
    for kind in draw(st.lists(st.sampled_from([kind for kind in SENT_LATER if kind in kinds(version)]), max_size=6)):
        found += draw(st.lists(packets(kind, version), min_size=1, max_size=3))
    return found, version


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(conversations(), st.sampled_from(["", *BAD]), st.lists(st.integers(0, 400), max_size=8))
def test_packets_and_the_error_after_them_do_not_depend_on_how_bytes_were_split(
    said: tuple[list[Packet], int], bad: str, places: list[int]
) -> None:
    sent, version = said
    data = encoded(sent, version) + bytes.fromhex(bad)
    whole = outcome(PacketReader(LIMITS), [data])
    assert whole[0] == sent
    assert bool(whole[1]) == bool(bad)
    assert outcome(PacketReader(LIMITS), cut_at(data, places)) == whole
    assert outcome(PacketReader(LIMITS), [data[at : at + 1] for at in range(len(data))]) == whole


@given(st.binary(max_size=200), st.sampled_from((0, V4, V5)), st.booleans(), st.lists(st.integers(0, 200), max_size=5))
def test_garbage_gives_packets_an_error_or_a_wait(
    data: bytes, version: int, is_server: bool, places: list[int]
) -> None:
    whole, pieces = (PacketReader(LIMITS, is_server=is_server, version=version) for _ in range(2))
    assert outcome(whole, [data]) == outcome(pieces, cut_at(data, places))


def test_the_first_packet_is_a_connect_and_no_other_is() -> None:
    for kind in set(FROM_CLIENT) - {Kind.CONNECT}:
        first = 0x30 if kind == Kind.PUBLISH else kind << 4 | (2 if kind in (6, 8, 10) else 0)
        assert outcome(PacketReader(LIMITS), [bytes((first,))])[1] == VIOLATION
    assert outcome(PacketReader(LIMITS), [HEAD + HEAD]) == ([Connect("c", V4)], VIOLATION)


def test_packets_of_the_other_side_are_refused_with_their_first_byte() -> None:
    for kind in set(FROM_SERVER) - set(FROM_CLIENT):
        assert outcome(PacketReader(LIMITS, version=V5), [bytes((kind << 4,))])[1] == VIOLATION
    for kind in set(FROM_CLIENT) - set(FROM_SERVER):
        first = bytes((kind << 4 | (2 if kind in (8, 10) else 0),))
        assert outcome(PacketReader(LIMITS, version=V5, is_server=False), [first])[1] == VIOLATION
    assert outcome(PacketReader(LIMITS, version=V4, is_server=False), [b"\xe0"])[1] == VIOLATION
    assert outcome(PacketReader(LIMITS, version=V5, is_server=False), [b"\xe0\0"]) == ([Disconnect()], 0)


@pytest.mark.parametrize("version", [0, V4, V5])
def test_a_length_over_the_limit_is_refused_with_the_fixed_header(version: int) -> None:
    limit = LIMITS.packet_bytes_max if version else LIMITS.connect_bytes_max
    first = b"\x30" if version else b"\x10"
    for length, is_good in ((limit - 3, True), (limit - 2, False), (268_435_455, False)):
        reader = PacketReader(LIMITS, version=version)
        digits = bytes([length >> shift & 0x7F | 0x80 for shift in (0, 7, 14, 21) if length >> shift])
        header = first + digits[:-1] + bytes((digits[-1] & 0x7F,))
        assert outcome(reader, [header[:-1]]) == ([], 0)
        assert outcome(reader, [header[-1:]]) == ([], 0 if is_good else Reason.PACKET_TOO_LARGE)
        assert len(reader.partial or b"") == (len(header) if is_good else 0)


def test_after_the_connect_packets_may_be_longer() -> None:
    long = Publish("a", bytes(LIMITS.connect_bytes_max))
    assert outcome(PacketReader(LIMITS), [HEAD + encode(long, V4)]) == ([Connect("c", V4), long], 0)
    exact = Publish("a", bytes(LIMITS.packet_bytes_max - 6))
    assert len(encode(exact, V4)) == LIMITS.packet_bytes_max
    over = Publish("a", bytes(LIMITS.packet_bytes_max - 5))
    assert outcome(PacketReader(LIMITS, version=V4), [encode(exact, V4)]) == ([exact], 0)
    assert outcome(PacketReader(LIMITS, version=V4), [encode(over, V4)]) == ([], Reason.PACKET_TOO_LARGE)


def test_a_remaining_length_ends_with_its_fourth_byte() -> None:
    for version in (V4, V5):
        reader = PacketReader(LIMITS, version=version)
        assert outcome(reader, [bytes.fromhex("30 80 80 80")]) == ([], 0)
        assert outcome(reader, [b"\x80"]) == ([], MALFORMED)


@pytest.mark.parametrize("raw", ["c0 80 00", "c0 80 80 80 00", "30 84 00 0001 61 00", "40 82 00 0001"])
def test_mqtt_5_wants_the_fewest_bytes_for_a_remaining_length_and_3_1_1_does_not_say(raw: str) -> None:
    assert outcome(PacketReader(LIMITS, version=V5), [bytes.fromhex(raw)])[1] == MALFORMED
    found, reason = outcome(PacketReader(LIMITS, version=V4), [bytes.fromhex(raw)])
    assert (len(found), reason) == (1, 0)


def test_the_same_holds_for_the_connect_that_tells_which_version_it_is() -> None:
    for version, reason in ((V4, 0), (V5, MALFORMED)):
        raw = encode(Connect("c", version), version)
        padded = raw[:1] + bytes((raw[1] | 0x80, 0)) + raw[2:]
        assert outcome(PacketReader(LIMITS), [padded])[1] == reason


def test_packets_before_bad_bytes_are_handed_out_and_nothing_after_them() -> None:
    reader = PacketReader(LIMITS, version=V4)
    assert reader.feed(encode(Pingreq(), V4) + b"\0\0" + encode(Pingreq(), V4)) == [Pingreq()]
    assert reader.error is not None
    assert reader.partial is None
    for received in (b"", b"\xc0\0"):
        with pytest.raises(MqttError):
            reader.feed(received)


def test_messages_before_a_bad_one_are_handed_out() -> None:
    good = [Publish("a/b", b"x" * 20, 1, packet_id=number) for number in range(1, 40)]
    bad = [bytes.fromhex(raw) for raw in ("32 06 0001 61 0000 78", "32 06 0001 2b 0001 78", "32 06 0001 ff 0001 78")]
    for one in bad:
        found, reason = outcome(PacketReader(LIMITS, version=V4), [encoded(good, V4) + one + encoded(good, V4)])
        assert found == good
        assert reason


def test_the_version_is_known_when_the_rest_of_a_connect_is_wrong() -> None:
    reader = PacketReader(LIMITS)
    raw = bytearray(encode(Connect("c", V5), V5))
    raw[9] |= 1
    assert outcome(reader, [bytes(raw)]) == ([], MALFORMED)
    assert reader.version == V5


def test_an_error_is_raised_again_as_it_was_and_keeps_nothing_alive() -> None:
    reader = PacketReader(LIMITS)
    with pytest.raises(VersionRefused):
        reader.feed(bytes.fromhex("10 0f 0006 4d5149736470 03 02 003c 0001 61"))
    assert isinstance(reader.error, VersionRefused)
    assert reader.error.level == 3
    assert reader.error.__traceback__ is None
    assert "3.1.1 or 5" in str(reader.error)
    with pytest.raises(VersionRefused) as again:
        reader.feed(b"")
    assert len(traceback.extract_tb(again.value.__traceback__)) == 2


def test_the_work_is_linear_even_byte_by_byte() -> None:
    """Counted in calls: bytes that only add to a packet are not looked at."""
    raw = encode(Publish("a", bytes(3000)), V4)

    def calls(step: int) -> int:
        reader, count = PacketReader(LIMITS, version=V4), 0

        def profile(frame: object, event: str, arg: object) -> None:
            nonlocal count
            count += event == "call"

        sys.setprofile(profile)
        try:
            for at in range(0, len(raw), step):
                reader.feed(raw[at : at + step])
        finally:
            sys.setprofile(None)
        assert reader.partial is None
        return count

    assert calls(1) <= len(raw) + 60
    assert calls(len(raw)) <= 60


def test_what_waits_is_no_more_than_was_received() -> None:
    limits = Limits(packet_bytes_max=1 << 28, connect_bytes_max=1 << 28, properties_max=1, subscriptions_max=1)
    reader = PacketReader(limits, version=V4)
    assert reader.feed(bytes.fromhex("30 80 80 80 7f") + b"x" * 100) == []
    assert len(reader.partial or b"") == 105
    assert sys.getsizeof(reader.partial) < 1000


def test_one_call_may_bring_everything() -> None:
    sent: list[Packet] = [Connect("c", V5), Publish("a", b"x"), Pingreq(), Publish("a", b"y"), Disconnect()]
    assert each(PacketReader(LIMITS).feed(encoded(sent, V5))) == sent
