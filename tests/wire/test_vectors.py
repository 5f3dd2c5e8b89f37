"""docs/reference/protocol.md says what the code does: its examples to the byte, its drawings, its tables."""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from pathlib import Path

import msgspec
import pytest

from headwater import errors
from headwater.config import Config, Serving
from headwater.delivery.options import Options
from headwater.errors import HeadwaterError
from headwater.events import Event
from headwater.message import (
    ConsumerInfo,
    DeadLetter,
    Erased,
    Extent,
    PurgeInfo,
    ScheduleInfo,
    SchemaInfo,
    StateInfo,
    SubscriptionInfo,
    TopicInfo,
)
from headwater.store.batch import checksum
from headwater.store.body import Body
from headwater.store.log import Counted
from headwater.wire import administration, batches, handshake, requests
from headwater.wire.channel import ChannelHello, ChannelWelcome
from headwater.wire.frame import Kind
from headwater.wire.handshake import TRANSITIONS, Challenge, Hello, Limits, Phase, Response, Welcome
from headwater.wire.operations import REPLIES, REQUEST_BYTES_MAX
from headwater.wire.reader import FrameReader
from headwater.wire.request import OPTION_NAMES
from wire.tables import field_rows, rows_under, words
from wire.vectors import PAGE, Vector, codec_of, meant, read_vectors

SOURCE = Path(batches.__file__).parents[1]
DRAWN = re.compile("[├│└┼▶◀]")
VECTORS = read_vectors()
BY_NAME = {vector.name: vector for vector in VECTORS}
HANDSHAKE = (Hello, Challenge, Response, Welcome)
ANSWERS = (
    requests.Registered,
    requests.Subscribed,
    requests.Delayed,
    requests.RetainedMessage,
    ScheduleInfo,
    TopicInfo,
    SubscriptionInfo,
    ConsumerInfo,
    StateInfo,
    Extent,
    Counted,
    Event,
    DeadLetter,
    PurgeInfo,
    Erased,
    administration.Registration,
    administration.Client,
    administration.Rule,
    SchemaInfo,
    administration.NewToken,
    administration.Token,
    administration.SessionInfo,
    administration.SessionSubscription,
    administration.SubscriptionDetail,
    administration.ChannelSpec,
    administration.ChannelInfo,
    administration.ChannelTrial,
    administration.Level,
    administration.Figures,
    administration.Histogram,
    administration.RootFigures,
    administration.SubscriptionFigures,
    administration.SlowConsumer,
    administration.HistoryLines,
    administration.Health,
    administration.HealthCheck,
    administration.NodeStatus,
    administration.Failover,
    administration.ClusterStatus,
    administration.Setting,
    administration.Job,
    administration.Pipeline,
    requests.Problem,
    requests.Notice,
    requests.Goodbye,
)
UNWRITTEN = {"Unauthenticated"}
"""Errors that the page names and that come with `access/`."""


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector.name)
def test_a_vector_is_read_as_what_it_says(vector: Vector) -> None:
    (frame,) = FrameReader(1 << 20).feed(vector.data)
    assert (frame.kind, frame.id, frame.flags) == (vector.kind, vector.id, vector.flags)
    assert codec_of(vector)[0](frame) == vector.value


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector.name)
def test_a_vector_is_written_to_the_byte(vector: Vector) -> None:
    assert codec_of(vector)[1](vector).hex() == vector.data.hex()


def test_every_kind_of_frame_has_a_vector() -> None:
    assert {vector.kind for vector in VECTORS} == set(Kind)
    assert len(BY_NAME) == len(VECTORS)


@pytest.mark.parametrize("name", ["publish", "publish-quiet", "stage", "deliver-dense", "deliver-picked"])
def test_a_body_in_a_vector_is_a_body_and_its_checksum_is_right(name: str) -> None:
    value = meant(BY_NAME[name].value)
    assert checksum(value["body"]) == value["crc"]
    assert Body(value["body"]).count == value["count"]


def test_the_body_that_is_taken_apart_is_that_of_the_first_vector() -> None:
    text = PAGE.read_text(encoding="utf-8").partition("taken apart:\n\n```\n")[2].partition("\n```")[0]
    apart = "".join(line.partition("   ")[0].replace(" ", "") for line in text.splitlines())
    assert apart == BY_NAME["publish"].value["body"]["bytes"]


def test_the_login_in_the_vectors_holds_as_the_page_reckons_it() -> None:
    first = meant(BY_NAME["hello-scram"].value)["first"].removeprefix(b"n,,")
    asked = meant(BY_NAME["challenge-scram"].value)["first"]
    bare, proof = meant(BY_NAME["response-scram"].value)["final"].split(b",p=")
    signature = meant(BY_NAME["ok-server"].value)["final"].removeprefix(b"v=")
    salt, iterations = re.search(rb"s=([^,]+),i=(\d+)", asked).groups()  # type: ignore[union-attr]  # it matches
    salted = hashlib.pbkdf2_hmac("sha256", b"pencil", base64.b64decode(salt), int(iterations))
    said = b",".join((first, asked, bare))
    key = hmac.digest(salted, b"Client Key", "sha256")
    mask = hmac.digest(hashlib.sha256(key).digest(), said, "sha256")
    assert base64.b64decode(proof) == bytes(a ^ b for a, b in zip(key, mask, strict=True))
    server = hmac.digest(salted, b"Server Key", "sha256")
    assert base64.b64decode(signature) == hmac.digest(server, said, "sha256")


