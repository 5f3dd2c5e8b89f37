"""An attacker with an account on the server's machine, or who has got hold of a backup, reads messages and the secrets
that webhooks are signed with."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import headwater
from admin.served import serving
from cli.command import here, objects_here
from headwater.admin import connect
from headwater.errors import Malformed, SecretMissing
from headwater.store import state as rows
from headwater.store.files import DiskFiles
from headwater.store.keys import KEY
from headwater.store.owner import SOCKET
from server.harness import Running, code

SECRET = "whsec_" + "c2VjcmV0LW9mLWEtd2ViaG9vay10aGF0LW5vYm9keS1rbm93cw=="


@pytest.fixture(autouse=True)
def usual_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def open_to_others(folder: Path) -> list[str]:
    """What is in a folder, itself included, that others than its owner have some right to."""
    found = [folder, *folder.rglob("*")]
    return [f"{path} {stat.S_IMODE(path.stat().st_mode):o}" for path in found if path.stat().st_mode & 0o077]


def lived_in(folder: Path) -> None:
    """A folder with messages, a subscription and a channel with a secret."""
    with headwater.open(folder) as bus:
        bus.publish_many([("home/x", b"1"), ("work/y", b"2")])
        bus.subscribe("home/#", id="s").close()
        bus.channels.add("hook", "home/#", "127.0.0.1", 9, "http", id="hook", secret=SECRET)


def with_older_modes(folder: Path) -> None:
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)


def has_secret(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file() and SECRET[6:40].encode() in path.read_bytes()]


# Modes


def test_a_folder_and_all_that_is_in_it_is_for_its_user_alone(tmp_path: Path):
    lived_in(tmp_path / "above" / "data")
    assert open_to_others(tmp_path / "above" / "data") == []
    assert stat.S_IMODE((tmp_path / "above").stat().st_mode) == 0o755  # what is above is not ours


def test_while_it_is_open_nobody_else_gets_in(tmp_path: Path):
    with headwater.open(tmp_path / "data") as bus:
        bus.publish("home/x", b"1")
        for folder in (tmp_path / "data", tmp_path / "data" / "state", *(tmp_path / "data" / "streams").iterdir()):
            assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert [path for path in (tmp_path / "data" / "streams").rglob("*.log") if path.stat().st_mode & 0o077] == []


def test_a_folder_from_before_is_closed_when_it_is_opened_to_write(tmp_path: Path):
    folder = tmp_path / "data"
    lived_in(folder)
    with_older_modes(folder)
    with headwater.open(folder, read_only=True) as bus:
        assert [one.payload for one in bus.replay("home/#")] == [b"1"]
    assert stat.S_IMODE(folder.stat().st_mode) == 0o755  # a reader changes nothing
    headwater.open(folder).close()
    assert open_to_others(folder) == []


def test_a_reader_of_the_same_user_reads_beside_its_owner(tmp_path: Path):
    lived_in(tmp_path / "data")
    script = "import headwater, sys; print(len(list(headwater.open(sys.argv[1], read_only=True).replay('#'))))"
    with headwater.open(tmp_path / "data"):
        command = [sys.executable, "-c", script, str(tmp_path / "data")]
        assert subprocess.run(command, capture_output=True, check=True, timeout=60).stdout == b"2\n"


def test_a_backup_and_what_is_restored_of_it_are_closed_too(tmp_path: Path):
    lived_in(tmp_path / "data")
    (tmp_path / "backup").mkdir()  # one that is there already, and empty
    with headwater.open(tmp_path / "data") as bus:
        bus.backup(tmp_path / "backup")
    headwater.restore(tmp_path / "backup", tmp_path / "again")
    for folder in ("data", "backup", "again"):
        assert open_to_others(tmp_path / folder) == []
    lived_in_again = headwater.open(tmp_path / "again")
    assert [one.payload for one in lived_in_again.replay("work/#")] == [b"2"]
    lived_in_again.close()


def test_links_that_somebody_put_into_a_folder_lead_nowhere(tmp_path: Path):
    lived_in(tmp_path / "data")
    with_older_modes(tmp_path / "data")
    victim = tmp_path / "victim"
    victim.write_text("x")
    victim.chmod(0o644)
    (tmp_path / "data" / "link").symlink_to(victim)
    (tmp_path / "data" / "streams" / "gone").symlink_to(tmp_path / "nothing")
    assert DiskFiles().close_to_others(str(tmp_path / "data")) == []
    assert stat.S_IMODE(victim.stat().st_mode) == 0o644
    assert stat.S_IMODE((tmp_path / "data").stat().st_mode) == 0o700


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_a_folder_of_somebody_else_is_left_as_it_is_and_told(tmp_path: Path):
    folder = tmp_path / "data"
    lived_in(folder)
    with_older_modes(folder)
    os.chown(folder, 12345, -1)
    with headwater.open(folder) as bus:
        (event,) = [event for event in bus.events() if event.kind == "open-to-others"]
        assert str(folder) in event.text
        bus.publish("home/x", b"3")
    assert stat.S_IMODE(folder.stat().st_mode) == 0o755
    assert [path for path in (folder / "streams").rglob("*") if path.stat().st_mode & 0o077] == []


def test_a_server_makes_nothing_that_others_may_read(tmp_path: Path):
    with serving(tmp_path / "data", HEADWATER_HTTP="false") as served, headwater.connect(served.url) as bus:
        bus.publish("home/x", b"1")
        bus.subscribe("home/#", id="s").close()
        assert open_to_others(tmp_path / "data") == []
        # By which its user is let in as an administrator, whoever may enter the folder.
        assert stat.S_IMODE((tmp_path / "data" / SOCKET).stat().st_mode) == 0o600


# Secrets of channels


def secret_of(bus: Any) -> str:
    return str(bus.channels.get("hook").secret)


def test_the_secret_of_a_channel_stands_nowhere_as_it_is(tmp_path: Path):
    lived_in(tmp_path / "data")
    assert has_secret(tmp_path / "data") == []
    with headwater.open(tmp_path / "data") as bus:
        assert secret_of(bus) == SECRET
        bus.channels.change("hook", secret=SECRET[:-4] + "AAA=")
        bus.backup(tmp_path / "backup")
    assert (has_secret(tmp_path / "data"), has_secret(tmp_path / "backup")) == ([], [])
    assert not (tmp_path / "backup" / KEY).exists()


def stored_plainly(folder: Path) -> None:
    """A channel as an earlier version stored it."""
    lived_in(folder)
    with headwater.open(folder) as bus:
        bus.core.data.take_snapshot()
        key = rows.CHANNEL + b"hook"
        ((key, value),) = list(bus.core.state.scan(rows.CHANNEL))
        row = {**msgspec.msgpack.decode(value), "secret": SECRET}
        bus.core.state.commit({key: msgspec.msgpack.encode(row)})
        bus.core.data.take_snapshot()
    (folder / KEY).unlink()
    assert has_secret(folder)


def test_what_an_earlier_version_stored_is_sealed_when_it_is_opened_to_write(tmp_path: Path):
    stored_plainly(tmp_path / "data")
    with headwater.open(tmp_path / "data", read_only=True) as bus:
        assert secret_of(bus) == SECRET
    headwater.open(tmp_path / "data").close()  # though nobody asks for channels
    assert has_secret(tmp_path / "data") == []
    with headwater.open(tmp_path / "data") as bus:
        assert secret_of(bus) == SECRET


def test_without_the_package_that_seals_nothing_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    stored_plainly(tmp_path / "data")
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.ciphers.aead", None)
    with headwater.open(tmp_path / "data") as bus:
        assert any("headwater[seal]" in event.text for event in bus.events())
        assert secret_of(bus) == SECRET
        with pytest.raises(Malformed, match="seal"):
            bus.channels.add("other", "home/#", "127.0.0.1", 9, "http", id="other")
        assert [one.id for one in bus.channels.list()] == ["hook"]


@pytest.mark.parametrize("with_keys", [False, True])
def test_a_backup_opens_secrets_only_where_its_key_was_asked_for(tmp_path: Path, with_keys: bool):
    lived_in(tmp_path / "data")
    with headwater.open(tmp_path / "data") as bus:
        bus.channels.add("tcp", "home/#", "127.0.0.1", 9, id="tcp")
        bus.backup(tmp_path / "backup", with_keys=with_keys)
    assert headwater.restore(tmp_path / "backup", tmp_path / "again") == ([] if with_keys else ["hook"])
    with headwater.open(tmp_path / "again") as bus:
        if with_keys:
            assert secret_of(bus) == SECRET
            return
        bus.channels.list()
        assert any('"hook"' in event.text and "secret" in event.text for event in bus.events())
        bus.channels.change("hook", name="renamed")  # what is stored of it stays
        with pytest.raises(SecretMissing, match="hook"):
            bus.channels.test("hook")
        bus.channels.change("hook", secret=SECRET)
        assert secret_of(bus) == SECRET
    with headwater.open(tmp_path / "again") as bus:
        assert secret_of(bus) == SECRET


def test_a_server_without_the_key_serves_and_says_what_it_lacks(tmp_path: Path):
    lived_in(tmp_path / "data")
    key = (tmp_path / "data" / KEY).read_bytes()
    (tmp_path / "data" / KEY).unlink()
    with Running(tmp_path / "data") as running:
        with connect(running.server.url) as admin:
            (channel,) = admin.channels.list()
            assert (channel.state, "secret" in channel.error) == ("failing", True)
            with code(409, "hook", "secret"):
                admin.channels.test("hook")
            admin.channels.change("hook", paused=True)
        running.bus.publish("home/x", b"2")
    (tmp_path / "data" / KEY).write_bytes(key)
    with Running(tmp_path / "data") as running, connect(running.server.url) as admin:
        assert secret_of(running.bus) == SECRET
        admin.channels.change("hook", paused=False)
        running.until(lambda: "cannot be reached" in running.bus.channels.list("hook")[0].error)


def test_a_key_that_is_damaged_is_not_taken_for_none(tmp_path: Path):
    lived_in(tmp_path / "data")
    (tmp_path / "data" / KEY).write_text("not a key")
    with headwater.open(tmp_path / "data") as bus:
        with pytest.raises(SecretMissing, match="damaged"):
            bus.channels.test("hook")
        with code(500, KEY):
            bus.channels.change("hook", secret=SECRET)
    assert (tmp_path / "data" / KEY).read_text() == "not a key"


def test_a_sealed_secret_opens_in_its_own_row_alone(tmp_path: Path):
    lived_in(tmp_path / "data")
    with headwater.open(tmp_path / "data") as bus:
        bus.channels.add("mine", "home/#", "127.0.0.1", 9, "http", id="mine")
        stored = {key: msgspec.msgpack.decode(value) for key, value in bus.core.state.scan(rows.CHANNEL)}
        (theirs,) = [row["secret"] for row in stored.values() if row["id"] == "hook"]
        ((key, row),) = [(key, row) for key, row in stored.items() if row["id"] == "mine"]
        bus.core.state.commit({key: msgspec.msgpack.encode({**row, "secret": theirs})})
    with headwater.open(tmp_path / "data") as bus, pytest.raises(SecretMissing, match="mine"):
        bus.channels.test("mine")


def test_the_command_line_says_which_channels_need_their_secret_again(tmp_path: Path):
    lived_in(tmp_path / "data")
    here("backup", tmp_path / "plain", "--data", tmp_path / "data")
    here("backup", tmp_path / "keyed", "--with-keys", "--data", tmp_path / "data")
    assert "channel hook needs its secret" in here("restore", tmp_path / "plain", "--data", tmp_path / "one").stdout
    (said,) = objects_here("restore", tmp_path / "plain", "--data", tmp_path / "two")
    assert said["channels_without_secret"] == ["hook"]
    assert "secret" not in here("restore", tmp_path / "keyed", "--data", tmp_path / "three").stdout
