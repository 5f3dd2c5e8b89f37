"""A group's places: which single messages go as one batch, and in which order."""

from __future__ import annotations

from headwater.message import Receipt
from headwater.store.batch import Batch
from log.place import Place


def test_single_messages_of_a_root_that_arrive_together_become_one_batch(place: Place) -> None:
    items = [place.one(f"{root}/x", b"%d" % number) for number in range(5) for root in ("home", "hall")]
    place.group(*items)
    assert sorted(place.told) == [("hall", [(1, 5)]), ("home", [(1, 5)])]
    assert [item.result() for item in items] == [
        Receipt(f"{root}/x", number + 1, place.clock.now_us()) for number in range(5) for root in ("home", "hall")
    ]
    assert place.payloads("home") == place.payloads("hall") == [b"0", b"1", b"2", b"3", b"4"]


def test_single_messages_that_were_encoded_elsewhere_become_one_batch_too_though_their_topics_are_new(
    place: Place,
) -> None:
    items = [place.one("a/1"), place.one("a/2")]
    for item in items:
        item.parts[0].encode(1)
    place.group(*items)
    assert place.told == [("a", [(1, 2)])]


def test_single_messages_keep_what_each_has_of_its_own(place: Place) -> None:
    place.group(
        place.one("home/a"),
        place.one("home/b", key=b"k"),
        place.one("home/c", headers={"h": "v"}, ttl_s=5),
        place.one("home/d", retain=True),
    )
    root = place.roots.get("home")
    assert root is not None
    (batch,) = root.stream.read(1, 1 << 20)
    assert isinstance(batch, Batch)
    messages = batch.body.messages(1)
    assert [message.key for message in messages] == [None, b"k", None, None]
    assert [message.header_pairs for message in messages] == [(), (), (("h", "v"),), ()]
    assert list(batch.body.expiries or ()) == [0, 0, place.clock.now_us() + 5_000_000, 0]
    assert list(batch.body.retain or ()) == [0, 0, 0, 1]


def test_the_order_of_submission_is_the_order_of_offsets_however_they_come(place: Place) -> None:
    items = [
        place.one("home/a", b"1"),
        place.many("home/b", "home/c"),
        place.one("home/a", b"4"),
        place.one("home/a", b"5", producer="p", sequence=1),
        place.one("home/a", b"6"),
        place.many("home/d"),
    ]
    place.group(*items)
    assert place.payloads("home") == [b"1", b"home/b", b"home/c", b"4", b"5", b"6", b"home/d"]
    assert place.told == [("home", [(1, 1), (2, 3), (4, 4), (5, 5), (6, 6), (7, 7)])]