@pytest.mark.parametrize("name", ["wire/frame.py", "wire/handshake.py", "wire/batches.py", "store/body.py"])
def test_the_drawings_of_the_code_are_on_the_page(name: str) -> None:
    page = "\n".join(line.strip() for line in PAGE.read_text(encoding="utf-8").splitlines())
    drawing: list[str] = []
    count = 0
    for line in (SOURCE / name).read_text(encoding="utf-8").splitlines():
        if DRAWN.search(line):
            drawing.append(line.strip().removeprefix("#").strip())
        elif drawing:
            assert "\n".join(drawing) in page, f"docs/reference/protocol.md lacks this drawing of {name}"
            drawing, count = [], count + 1
    assert count


def test_the_table_of_kinds_is_that_of_the_code() -> None:
    assert {row[0]: int(row[1]) for row in rows_under("### Kinds of frames")} == {kind.name: kind for kind in Kind}


def test_the_table_of_states_is_that_of_the_code() -> None:
    said: dict[tuple[Phase, int], Phase] = {}
    for where, takes, then in rows_under("### Which frame may come when"):
        for kind in takes.split(", "):
            if where == "every state":
                said |= {(state, Kind[kind]): state for state in Phase}
            else:
                name, _, what = where.partition(": ")
                assert Phase[name].value == what
                said[Phase[name], Kind[kind]] = Phase[then.partition(";")[0]]
    assert said == TRANSITIONS


def test_the_table_of_requests_is_that_of_the_code() -> None:
    rows = rows_under("### Each request")
    asked = [(f"`{one.__name__}`", (one.__doc__ or "").splitlines()[0], words(REPLIES[one])) for one in ORDER]
    assert [tuple(row[:3]) for row in rows] == asked
    for row in rows:
        assert set(filter(None, row[3].split(", "))) <= requests.BY_NAME.keys(), row


ORDER = tuple(REPLIES)


@pytest.mark.parametrize(
    ("heading", "values"),
    [
        ("## Handshake", HANDSHAKE),
        ("### Fields of requests", ORDER),
        ("### Fields of replies", ANSWERS),
        ("### Fields of a channel's greeting", (ChannelHello, ChannelWelcome)),
    ],
    ids=["handshake", "requests", "replies", "channels"],
)
def test_the_tables_of_fields_are_those_of_the_code(heading: str, values: tuple[type[msgspec.Struct], ...]) -> None:
    wanted = [row for value in values for row in field_rows(value)]
    assert ["| " + " | ".join(row) + " |" for row in rows_under(heading)] == wanted


def test_the_table_of_limits_has_every_limit_and_its_default() -> None:
    settings = msgspec.structs.asdict(Config()) | msgspec.structs.asdict(Serving())
    said = {row[0].strip("`"): row[1] for row in rows_under("## Limits")}
    assert list(said) == list(Limits.__struct_fields__)
    for name, default in said.items():
        assert default == str(settings.get(name, "")), name


def test_the_table_of_errors_is_the_tree() -> None:
    said = {row[0].strip("`"): (int(row[1]), row[2] == "yes") for row in rows_under("### Kinds of errors")}
    tree = {
        name: (error.code, error.retryable)
        for name, error in vars(errors).items()
        if isinstance(error, type) and issubclass(error, HeadwaterError)
    }
    assert {name: said.get(name) for name in tree} == tree
    assert said.keys() - tree.keys() <= UNWRITTEN


def test_numbers_that_the_page_states_in_passing_are_those_of_the_code() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert REQUEST_BYTES_MAX == 1 << 20
    assert "a REQUEST is at most 1 MiB" in page
    assert batches.RANGES_MAX == 100_000
    assert "at most 100,000\nranges" in page
    assert requests.TEXT_MAX == 4096
    assert "at most 4096 characters" in page
    assert Serving().hello_bytes_max == 16 * 1024
    assert "before the handshake is through 16 KiB" in page
    assert Serving().credit_messages_max == 1_000_000
    assert Serving().credit_bytes_max == 256 << 20
    assert Serving().handshake_s == 10
    assert Serving().port == 7411
    assert handshake.VERSIONS == (1,)


def test_options_are_those_of_a_durable_subscription_but_for_what_the_request_itself_says() -> None:
    assert set(Options.__struct_fields__) - {"id", "filter"} == OPTION_NAMES
    page = PAGE.read_text(encoding="utf-8")
    listed = page.partition("- `Subscribe.options`: ")[2].partition(", for\n")[0]
    assert {name.strip("`") for name in listed.split(", ")} == OPTION_NAMES
