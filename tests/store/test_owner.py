"""Where the server of a folder is, as the folder says: nobody else's word is taken for it."""

from __future__ import annotations

import os
import socket
import stat
from pathlib import Path

import pytest

from headwater.errors import Malformed
from headwater.store import unix_socket
from headwater.store.files import DiskFiles
from headwater.store.owner import ADDRESS, Owner, leave, owner_of, socket_of, withdraw
from headwater.store.unix_socket import within_reach

FILES = DiskFiles()


@pytest.fixture
def folder(tmp_path: Path) -> str:
    """One whose lock this process has, and whose server it is."""
    path = str(tmp_path / "data")
    FILES.make_folder(path)
    lock = FILES.lock(f"{path}/owner.lock")
    leave(FILES, path, Owner(pid=os.getpid(), url="headwater://127.0.0.1:1"))
    lock.release()  # the pid stays in it
    return path


def test_the_server_that_has_the_lock_is_found(folder: str):
    found = owner_of(FILES, folder)
    assert found is not None
    assert found.url == "headwater://127.0.0.1:1"
    withdraw(FILES, folder)
    assert owner_of(FILES, folder) is None


def test_what_a_killed_server_left_is_not_taken_for_the_next_owner(folder: str):
    Path(folder, "owner.lock").write_text("1\n")
    assert owner_of(FILES, folder) is None


def test_an_address_that_is_no_address_is_none(folder: str):
    Path(folder, ADDRESS).write_bytes(b'{"pid": "me"}')
    assert owner_of(FILES, folder) is None


def test_a_folder_that_others_may_write_to_names_no_server(folder: str):
    os.chmod(folder, 0o722)
    assert owner_of(FILES, folder) is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives folders away, and takes another user's part")
def test_a_folder_of_another_user_names_no_server_but_to_who_may_do_anything(folder: str):
    os.chown(folder, 12345, -1)
    os.chmod(folder, 0o755)
    assert owner_of(FILES, folder) is not None
    for above in Path(folder).parents:
        if above.stat().st_uid == 0 and str(above).startswith("/tmp/pytest"):
            above.chmod(0o755)
    os.seteuid(54321)
    try:
        assert owner_of(FILES, folder) is None
    finally:
        os.seteuid(0)


# The socket


def deep(tmp_path: Path) -> Path:
    """A folder whose path is longer than a Unix socket's may be."""
    folder = tmp_path
    while len(str(folder)) < 250:
        folder /= "a-folder-with-a-long-name"
    folder.mkdir(parents=True)
    return folder


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="it takes Linux")
def test_a_socket_in_a_folder_with_a_long_path_is_made_and_reached(tmp_path: Path):
    path = socket_of(str(deep(tmp_path)))
    before = len(os.listdir("/proc/self/fd"))
    with unix_socket.make(path) as door, socket.socket(socket.AF_UNIX) as caller, within_reach(path) as near:
        door.listen()
        caller.connect(near)
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_socket_is_for_its_user_alone_before_anybody_can_come(tmp_path: Path):
    path = socket_of(str(tmp_path))
    before = os.umask(0)
    try:
        with unix_socket.make(path), socket.socket(socket.AF_UNIX) as caller:
            assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
            with pytest.raises(ConnectionRefusedError):  # nobody listens yet
                caller.connect(path)
    finally:
        os.umask(before)


def test_a_socket_that_a_killed_server_left_is_replaced(tmp_path: Path):
    path = socket_of(str(tmp_path))
    unix_socket.make(path).close()
    unix_socket.make(path).close()


@pytest.mark.parametrize("is_link", [False, True])
def test_what_is_no_socket_is_left_where_it_is(tmp_path: Path, is_link: bool):
    path, victim = Path(socket_of(str(tmp_path))), tmp_path / "victim"
    victim.write_text("x")
    if is_link:
        path.symlink_to(victim)
    else:
        path.write_text("x")
    with pytest.raises(Malformed, match="no socket"):
        unix_socket.make(str(path))
    assert victim.read_text() == "x"
