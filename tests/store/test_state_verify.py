"""Verify of the state: whole ones are whole, beside an owner that writes too, and whatever is wrong is told."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import headwater
from cli.command import objects_here
from headwater.bus import Bus
from headwater.cli.state_rows import DECODERS
from headwater.store import state as rows
from headwater.store.files import DiskFiles
from headwater.store.rocks import RocksState
from headwater.store.state_verify import StateReport, verify_state
from store.test_rocks import flip, log_of


def verified(folder: Path, *, is_owned: bool = True) -> StateReport:
    return verify_state(DiskFiles(), str(folder / "state"), DECODERS, must_exist=True, is_owned=is_owned)


@pytest.fixture
def bus(tmp_path: Path) -> Iterator[Bus]:
    with headwater.open(tmp_path / "data") as made:
        made.publish_many([(f"home/{number}", b"x") for number in range(5)])
        made.publish("home/kept", b"x", retain=True, producer="p", sequence=1)
        sub = made.subscribe("home/#", id="s", start="earliest", order="none")
        messages = sub.batch(5, 0)
        sub.ack(messages[1:3])
        messages[0].nack("not now", delay_s=100.0)
        messages[4].reject("never")
        made.clients.add("ann")
        made.acl.allow("ann", "publish", "#")
        made.tokens.add("ann", "reader")
        yield made


@pytest.fixture
def left(bus: Bus, tmp_path: Path) -> Path:
    shutil.copytree(tmp_path / "data", tmp_path / "left")
    return tmp_path / "left"


def test_every_kind_of_row_is_looked_at() -> None:
    kinds = {value for name, value in vars(rows).items() if name.isupper() and isinstance(value, bytes)}
    assert set(DECODERS) == kinds - {rows.CHAIN, rows.LOSS}


def test_a_state_in_use_one_that_a_kill_left_and_one_that_was_closed_are_whole(
    bus: Bus, left: Path, tmp_path: Path
) -> None:
    for found in (verified(tmp_path / "data", is_owned=False), verified(left)):
        assert found.troubles == []
        assert found.rows > 10
        assert found.last_write > 5
    bus.close()
    assert verified(tmp_path / "data").troubles == []


def test_a_state_whose_owner_writes_all_the_time_is_whole(bus: Bus, tmp_path: Path) -> None:
    is_over = threading.Event()

    def work() -> None:
        number = 0
        while not is_over.is_set():
            number += 1
            bus.core.rows.write({rows.key_message(rows.ACKED, 1, 1, number): b""})

    thread = threading.Thread(target=work)
    thread.start()
    try:
        for _ in range(3):
            assert verified(tmp_path / "data", is_owned=False).troubles == []
    finally:
        is_over.set()
        thread.join()


def test_bad_bytes_in_the_log_are_told(left: Path) -> None:
    log = log_of(left / "state")
    flip(log, log.stat().st_size // 2)
    (trouble,) = verified(left).troubles
    assert "are lost (bad or missing bytes in its log)" in trouble
    assert verified(left, is_owned=False).troubles == [trouble]


def test_what_was_lost_before_is_known_and_is_no_trouble(left: Path) -> None:
    log = log_of(left / "state")
    flip(log, log.stat().st_size // 2)
    headwater.open(left).close()
    found = verified(left)
    assert found.troubles == []
    assert len(found.losses) == 1


def test_a_missing_log_is_told(left: Path) -> None:
    log_of(left / "state").unlink()
    (trouble,) = verified(left).troubles
    assert "its log ends too early" in trouble


def test_a_missing_state_is_told(left: Path) -> None:
    shutil.rmtree(left / "state")
    assert verified(left).troubles == ["the state is missing, or its file CURRENT is"]


def test_rows_that_cannot_be_read_are_told_by_their_kind_and_the_others_are_read(left: Path) -> None:
    headwater.open(left).close()
    for table in (left / "state").glob("*.sst"):
        flip(table, 100)
    troubles = verified(left).troubles
    assert any("cannot be read" in trouble and "of kind" in trouble for trouble in troubles)


def test_a_row_that_is_not_what_its_kind_says_is_told(left: Path) -> None:
    state = RocksState(str(left / "state"))
    state.commit({rows.SUBSCRIPTION + b"bad": b"\xc1", rows.FLOOR + b"x": b"12345678", b"~": b""})
    state.close()
    troubles = " ".join(verified(left).troubles)
    assert "b'Ubad' is not what it should be" in troubles
    assert "b'Cx' is not what it should be (its key has 2 bytes)" in troubles
    assert "b'~' is of no kind that is known" in troubles


def test_the_command_says_that_a_state_is_damaged_and_ends_with_1(left: Path, tmp_path: Path) -> None:
    assert objects_here("verify", "--data", tmp_path / "data")[-1]["is_whole"] is True
    log = log_of(left / "state")
    flip(log, log.stat().st_size // 2)
    from cli.command import here

    assert "are lost" in here("verify", "--data", left, code=1).output.replace("\n", " ")


def test_a_tail_that_was_never_acknowledged_is_no_damage(bus: Bus, tmp_path: Path) -> None:
    bus.core.state.write({rows.key_message(rows.ACKED, 1, 1, 100): b""})
    shutil.copytree(tmp_path / "data", tmp_path / "left")
    log = log_of(tmp_path / "left" / "state")
    log.write_bytes(log.read_bytes()[:-5])
    found = verified(tmp_path / "left")
    assert found.troubles == []
    assert found.rows > 10
