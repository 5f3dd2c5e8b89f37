"""Rules: the whole matrix as a table, against a model that tries every topic, and over changes and reopening."""

from __future__ import annotations

import random
import re
import threading
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from faults.faulty_state import FaultyState
from headwater.access import acl as module
from headwater.access.acl import ACTIONS, Acl, Action, Rule
from headwater.errors import Failed, Malformed, NotAllowed, NotFound, QuotaExceeded, ReadOnly, Unwritable
from headwater.store import state as rows
from headwater.store.rocks import RocksState
from headwater.store.state import MemoryState, State
from headwater.topics.name import matches


@pytest.fixture(params=[RocksState, MemoryState])
def state(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[State]:
    made: State = RocksState(str(tmp_path / "state")) if request.param is RocksState else MemoryState()
    yield made
    made.close()


@pytest.fixture
def acl(state: State) -> Acl:
    return Acl(state)


def with_rules(*lines: str) -> Acl:
    """Rules as the command line takes them: allow USER ACTION FILTER."""
    acl = Acl(MemoryState())
    for line in lines:
        verb, user, action, filter = line.split(" ")
        getattr(acl, verb)(user, action, filter)
    return acl


def may(acl: Acl, user: str, action: str, asked: str) -> bool:
    """What the rules say; both ways of asking say the same, where there are two."""
    ask, check = {
        "publish": (acl.may_publish, acl.check_publish),
        "create": (acl.may_create, acl.check_create),
        "subscribe": (acl.may_subscribe, acl.check_subscribe),
        "channel": (None, acl.check_channel),
        "admin": (lambda user, _: acl.is_admin(user), lambda user, _: acl.check_admin(user)),
    }[action]
    allowed = True
    try:
        check(user, asked)
    except NotAllowed as error:
        allowed = False
        assert user in str(error)
    assert ask is None or ask(user, asked) == allowed
    return allowed


def first_refused(acl: Acl, user: str, names: tuple[str, ...]) -> str | None:
    """The topic for which messages of these are refused."""
    try:
        acl.check_publish_all(user, names)
    except NotAllowed as error:
        said = re.search(r'publish to "(.*?)"', str(error))
        assert said
        return said[1]
    return None


# What is allowed

TOPIC_MATRIX: list[tuple[tuple[str, ...], str, str, bool]] = [
    # rules ("@" is the action), user, topic, allowed
    ((), "ann", "home/door", False),
    (("allow ann @ home/door",), "ann", "home/door", True),
    (("allow ann @ home/door",), "bob", "home/door", False),
    (("allow ann @ home/door",), "an", "home/door", False),
    (("allow ann @ home/door",), "ann", "home/doors", False),
    (("allow ann @ home/door",), "ann", "home/door/lock", False),
    (("allow ann @ home/#",), "ann", "home", True),
    (("allow ann @ home/#",), "ann", "home/a/b", True),
    (("allow ann @ home/#",), "ann", "homes/a", False),
    (("allow ann @ home/+",), "ann", "home/a", True),
    (("allow ann @ home/+",), "ann", "home/", True),
    (("allow ann @ home/+",), "ann", "home", False),
    (("allow ann @ home/+",), "ann", "home/a/b", False),
    (("allow ann @ #",), "ann", "/", True),
    (("allow * @ home/#",), "bob", "home/a", True),
    (("allow * @ home/#", "deny bob @ home/a"), "bob", "home/a", False),
    (("allow * @ home/#", "deny bob @ home/a"), "ann", "home/a", True),
    (("allow ann @ home/a", "deny * @ #"), "ann", "home/a", False),
    (("deny ann @ home/#", "allow ann @ home/a"), "ann", "home/a", False),
    (("deny ann @ home/a", "allow ann @ home/#"), "ann", "home/a", False),
    (("deny ann @ home/a", "allow ann @ home/#"), "ann", "home/b", True),
    (("deny ann @ home/a",), "ann", "home/b", False),
    # the same triple is one rule: the last word counts
    (("deny ann @ home/a", "allow ann @ home/a"), "ann", "home/a", True),
    (("allow ann @ home/a", "deny ann @ home/a"), "ann", "home/a", False),
    # %u
    (("allow * @ home/%u/#",), "ann", "home/ann/temp", True),
    (("allow * @ home/%u/#",), "ann", "home/bob/temp", False),
    (("allow * @ home/%u/#",), "ann", "home/%u/temp", False),
    (("allow ann @ home/%u",), "ann", "home/ann", True),
    (("allow * @ %u/#",), "ann", "ann", True),
    (("allow * @ %u/#",), "ann", "annie", False),
    (("allow * @ home/#", "deny * @ home/%u"), "ann", "home/ann", False),
    (("allow * @ home/#", "deny * @ home/%u"), "ann", "home/bob", True),
    # $-roots are named, or not meant
    (("allow ann @ #",), "ann", "$SYS/load", False),
    (("allow ann @ +/load",), "ann", "$SYS/load", False),
    (("allow ann @ $SYS/#",), "ann", "$SYS/load", True),
    (("allow ann @ $SYS/#", "deny ann @ #"), "ann", "$SYS/load", True),
    (("allow ann @ home/+",), "ann", "home/$x", True),
    # users whose names would widen a rule, wherever they came from
    (("allow * @ home/%u/#",), "+", "home/bob", False),
    (("allow * @ home/%u",), "#", "home/bob", False),
    (("allow * @ #",), "a/b", "home", False),
    (("allow * @ #",), "*", "home", False),
    (("allow * @ #",), "", "home", False),
    (("allow * @ %u/#",), "$SYS", "$SYS/load", False),
    (("allow * @ #",), "u\u0308", "home", False),
    (("allow * @ #",), "ü", "home", True),
]


@pytest.mark.parametrize("action", ["publish", "create"])
@pytest.mark.parametrize(("lines", "user", "topic", "allowed"), TOPIC_MATRIX)
def test_publishing_and_creating(action: str, lines: tuple[str, ...], user: str, topic: str, allowed: bool):
    acl = with_rules(*(line.replace("@", action) for line in lines))
    assert may(acl, user, action, topic) is allowed
    assert may(acl, user, action, topic) is allowed  # as it is remembered
    others = with_rules(*(line.replace("@", "create" if action == "publish" else "publish") for line in lines))
    assert may(others, user, action, topic) is False  # one right is not the other


FILTER_MATRIX: list[tuple[tuple[str, ...], str, str, bool]] = [
    ((), "ann", "home/#", False),
    (("allow ann home/#",), "ann", "home/#", True),
    (("allow ann home/#",), "ann", "home/+/temp", True),
    (("allow ann home/#",), "ann", "home", True),
    (("allow ann home/#",), "ann", "#", False),
    (("allow ann home/#",), "ann", "+/temp", False),
    (("allow ann home/+",), "ann", "home/#", False),
    (("allow ann home/+",), "ann", "home/+", True),
    (("allow ann home/a", "allow ann home/b"), "ann", "home/+", False),
    (("allow ann #",), "ann", "+/+", True),
    (("allow ann +/#",), "ann", "#", True),
    (("allow ann #",), "ann", "$SYS/#", False),
    (("allow ann $SYS/#",), "ann", "$SYS/+/load", True),
    (("allow ann #", "deny ann home/secret"), "ann", "#", False),
    (("allow ann #", "deny ann home/secret"), "ann", "home/+", False),
    (("allow ann #", "deny ann home/secret"), "ann", "home/+/temp", True),
    (("allow ann #", "deny ann home/secret"), "ann", "garden/#", True),
    (("allow ann home/#", "deny ann +/secret/#"), "ann", "home/#", False),
    (("allow ann home/#", "deny ann +/secret/#"), "ann", "home/open/#", True),
    (("allow ann #", "deny ann $SYS/#"), "ann", "#", True),
    (("allow * home/%u/#",), "ann", "home/ann/+", True),
    (("allow * home/%u/#",), "ann", "home/+/temp", False),
    (("allow * home/#", "deny * home/%u/#"), "ann", "home/bob/#", True),
    (("allow * home/#", "deny * home/%u/#"), "ann", "home/+/temp", False),
    (("allow * home/%u/#",), "+", "home/+/temp", False),
    (("allow * home/%u",), "#", "home/#", False),
]


@pytest.mark.parametrize(("lines", "user", "filter", "allowed"), FILTER_MATRIX)
def test_subscribing(lines: tuple[str, ...], user: str, filter: str, allowed: bool):
    acl = with_rules(*(" ".join((*line.split(" ")[:2], "subscribe", line.split(" ")[2])) for line in lines))
    assert may(acl, user, "subscribe", filter) is allowed


def test_administering():
    acl = with_rules("allow ann admin #", "allow bob publish #", "allow eve admin #", "deny eve admin #")
    assert {user: may(acl, user, "admin", "#") for user in ("ann", "bob", "eve", "+", "*")} == {
        "ann": True,
        "bob": False,
        "eve": False,
        "+": False,
        "*": False,
    }
    assert not may(acl, "ann", "publish", "home/a")  # to administer is no right to read or write


@pytest.mark.parametrize("action", ACTIONS)
def test_one_action_grants_no_other(action: Action):
    acl = with_rules(f"allow ann {action} #")
    assert {other for other in ACTIONS if may(acl, "ann", other, "#")} == {action}


# What is said

REFUSALS = [
    (
        (),
        "publish",
        "home/door",
        (
            'NotAllowed(403): client "sensor-7" may not publish to "home/door" (rule: none); '
            "grant it with: headwater acl allow sensor-7 publish home/door"
        ),
    ),
    (
        ("allow * publish #", "deny sensor-7 publish home/#"),
        "publish",
        "home/door",
        (
            'NotAllowed(403): client "sensor-7" may not publish to "home/door" (rule: deny sensor-7 publish home/#); '
            "take that rule back with: headwater acl remove sensor-7 publish 'home/#'"
        ),
    ),
    (
        ("allow * subscribe #", "deny * subscribe home/%u"),
        "subscribe",
        "home/+",
        (
            'NotAllowed(403): client "sensor-7" may not subscribe to "home/+" (rule: deny * subscribe home/%u); '
            "subscribe to a narrower filter, or take that rule back with: headwater acl remove '*' subscribe home/%u"
        ),
    ),
    (
        ("allow * subscribe home/+",),
        "subscribe",
        "home/#",
        (
            'NotAllowed(403): client "sensor-7" may not subscribe to "home/#" (rule: none); '
            "grant it with: headwater acl allow sensor-7 subscribe 'home/#'"
        ),
    ),
    (
        (),
        "create",
        "home/a b",
        (
            'NotAllowed(403): client "sensor-7" may not create topic "home/a b" (rule: none); '
            "grant it with: headwater acl allow sensor-7 create 'home/a b'"
        ),
    ),
    (
        (),
        "admin",
        "#",
        (
            'NotAllowed(403): client "sensor-7" may not administer this broker (rule: none); '
            "grant it with: headwater acl allow sensor-7 admin '#'"
        ),
    ),
]


@pytest.mark.parametrize(("lines", "action", "asked", "text"), REFUSALS)
def test_a_refusal_names_the_rule_and_says_what_to_do(lines: tuple[str, ...], action: str, asked: str, text: str):
    acl = with_rules(*lines)
    check = {
        "publish": acl.check_publish,
        "create": acl.check_create,
        "subscribe": acl.check_subscribe,
        "channel": acl.check_channel,
        "admin": lambda user, _: acl.check_admin(user),
    }[action]
    with pytest.raises(NotAllowed) as refused:
        check("sensor-7", asked)
    assert str(refused.value) == text


def test_a_refusal_moves_no_cursor():
    with pytest.raises(NotAllowed) as refused:
        with_rules().check_publish("sensor-7", "home/\x1b[31m\n")
    assert str(refused.value).isprintable()
    with pytest.raises(NotAllowed) as refused:
        with_rules().check_publish("a\nb", "home")
    assert str(refused.value).isprintable()


# Batches of topics


def test_the_first_topic_that_is_not_allowed_is_told():
    acl = with_rules("allow ann publish home/#", "deny ann publish home/x")
    assert first_refused(acl, "ann", ()) is None
    assert first_refused(acl, "ann", ("home/a", "home/b")) is None
    for _ in range(2):
        assert first_refused(acl, "ann", ("home/a", "home/x", "garden")) == "home/x"
        assert first_refused(acl, "bob", ("home/a",)) == "home/a"
    acl.check_publish_all("ann", ("home/a", "home/b"))
    with pytest.raises(NotAllowed, match='publish to "home/x"'):
        acl.check_publish_all("ann", ("home/a", "home/x"))


def test_what_is_remembered_is_forgotten_with_each_change():
    acl = with_rules("allow ann publish home/#")
    asked = ("home/a", "home/b")
    for change, wanted in [
        (lambda: acl.deny("ann", "publish", "home/b"), "home/b"),
        (lambda: acl.remove("ann", "publish", "home/b"), None),
        (lambda: acl.deny("*", "publish", "home/%u"), None),
        (lambda: acl.deny("*", "publish", "+/a"), "home/a"),
        (lambda: acl.allow("*", "publish", "+/a"), None),
        (lambda: acl.remove("ann", "publish", "home/#"), "home/b"),
    ]:
        before = first_refused(acl, "ann", asked), acl.may_publish("ann", asked[1])
        assert before == (first_refused(acl, "ann", asked), acl.may_publish("ann", asked[1]))
        change()
        assert first_refused(acl, "ann", asked) == wanted
        assert acl.may_publish("ann", "home/b") is (wanted != "home/b")


def test_a_decision_is_made_once(monkeypatch: pytest.MonkeyPatch):
    acl = with_rules("allow ann publish home/+")
    asked = tuple(f"home/{number}" for number in range(10))
    assert first_refused(acl, "ann", asked) is None
    monkeypatch.setattr(module.Rights, "allows", lambda *_: pytest.fail("it was decided again"))
    assert first_refused(acl, "ann", asked) is None
    assert first_refused(acl, "ann", asked[::-1]) is None
    assert acl.may_publish("ann", "home/3")


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch):
    for name in ("DECISIONS_KEPT", "NAMES_KEPT", "RIGHTS_KEPT"):
        monkeypatch.setattr(module, name, 50)
    acl = with_rules("allow * publish home/#")
    for number in range(500):
        user = f"u{number}"
        assert first_refused(acl, user, (f"home/{number}", "home/b")) is None
        assert first_refused(acl, user, ("away",)) == "away"
        ruling = acl._ruling
        assert len(ruling._publishes.known) <= 50
        assert len(ruling._rights.known) <= 50
        assert sum(len(names) + 1 for _, names in ruling._batches.known) <= 50
    assert first_refused(acl, "ann", tuple(f"home/{number}" for number in range(60))) is None
    assert sum(len(names) + 1 for _, names in acl._ruling._batches.known) <= 50


