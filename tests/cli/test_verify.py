from __future__ import annotations

import signal
import sys
from pathlib import Path
from subprocess import PIPE, Popen
from typing import Any

import pytest

import headwater
from cli.command import here, objects, objects_here, one_sentence, run, start
from headwater import Config
from headwater.store.batch import checksum, seal_header
from headwater.store.body import encode_body
from headwater.store.files import DiskFiles
from headwater.store.folder import check
from headwater.store.segment import whole_batches
from headwater.store.state_verify import verify_state
from headwater.store.verify import KnownStream, Report, verify

BATCHES = 6
BATCH = 10


def walk(data: Path) -> Report:
    steps: list[int] = []
    report = verify(DiskFiles(), str(data), lambda _: KnownStream(), steps.append)
    total = sum(log.stat().st_size for log in data.glob("streams/*/*.log"))
    assert sum(steps) == total, "progress ends at the last byte"
    return report


def log_of(data: Path, root: str = "home") -> Path:
    return min(data.glob(f"streams/*-{root}/*.log"))


def flip(file: Path, position: int) -> None:
    content = bytearray(file.read_bytes())
    content[position] ^= 0x40
    file.write_bytes(content)


def places(file: Path) -> list[tuple[int, int]]:
    """Where each batch begins and ends."""
    seed = check(DiskFiles(), str(file.parents[2]))
    opened = DiskFiles().open(str(file), write=False)
    found = [(place, place + header.bytes) for place, header, _ in whole_batches(seed, opened, 0, None)]
    opened.close()
    return found


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Two roots; "home" has six batches of ten messages."""
    with headwater.open(tmp_path / "data") as bus:
        for number in range(BATCHES):
            bus.publish_many([(f"home/{number}", b"payload %d" % place) for place in range(BATCH)])
        bus.publish("mill/a", b"x", retain=True)
    return tmp_path / "data"


def test_a_whole_folder_is_told_root_by_root(data: Path):
    home, mill, folder = objects("verify", data=data)
    assert (home["root"], home["segments"], home["batches"], home["messages"]) == ("home", 1, 6, 60)
    assert (home["first_offset"], home["last_offset"], home["damages"]) == (1, 60, [])
    assert (mill["root"], mill["messages"]) == ("mill", 1)
    assert folder["is_whole"]
    assert "whole: 61 messages in 2 roots" in here("verify", data=data).stdout


def test_a_flipped_byte_is_found_with_its_place_and_its_messages(data: Path):
    log = log_of(data)
    start, end = places(log)[2]
    flip(log, start + 100)
    home, _, folder = objects("verify", data=data, code=1)
    assert home["damages"] == [
        {
            "file": str(log.relative_to(data)),
            "start": start,
            "end": end,
            "first": 21,
            "last": 30,
            "reason": "checksums are wrong, or no batch where one should be",
            "is_known": False,
        }
    ]
    assert not folder["is_whole"]
    shown = here("verify", data=data, code=1).stdout
    assert f"bytes {start} to {end}, messages 21 to 30 are gone" in shown


def test_every_flipped_byte_of_a_batch_is_found(data: Path):
    log = log_of(data)
    whole = log.read_bytes()
    start, end = places(log)[1]
    for position in range(start, end):
        log.write_bytes(whole)
        flip(log, position)
        (home, _) = walk(data).streams
        assert not home.is_whole, f"byte {position} of the batch from {start} to {end}"
        (damage,) = home.damages
        assert start <= damage.start <= position < damage.end <= end
        if damage.first:
            assert (damage.first, damage.last, home.messages) == (11, 20, 50)


def test_a_damaged_range_is_quarantined_and_then_known(data: Path):
    log = log_of(data)
    start, end = places(log)[2]
    flip(log, start + 100)
    bad = log.read_bytes()[start:end]
    shown = run("verify", "--quarantine", data=data, code=1).stdout
    assert "(quarantined)" in shown
    (kept,) = (data / "quarantine").iterdir()
    assert (kept.name, kept.read_bytes()) == (f"1-21-30-at-1-{start}", bad)
    again, _, folder = objects_here("verify", data=data)
    assert folder["is_whole"]
    assert [damage["is_known"] for damage in again["damages"]] == [True]
    assert "known gap" in here("verify", data=data).stdout
    result = here("replay", "home/#", data=data)
    assert len(result.stdout.splitlines()) == 50
    assert one_sentence(result.stderr)
    assert "messages 21 to 30" in result.stderr


def test_damage_at_the_end_that_was_acknowledged_is_damage(data: Path):
    log = log_of(data)
    start, _ = places(log)[-1]
    flip(log, start + 4)
    (home, _) = walk(data).streams
    assert [(damage.first, damage.last) for damage in home.damages] == [(51, 60)]


def test_an_end_that_was_cut_off_is_damage(data: Path):
    log = log_of(data)
    start, _ = places(log)[-1]
    log.write_bytes(log.read_bytes()[:start])
    (home, _) = walk(data).streams
    assert [(damage.first, damage.last, damage.start) for damage in home.damages] == [(51, 60, start)]


def test_a_torn_end_that_nobody_was_promised_is_no_damage(data: Path):
    log = log_of(data)
    _, end = places(log)[-1]
    content = log.read_bytes()[:end]
    log.write_bytes(content + content[: end // 3] + bytes(4096))
    (home, _) = walk(data).streams
    assert home.is_whole
    assert home.torn_bytes > 0
    assert home.messages == 60


@pytest.mark.parametrize("harm", ["flip", "garbage", "cut", "gone"])
def test_an_index_that_is_wrong_is_no_damage_and_quarantine_removes_it(data: Path, harm: str):
    index = log_of(data).with_suffix(".idx")
    match harm:
        case "flip":
            flip(index, 24 * 3 + 8)
        case "garbage":
            index.write_bytes(bytes(range(256)) * 4)
        case "cut":
            index.write_bytes(index.read_bytes()[: 24 * 3 + 5])
        case "gone":
            index.unlink()
    home, _, folder = objects("verify", data=data)
    assert (home["damages"], folder["is_whole"]) == ([], True)
    if harm in ("flip", "garbage"):
        assert home["indexes"] == [str(index.relative_to(data))]
        assert "no message is lost" in home["notes"][0]
    here("verify", "--quarantine", data=data)
    assert objects_here("verify", data=data)[0]["indexes"] == []
    assert len(objects_here("replay", "home/#", "--after", 35, data=data)) == 25


def test_a_batch_of_another_root_is_found(data: Path):
    home, mill = log_of(data), log_of(data, "mill")
    start, end = places(home)[0]
    alien_start, alien_end = places(mill)[0]
    content = bytearray(home.read_bytes())
    alien = mill.read_bytes()[alien_start:alien_end]
    content[start:end] = alien + bytes(end - start - len(alien))
    home.write_bytes(content)
    (report, _) = walk(data).streams
    (damage,) = report.damages
    assert (damage.first, damage.last, damage.reason) == (1, 10, 'a batch of root "mill"')


@pytest.mark.parametrize("body", [b"no columns" * 10, encode_body(["home/x"] * 9, [b"x"] * 9, 1)])
def test_a_batch_that_cannot_be_read_though_its_checksums_are_right_is_found(data: Path, body: bytes):
    log = log_of(data)
    seed = check(DiskFiles(), str(data))
    start, end = places(log)[2]
    header = seal_header(seed, b"home", 21, BATCH, 1, 20, len(body), checksum(body))
    content = bytearray(log.read_bytes())
    content[start:end] = (header + body).ljust(end - start, b"\0")
    log.write_bytes(content)
    (home, _) = walk(data).streams
    (damage,) = home.damages
    assert (damage.first, damage.last, damage.start, damage.end) == (21, 30, start, end)
    assert "body" in damage.reason


def test_a_segment_that_is_missing_is_found(tmp_path: Path):
    data = tmp_path / "data"
    with headwater.open(data, Config(segment_bytes=64 * 1024)) as bus:
        for _ in range(30):
            bus.publish_many([("home/a", bytes(1000))] * 10)
    logs = sorted(data.glob("streams/*/*.log"))
    assert len(logs) > 3
    (home,) = walk(data).streams
    assert home.is_whole
    assert not home.notes
    logs[1].unlink()
    (home,) = walk(data).streams
    (damage,) = home.damages
    assert (damage.first, damage.last) == (int(logs[1].stem), int(logs[2].stem) - 1)


def test_a_version_that_cannot_be_read_and_strange_folders_are_told(data: Path):
    (data / "VERSION").write_text("{")
    (data / "streams" / "notes").mkdir()
    *_, folder = objects("verify", data=data, code=1)
    assert len(folder["troubles"]) == 2


@pytest.mark.parametrize("what", ["missing", "damaged", "another folder's"])
def test_a_version_that_is_gone_is_told_and_the_streams_are_walked_all_the_same(data: Path, what: str):
    version = data / "VERSION"
    before = version.read_text()
    if what == "missing":
        version.unlink()
    elif what == "damaged":
        flip(version, before.index("seed_crc") + 11)
    else:
        headwater.open(data.parent / "other").close()
        version.write_bytes((data.parent / "other" / "VERSION").read_bytes())
    home, mill, folder = objects("verify", data=data, code=1)
    assert (home["messages"], home["damages"], mill["messages"], mill["damages"]) == (60, [], 1, [])
    (trouble,) = folder["troubles"]
    assert what in trouble
    assert one_sentence(here("verify", "--quarantine", data=data, code=2).stderr)
    version.write_text(trouble.partition("or write ")[2])
    assert objects_here("verify", data=data)[-1]["is_whole"]
    with headwater.open(data) as bus:
        assert len(list(bus.replay("#"))) == 61
        assert not bus.events()


def test_a_version_that_is_gone_and_cannot_be_told_is_all_that_is_told(tmp_path: Path):
    data = tmp_path / "data"
    with headwater.open(data) as bus:
        bus.publish("a/b", b"x")
    (data / "VERSION").unlink()
    (folder,) = objects("verify", data=data, code=1)
    assert "copy it from a backup" in folder["troubles"][0]


def test_it_works_beside_an_owner_that_is_writing(data: Path):
    with start("pub", "home/load", "--count", 200_000, "--size", 100, data=data) as owner:
        for _ in range(3):
            *_, folder = objects("verify", data=data)
            assert folder["is_whole"]
        assert owner.wait(60) == 0


def test_whoever_opens_the_folder_meanwhile_is_not_turned_away(data: Path, monkeypatch: pytest.MonkeyPatch):
    def opened_meanwhile(*given: Any, **how: Any) -> Any:
        headwater.open(data).close()
        return verify_state(*given, **how)

    monkeypatch.setattr("headwater.cli.verify.verify_state", opened_meanwhile)
    here("verify", "--data", data)


def test_the_journal_is_looked_at_after_kill_9(tmp_path: Path):
    data = tmp_path / "data"
    code = (
        "import headwater, sys\n"
        "bus = headwater.open(sys.argv[1])\n"
        "for number in range(50): bus.publish_many([(f'root{n}/a', b'x') for n in range(5)])\n"
        "print('ready', flush=True)\n"
        "while True: bus.publish_many([(f'root{n}/a', b'x') for n in range(5)])\n"
    )
    with Popen([sys.executable, "-c", code, str(data)], stdout=PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        child.send_signal(signal.SIGKILL)
    *roots, folder = objects("verify", data=data)
    assert folder["is_whole"]
    assert folder["journal_batches"] >= 250
    assert len(roots) == 5


def test_quarantine_needs_the_folder_for_itself(data: Path, tmp_path: Path):
    with headwater.open(data):
        assert run("verify", "--quarantine", data=data, code=2).stderr.startswith("Owned(409)")
    assert one_sentence(run("verify", data=tmp_path / "nowhere", code=2).stderr)
