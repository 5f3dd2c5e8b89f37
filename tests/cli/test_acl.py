from __future__ import annotations

from pathlib import Path

import pytest

import headwater
from cli.command import here, objects, objects_here, one_sentence


@pytest.fixture
def data(tmp_path: Path) -> Path:
    headwater.open(tmp_path / "data").close()
    return tmp_path / "data"


def test_rules_are_made_listed_and_taken_back(data: Path):
    assert objects("acl", "allow", "ann", "publish", "home/#", data=data) == [
        {"user": "ann", "action": "publish", "filter": "home/#", "done": "allowed"}
    ]
    here("acl", "deny", "ann", "publish", "home/door", data=data)
    here("acl", "allow", "*", "subscribe", "home/%u/#", data=data)
    here("acl", "allow", "bob", "admin", data=data)
    with headwater.open(data) as bus:
        assert bus.acl.may_publish("ann", "home/a")
        assert not bus.acl.may_publish("ann", "home/door")
        assert bus.acl.may_subscribe("eve", "home/eve/+")
        assert bus.acl.is_admin("bob")
        found = objects("acl", "list", data=data)  # beside the owner
    assert [(rule["user"], rule["action"], rule["filter"], rule["allow"]) for rule in found] == [
        ("*", "subscribe", "home/%u/#", True),
        ("ann", "publish", "home/#", True),
        ("ann", "publish", "home/door", False),
        ("bob", "admin", "#", True),
    ]
    assert [rule["user"] for rule in objects_here("acl", "list", "bob", data=data)] == ["*", "bob"]
    shown = here("acl", "list", data=data).stdout
    assert "home/door" in shown
    assert "deny" in shown
    here("acl", "remove", "ann", "publish", "home/door", data=data)
    here("acl", "remove", "bob", "admin", data=data)
    assert len(objects_here("acl", "list", data=data)) == 2


@pytest.mark.parametrize(
    "wrong",
    [
        ("allow", "ann", "publish"),
        ("allow", "ann", "fly", "home/#"),
        ("allow", "ann", "admin", "home/#"),
        ("allow", "a/b", "publish", "home/#"),
        ("deny", "ann", "publish", "home/x%u"),
        ("deny", "ann", "publish", "home/#/x"),
        ("remove", "ann", "publish", "home/#"),
    ],
)
def test_wrong_input_is_refused_in_one_sentence(data: Path, wrong: tuple[str, ...]):
    assert one_sentence(here("acl", *wrong, "--data", data, code=2).stderr)
    assert objects_here("acl", "list", "--data", data) == []