def test_no_thread_remembers_a_decision_past_its_rules():
    acl = with_rules("allow ann publish home/#")
    stop = threading.Event()

    def ask() -> None:
        while not stop.is_set():
            acl.may_publish("ann", "home/a")
            first_refused(acl, "ann", ("home/a", "home/b"))

    askers = [threading.Thread(target=ask) for _ in range(2)]
    for asker in askers:
        asker.start()
    try:
        for _ in range(300):
            acl.deny("ann", "publish", "home/a")
            assert not acl.may_publish("ann", "home/a")
            assert first_refused(acl, "ann", ("home/a", "home/b")) == "home/a"
            acl.remove("ann", "publish", "home/a")
            assert acl.may_publish("ann", "home/a")
    finally:
        stop.set()
        for asker in askers:
            asker.join()


# A model that tries every topic

LEVELS = ("", "a", "ann", "$s")
UNIVERSE = [
    topic
    for count in range(1, 4)
    for topic in ("/".join(levels) for levels in product((*LEVELS, "z", "$z"), repeat=count))
    if topic
]
FILTERS = (
    st.tuples(st.lists(st.sampled_from([*LEVELS, "+"]), max_size=2), st.sampled_from([[], ["#"], ["+"], ["a"]]))
    .map(lambda parts: "/".join(parts[0] + parts[1])[:20])
    .filter(lambda filter: bool(filter) and filter.count("/") < 2)
)
RULE_FILTERS = FILTERS | FILTERS.map(
    lambda filter: "/".join("%u" if level == "ann" else level for level in filter.split("/"))
)
RULES = st.lists(
    st.builds(
        Rule,
        st.sampled_from(["ann", "bob", "*"]),
        st.sampled_from(["publish", "subscribe"]),
        RULE_FILTERS,
        st.booleans(),
    ),
    max_size=6,
)


