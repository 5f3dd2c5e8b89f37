"""Rules that went bad on disk: nobody is let in by a rule that is missing, until an administrator has looked."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import headwater
from cli.command import here, objects_here
from headwater import NotAllowed, Unauthenticated
from headwater.config import Serving
from headwater.server.watch.health import Health
from headwater.store import chain
from headwater.store import state as rows
from headwater.store.rocks import RocksState
from headwater.store.state_recovery import Loss, loss_rows
from server.harness import Running
from store.test_rocks import flip, log_of


@pytest.fixture
def left(tmp_path: Path) -> Path:
    """A folder that a killed server left: ann may do everything but for what a rule forbids, whose bytes went bad."""
    with headwater.open(tmp_path / "data") as bus:
        bus.clients.add("ann", "a secret of a test")
        for action in ("publish", "create", "subscribe", "admin"):
            bus.acl.allow("ann", action, "#")
        bus.acl.deny("ann", "publish", "secret/#")
        token = bus.tokens.add("ann", "admin").token
        bus.subscribe("home/#", id="s").close()
        bus.publish("home/x", b"1")
        shutil.copytree(tmp_path / "data", tmp_path / "left")
    (tmp_path / "token").write_text(token)
    log = log_of(tmp_path / "left" / "state")
    flip(log, log.read_bytes().index(b"secret/#"))
    return tmp_path / "left"


def test_while_rules_may_be_lost_none_counts_and_why_is_said(left: Path, tmp_path: Path) -> None:
    with headwater.open(left) as bus:
        assert [event.kind for event in bus.events()] == ["damage"]
        assert "clients, rules and tokens" in bus.events()[0].text
        assert not bus.acl.may_publish("ann", "home/x")
        assert not bus.acl.is_admin("ann")
        with pytest.raises(NotAllowed, match="headwater acl confirm"):
            bus.acl.check_subscribe("ann", "home/#")
        with pytest.raises(Unauthenticated, match="headwater acl confirm"):
            bus.tokens.check((tmp_path / "token").read_text())
        assert bus.publish("home/x", b"2").offset == 2  # whoever has the folder may do as before
        assert len(bus.subscriptions()) == 1


def test_a_server_lets_nobody_do_anything_and_says_so_on_its_health(left: Path) -> None:
    with Running(left, auth="scram") as running:
        peer = running.peer("ann")
        with pytest.raises(NotAllowed, match="headwater acl confirm"):
            peer.subscribe(1, "home/#", kind="named", id="s")
        checks = Health(running.bus.core, Serving(auth="scram"), running.server.pulse).check().checks
        found = {check.name: check for check in checks}
        assert not found["access"].ok
        assert "headwater acl confirm" in found["access"].detail
        assert found["state"].ok
        assert "rows are lost" in found["state"].detail


def test_an_administrator_puts_the_rules_right_and_confirms_them(left: Path) -> None:
    here("acl", "deny", "ann", "publish", "secret/#", "--data", left)
    assert objects_here("acl", "confirm", "--data", left) == [{"confirmed": 1}]
    with headwater.open(left) as bus:
        assert bus.acl.closed is None
        assert bus.acl.may_publish("ann", "home/x")
        assert not bus.acl.may_publish("ann", "secret/x")


def test_rows_of_others_that_went_bad_close_nothing(left: Path) -> None:
    shutil.rmtree(left / "state")
    shutil.copytree(left.parent / "data" / "state", left / "state")
    shutil.copy(left.parent / "data" / "state.synced", left / "state.synced")
    with headwater.open(left) as bus:
        bus.subscribe("home/#", id="t").close()
        shutil.copytree(left, left.parent / "again")
    log = log_of(left.parent / "again" / "state")
    flip(log, log.read_bytes().index(rows.SUBSCRIPTION + b"t") + 1)
    with headwater.open(left.parent / "again") as bus:
        assert [event.kind for event in bus.events()] == ["damage"]
        assert bus.acl.closed is None
        assert bus.acl.may_publish("ann", "home/x")


def test_a_session_that_comes_back_while_rules_may_be_lost_gets_nothing(tmp_path: Path) -> None:
    with Running(tmp_path / "data", auth="scram") as running:
        running.client("ann", allow=("subscribe home/#",))
        peer = running.peer("ann", expire_after_s=3600.0)
        session = peer.session
        peer.subscribe(1, "home/#", kind="session")
    state = RocksState(str(tmp_path / "data" / "state"))
    state.commit(loss_rows([Loss(1, 2, 0, 0, 1 << chain.ACCESS, "for a test")]))
    state.close()
    with Running(tmp_path / "data", auth="scram") as running:
        running.bus.publish("home/x", b"1")
        peer = running.peer("ann", session=session)
        with pytest.raises(NotAllowed):
            peer.subscribe(2, "home/#", kind="live")
        peer.credit(1)
        peer.quiet()
