"""Messages on their way out: encoded once, the same bytes as one by one."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.mqtt import publishes
from headwater.mqtt.encoding import encode
from headwater.mqtt.kinds import V5, Kind
from headwater.mqtt.packets import Publish
from headwater.mqtt.properties import NONE, Properties, properties_bytes
from headwater.mqtt.publishes import Publishes
from mqtt.samples import NUMBERS, VERSIONS, of_place

MESSAGES = st.lists(
    st.tuples(st.sampled_from(("a", "a/b", "é/€")), st.sampled_from((b"", b"x", b"y" * 200)), NUMBERS), max_size=20
)


@settings(max_examples=50, deadline=None)
@given(MESSAGES, VERSIONS, st.integers(0, 2), st.booleans(), st.data())
def test_a_batch_is_written_as_its_packets_would_be(
    messages: list[tuple[str, bytes, int]], version: int, qos: int, retain: bool, data: st.DataObject
) -> None:
    has_properties = data.draw(st.booleans())
    extras = [data.draw(of_place(Kind.PUBLISH, V5)) if has_properties else NONE for _ in messages]
    blocks = [properties_bytes(extra, Kind.PUBLISH) for extra in extras] if has_properties else None
    topics = [topic for topic, _, _ in messages]
    payloads = [payload for _, payload, _ in messages]
    numbers = [number for _, _, number in messages]
    batch = Publishes(topics, payloads, version=version, qos=qos, retain=[retain] * len(messages), properties=blocks)
    expected = [
        encode(Publish(topic, payload, qos, retain, packet_id=number, properties=extra), version)
        for (topic, payload, number), extra in zip(messages, extras, strict=True)
    ]
    assert (batch.numbered(numbers) if qos else batch.data) == b"".join(expected)
    assert batch.longest_bytes == max(map(len, expected), default=0)
    assert batch.count == len(messages)


def test_each_session_has_numbers_of_its_own_in_the_same_packets() -> None:
    batch = Publishes(["a", "b"], [b"1", b"2"], version=V5, qos=1)
    for numbers in ([1, 2], [65_535, 1]):
        expected = [
            encode(Publish(t, p, 1, packet_id=n), V5) for t, p, n in zip("ab", (b"1", b"2"), numbers, strict=True)
        ]
        assert batch.numbered(numbers) == b"".join(expected)


def test_what_is_remembered_has_a_limit() -> None:
    for number in range(publishes.FIELDS_CACHED_MAX + 10):
        Publishes([f"t/{number}", "x" * 300 + str(number)], [b"", b""], version=V5)
        assert len(publishes._topic_fields.known) <= publishes.FIELDS_CACHED_MAX
    assert max(map(len, publishes._topic_fields.known)) <= publishes.FIELD_CACHED_CHARS_MAX


def test_properties_are_given_as_blocks() -> None:
    extra = Properties(subscription_identifiers=(3,), user_properties=(("unit", "C"),))
    batch = Publishes(["a"], [b"x"], version=V5, properties=[properties_bytes(extra, Kind.PUBLISH)])
    assert batch.data == encode(Publish("a", b"x", properties=extra), V5)