def reach(filter: str, user: str) -> set[str]:
    filter = "/".join(user if level == "%u" else level for level in filter.split("/"))
    return {topic for topic in UNIVERSE if matches(filter, topic)}


@settings(max_examples=80, deadline=None)
@given(RULES, FILTERS, st.sampled_from(["ann", "bob"]))
def test_decisions_are_those_of_a_model_that_tries_every_topic(rules: list[Rule], asked: str, user: str):
    acl = Acl(MemoryState())
    last: dict[tuple[str, str, str], Rule] = {}
    for rule in rules:
        (acl.allow if rule.allow else acl.deny)(rule.user, rule.action, rule.filter)
        last[rule.user, rule.action, rule.filter] = rule
    assert sorted(map(str, acl.list())) == sorted(map(str, last.values()))
    its = [rule for rule in last.values() if rule.user in (user, "*")]
    wanted = reach(asked, user)

    allows = [reach(rule.filter, user) for rule in its if rule.allow and rule.action == "subscribe"]
    denies = [reach(rule.filter, user) for rule in its if not rule.allow and rule.action == "subscribe"]
    assert acl.may_subscribe(user, asked) == (
        any(wanted <= one for one in allows) and not any(wanted & one for one in denies)
    )
    allowed = {topic for rule in its if rule.allow and rule.action == "publish" for topic in reach(rule.filter, user)}
    denied = {
        topic for rule in its if not rule.allow and rule.action == "publish" for topic in reach(rule.filter, user)
    }
    assert {topic for topic in UNIVERSE if acl.may_publish(user, topic)} == allowed - denied
    first = next((topic for topic in UNIVERSE if topic not in allowed - denied), None)
    assert first_refused(acl, user, tuple(UNIVERSE)) == first


