from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import headwater
from headwater.channels.table import read_table, write_table
from headwater.errors import Conflict, HeadwaterError, Malformed, NotAllowed, NotFound, QuotaExceeded, ReadOnly
from headwater.wire.administration import ChannelInfo, ChannelSpec, ListChannels
from server.harness import Running

PORT = 9000


@pytest.fixture
def bus() -> Any:
    with headwater.open(":memory:") as made:
        yield made


def spec(id: str | None = "a", **others: Any) -> ChannelSpec:
    given = {"name": "alarms", "filter": "home/#", "destination_host": "127.0.0.1", "destination_port": PORT}
    return ChannelSpec(id=id, **{**given, **others})


def ids(bus: Any) -> list[str]:
    return [channel.id for channel in bus.channels.list()]


def test_a_channel_is_kept_with_its_place_and_shows_no_secret(tmp_path: Path):
    with headwater.open(tmp_path) as bus:
        (made,) = bus.channels.add_many([spec(kind="http", path="/in", options={"max_attempts": 2})])
        bus.publish("home/x", b"1")
    with headwater.open(tmp_path, read_only=True) as bus:
        (found,) = bus.channels.list()
        assert (found.id, found.path, found.lag, found.state) == ("a", "/in", 1, "stopped")
        assert found.secret is None
        with pytest.raises(ReadOnly):
            bus.channels.remove("a")
    with headwater.open(tmp_path) as bus:
        row = bus.channels.get("a")
        assert row is not None
        assert (row.secret, row.options) == (made.secret, {"max_attempts": 2})
        bus.channels.remove("a", force=True)
    with headwater.open(tmp_path) as bus:
        assert bus.channels.list() == []
        assert bus.subscriptions() == []


def test_channels_are_listed_page_by_page_or_the_one_of_an_id(bus: Any):
    names = [f"c{number}" for number in range(5)]
    bus.channels.add_many([spec(name, destination_port=1) for name in reversed(names)])
    assert [one.id for one in bus.channels.page(None, None, 2)] == names[:2]
    assert [one.id for one in bus.channels.page(None, "c1", None)] == names[2:]
    assert [one.id for one in bus.channels.page("c3", "c4", 2)] == ["c3"]
    with Running(bus=bus) as served:
        peer = served.peer()
        page = [one.id for one in peer.ask(ListChannels(after="c0", limit=3))]
        assert page == names[1:4]
        with headwater.connect(served.server.url) as other:
            assert ids(other) == names


def test_an_id_that_is_there_is_a_conflict_that_shows_what_is_there(bus: Any):
    bus.channels.add_many([spec()])
    with pytest.raises(Conflict, match=r'"alarms", "home/#" to tcp 127\.0\.0\.1:9000'):
        bus.channels.add_many([spec(name="other")])


def test_all_of_the_channels_are_added_or_none(bus: Any):
    for bad in (spec("b", filter="a/#/b"), spec("a"), spec("b", destination_host="10.0.0.1"), spec("b", name="")):
        with pytest.raises(HeadwaterError, match="channel 2 of 2: "):
            bus.channels.add_many([spec("a"), bad])
        assert ids(bus) == []
        assert bus.subscriptions() == []


def test_channels_that_have_no_room_for_their_subscriptions_are_withdrawn():
    with headwater.open(":memory:", headwater.Config(subscriptions_max=1)) as bus:
        with pytest.raises(QuotaExceeded):
            bus.channels.add_many([spec("a"), spec("b")])
        assert ids(bus) == []
        assert bus.subscriptions() == []
        bus.channels.add_many([spec("a")])


def test_a_check_changes_nothing(bus: Any):
    assert bus.channels.add_many([spec("a"), spec("b")], check=True) == []
    assert ids(bus) == []
    with pytest.raises(Conflict):
        bus.channels.add_many([spec("a"), spec("a")], check=True)


def test_there_are_no_more_channels_than_there_may_be(bus: Any):
    bus.channels.channels_max = 2
    bus.channels.add_many([spec("a")])
    with pytest.raises(QuotaExceeded, match="channels_max"):
        bus.channels.add_many([spec("b"), spec("c")])
    assert ids(bus) == ["a"]


@pytest.mark.parametrize(
    "wrong",
    [
        {"id": ""},
        {"id": "a/b"},
        {"id": "a b"},
        {"id": "-a"},
        {"id": "x" * 65},
        {"name": ""},
        {"name": "a\nb"},
        {"name": "x" * 200},
        {"filter": "home/#/x"},
        {"destination_host": "a b"},
        {"destination_port": 0},
        {"destination_port": 65_536},
        {"path": "/x"},
        {"secret": "whsec_x"},
        {"batch_messages_max": 100_001},
        {"options": {"order": "none"}},
        {"options": {"max_in_flight": 0}},
        {"options": {"ack_timeout_s": -1}},
        {"options": {"id": "x"}},
        {"kind": "udp"},
        {"start": "never"},
    ],
    ids=str,
)
def test_what_cannot_be_is_refused_before_anything_changes(bus: Any, wrong: dict[str, Any]):
    with pytest.raises(Malformed):
        bus.channels.add_many([spec(**{"id": "a", **wrong})])
    assert ids(bus) == []