# Changing


def test_the_version_rises_with_each_change_and_someone_is_told(acl: Acl):
    told = list[int]()
    acl.on_change = lambda _: told.append(acl.version)
    assert acl.version == 0
    acl.allow("ann", "publish", "home/#")
    acl.allow("ann", "publish", "home/#")  # no change
    acl.deny("ann", "publish", "home/#")
    acl.remove("ann", "publish", "home/#")
    acl.reload()  # no change
    assert acl.version == 3
    assert told == [1, 2, 3]


def test_rules_are_listed_in_order(acl: Acl):
    acl.allow("bob", "publish", "b")
    acl.deny("bob", "create", "z")
    acl.allow("*", "subscribe", "%u/#")
    acl.allow("bob", "publish", "a")
    assert [str(rule) for rule in acl.list()] == [
        "allow * subscribe %u/#",
        "deny bob create z",
        "allow bob publish a",
        "allow bob publish b",
    ]
    assert acl.page(None, None) == acl.list()
    assert acl.page(("bob", "create", "z"), 1) == acl.list()[2:3]
    assert acl.page(("bob", "publish", "aa"), 5) == acl.list()[3:], "after one that is gone"


def test_only_a_rule_that_is_there_is_removed(acl: Acl):
    acl.allow("ann", "publish", "home/#")
    for wrong in (("ann", "publish", "home/+"), ("ann", "create", "home/#"), ("*", "publish", "home/#")):
        with pytest.raises(NotFound, match="acl list"):
            acl.remove(*wrong)
    acl.remove("ann", "publish", "home/#")
    assert acl.list() == []
    assert not acl._ruling._by_user  # nothing is left of a user without rules


@pytest.mark.parametrize(
    ("user", "action", "filter", "why"),
    [
        ("", "publish", "a", "name"),
        ("a/b", "publish", "a", "name"),
        ("+", "publish", "a", "name"),
        ("%u", "publish", "a", "name"),
        ("**", "publish", "a", "name"),
        ("ann", "read", "a", "no action; use one of publish, subscribe, create, channel, admin"),
        ("ann", "", "a", "no action"),
        ("ann", "publish", "", "empty"),
        ("ann", "publish", "a/#/b", "goes on after #"),
        ("ann", "publish", "a+", "whole level"),
        ("ann", "publish", "a/*", "use \\+"),
        ("ann", "publish", "a\0b", "NUL"),
        ("ann", "publish", "x" * 2000, "at most"),
        ("ann", "subscribe", "$share/g/a", "shared subscription"),
        ("ann", "publish", "home/x%u", "whole level"),
        ("ann", "publish", "home/%ux/a", "whole level"),
        ("ann", "publish", "%u%u", "whole level"),
        ("ann", "admin", "home/#", "about everything"),
        ("ann", "admin", "+", "about everything"),
        ("ann", "publish", None, "not NoneType"),
        ("ann", "admin", None, "not NoneType"),
    ],
)
def test_a_rule_that_cannot_be_is_refused(acl: Acl, user: Any, action: Any, filter: Any, why: str):
    for ask in (acl.allow, acl.deny, acl.remove):
        with pytest.raises(Malformed, match=why):
            ask(user, action, filter)
    assert acl.list() == []
    assert acl.version == 0