def test_what_is_changed_is_checked_and_the_rest_stays(bus: Any):
    bus.channels.add_many([spec()])
    changed = bus.channels.change("a", name="sirens", destination_port=9001, batch_messages_max=5)
    assert (changed.name, changed.destination_port, changed.batch_messages_max) == ("sirens", 9001, 5)
    assert (changed.filter, changed.destination_host) == ("home/#", "127.0.0.1")
    for wrong in ({"destination_port": 0}, {"path": "/x"}, {"filter": "x"}, {"secret": ""}, {"name": "\x00"}):
        with pytest.raises(Malformed):
            bus.channels.change("a", **wrong)
    with pytest.raises(NotAllowed):
        bus.channels.change("a", destination_host="10.0.0.1")
    with pytest.raises(NotFound):
        bus.channels.change("b", name="x")
    assert bus.channels.list() == [changed]


def test_dead_letters_keep_a_channel_from_being_removed_by_accident(bus: Any):
    bus.channels.add_many([spec()])
    bus.publish("home/x", b"1")
    ticket = object()
    subscriber = bus.channels.serve(bus.channels.get("a"), ticket)
    subscriber.take(ticket, 1)[0].reject("no")
    assert bus.channels.list("a")[0].lag == 0
    with pytest.raises(Conflict, match="dead letters: 1"):
        bus.channels.remove("a")
    bus.drop_dead_letters("channel:a")
    bus.channels.remove("a")


def test_only_a_server_tries_a_channel_out(bus: Any):
    bus.channels.add_many([spec()])
    with pytest.raises(Conflict, match="headwater serve"):
        bus.channels.test("a")


# As a table


def table_of(bus: Any) -> str:
    return write_table(bus.channels.list())


def test_a_table_that_was_written_makes_the_same_channels(bus: Any):
    bus.channels.add_many(
        [
            spec("a", name="=1+1", filter="+/x"),
            spec("b", name="'quoted', \"twice\"", kind="http", path="/in?a=b,c", batch_messages_max=7),
            spec("c", name="-x", destination_host="::1"),
            spec("d", name="'=x"),
        ]
    )
    written = table_of(bus)
    assert "'=1+1" in written
    assert "'+/x" in written
    assert "whsec" not in written
    with headwater.open(":memory:") as other:
        other.channels.add_many([one for _, one in read_table(written)])
        assert table_of(other) == written
        assert [_plain(channel) for channel in other.channels.list()] == [
            _plain(channel) for channel in bus.channels.list()
        ]


def _plain(channel: ChannelInfo) -> tuple[object, ...]:
    return (channel.id, channel.name, channel.filter, channel.kind, channel.path, channel.batch_messages_max)


def test_no_cell_of_a_table_is_a_formula(bus: Any):
    names = ["=x", "+x", "-x", "@x", "'x"]
    bus.channels.add_many([spec(f"c{place}", name=name) for place, name in enumerate(names)])
    for line in table_of(bus).splitlines()[1:]:
        assert not line.split(",")[1].strip('"').startswith(("=", "+", "-", "@"))


def test_the_short_table_is_read_with_a_filter():
    text = "id,name,destination_host,destination_port\n1,one,127.0.0.1,9001\r\n\n,two,localhost,9002\n"
    found = read_table("\ufeff" + text, "home/#")
    assert [(line, one.id, one.name, one.filter, one.destination_port) for line, one in found] == [
        (2, "1", "one", "home/#", 9001),
        (4, None, "two", "home/#", 9002),
    ]


@pytest.mark.parametrize(
    ("text", "filter", "said"),
    [
        ("", "x", "line 1: it names the columns"),
        ("id,name\n1,2\n", "x", "line 1: it names the columns"),
        ("id,name,destination_host,destination_port,colour\n", "x", "line 1"),
        ("id,id,name,destination_host,destination_port\n", "x", "line 1"),
        ("id,name,destination_host,destination_port\n", None, "--filter"),
        ("id,name,filter,destination_host,destination_port\n", "x", "leave --filter out"),
        (
            "id,name,destination_host,destination_port\n1,a,h,x\n2,a,h\n3,,h,1\n",
            "x",
            "line 2: .*line 3: .*line 4: name",
        ),
        ('id,name,destination_host,destination_port\n1,"a,h,1\n', "x", "it is no CSV"),
        ("id,name,destination_host,destination_port\n1,a,h,-1\n", "x", "line 2"),
        ("id,name,destination_host,destination_port\n1,a,h,٣\n", "x", "line 2"),
        ("id,name,filter,destination_host,destination_port,kind\n1,a,f,h,1,udp\n", None, "line 2"),
        ("id,name,destination_host,destination_port\n1," + "a" * 5000 + ",h,1\n", "x", "line 2"),
    ],
)
def test_every_line_of_a_table_that_is_wrong_is_named(text: str, filter: str | None, said: str):
    with pytest.raises(Malformed, match=said):
        read_table(text, filter)