def test_there_are_only_so_many(state: State):
    acl = Acl(state, rules_max=2)
    acl.allow("ann", "publish", "a")
    acl.allow("ann", "publish", "b")
    with pytest.raises(QuotaExceeded, match="2 rules"):
        acl.allow("ann", "publish", "c")
    acl.deny("ann", "publish", "b")
    acl.remove("ann", "publish", "a")
    acl.allow("ann", "publish", "c")


def test_a_user_s_name_is_the_same_in_whatever_form_it_is_written(acl: Acl):
    acl.allow("u\u0308", "publish", "%u/#")
    assert acl.may_publish("ü", "ü/a")
    acl.remove("ü", "publish", "%u/#")


# Stored


def test_rules_are_found_after_reopening(tmp_path: Path):
    state = RocksState(str(tmp_path / "state"))
    acl = Acl(state)
    acl.allow("*", "subscribe", "home/%u/#")
    acl.allow("ann", "publish", "home/#")
    acl.deny("ann", "publish", "home/door")
    acl.allow("ann", "create", "gone")
    acl.remove("ann", "create", "gone")
    before = acl.list()
    state.close()
    state = RocksState(str(tmp_path / "state"))
    acl = Acl(state)
    assert acl.list() == before
    assert acl.may_publish("ann", "home/a")
    assert not acl.may_publish("ann", "home/door")
    assert acl.may_subscribe("bob", "home/bob/+")
    assert not acl.may_create("ann", "gone")
    state.close()


def test_reload_sees_what_another_wrote(state: State):
    one, other = Acl(state), Acl(state)
    one.allow("ann", "publish", "home/#")
    assert not other.may_publish("ann", "home/a")
    other.reload()
    assert other.may_publish("ann", "home/a")
    assert other.version == 1
    one.remove("ann", "publish", "home/#")
    other.reload()
    assert not other.may_publish("ann", "home/a")


def test_beside_the_owner_rules_are_read_and_not_changed(state: State):
    Acl(state).allow("ann", "publish", "home/#")
    reader = Acl(state, read_only=True)
    assert reader.may_publish("ann", "home/a")
    for ask in (reader.allow, reader.deny, reader.remove):
        with pytest.raises(ReadOnly):
            ask("ann", "publish", "home/#")
    assert len(Acl(state).list()) == 1


def test_a_damaged_row_is_not_passed_over(state: State):
    state.write({rows.key_words(rows.RULE, "ann", "publish", "a"): rows.pack(["ann", "fly", "a", True])})
    with pytest.raises(Failed, match="ann"):
        Acl(state)


def test_a_change_is_durable_when_it_returns():
    state = FaultyState()
    acl = Acl(state)
    acl.allow("ann", "publish", "a")
    acl.allow("ann", "publish", "b")
    acl.deny("ann", "publish", "b")
    acl.remove("ann", "publish", "a")
    found = Acl(state.crash(random.Random(1), keep="none"))
    assert found.list() == acl.list() == [Rule("ann", "publish", "b", False)]


def test_a_change_that_did_not_reach_the_disk_did_not_happen():
    state = FaultyState()
    acl = Acl(state)
    acl.allow("ann", "publish", "a")
    state.fail_sync_at = 2
    with pytest.raises(Failed, match="not on disk"):
        acl.allow("ann", "publish", "b")
    assert not acl.may_publish("ann", "b")
    assert acl.version == 1
    with pytest.raises(Unwritable, match="see to the disk"):
        acl.deny("ann", "publish", "a")
    assert acl.may_publish("ann", "a")
