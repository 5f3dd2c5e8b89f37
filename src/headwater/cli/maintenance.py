"""`headwater purge`, `remove-root`, `backup` and `restore`: what an operator does now and then."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Annotated

import typer

import headwater
from headwater import Malformed, NotFound
from headwater.cli.options import At, without_secret
from headwater.cli.output import counted, emit, safe, say, side, tell
from headwater.clock import to_datetime
from headwater.store import folder as folders
from headwater.store.files import DiskFiles
from headwater.store.state_restore import restore_state


def purge(
    at: At,
    filter: Annotated[str, typer.Argument(help="Which topics: home/old/#")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Remove messages for good: those that a filter matches, their retained values and topics."""
    with at.own() as bus:
        if not yes:
            warning = f"{counted(len(bus.topics(filter)), 'topic')}, with all messages there, will be gone."
            _ask("purge", f"Purge {safe(filter)}?", warning)
        count = bus.purge(filter)
    said = f"  {counted(count, 'topic')} purged"
    tell(at.json, {"filter": filter, "topics": count}, (safe(filter), "cyan"), said)


def _ask(command: str, question: str, warning: str = "") -> None:
    """Have somebody say yes; Malformed where there is nobody."""
    if not sys.stdin.isatty():
        raise Malformed(f"{command} removes messages for good; where nobody can be asked, say --yes")
    if warning:
        side().print(warning)
    typer.confirm(question, abort=True, err=True)


def remove_root(
    at: At,
    name: Annotated[str, typer.Argument(help="The first level of its topics: home")],
    force: Annotated[
        bool, typer.Option("--force", help="Also if subscriptions cover nothing else, or have messages of it to do.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Remove a root for good: its messages, topics, retained values and files; its place is free for another."""
    with at.own() as bus:
        if not yes:
            _ask("remove-root", f"Remove {safe(name)} and all its messages?")
        bus.remove_root(name, force)
    tell(at.json, {"root": name, "removed": True}, (safe(name), "cyan"), "  removed")


def backup(
    at: At,
    target: Annotated[str, typer.Argument(help="A new folder.")],
    with_keys: Annotated[
        bool, typer.Option("--with-keys", help="Copy the key that opens the secrets of channels, too.")
    ] = False,
) -> None:
    """Make a copy of the folder as of now; segments are linked, not copied, where the target is on the same disk.

    With --url the server makes it, while it goes on serving: the target is a folder on its machine. Without --with-keys
    the secrets of http channels are of no use to who has the copy, and have to be given again where it is restored.
    """
    start = time.perf_counter()
    with at.own() as bus, side().status("backing up"):
        # The server of the folder may work elsewhere than here.
        where = str(Path(target).absolute()) if at.url is None else target
        bus.backup(where, with_keys=with_keys)
    _done("backup", without_secret(at.url) if at.url is not None else at.data, target, start, at.json)


def restore(
    at: At,
    backup: Annotated[str | None, typer.Argument(help="A folder that backup made.")] = None,
    state: Annotated[
        bool, typer.Option("--state", help="Make the state of a folder anew, of its newest snapshot.")
    ] = False,
    without_snapshot: Annotated[
        bool, typer.Option("--without-snapshot", help="With --state: of what can be read, and no snapshot.")
    ] = False,
) -> None:
    """Make a data folder of a backup; the folder must not exist yet, or be empty.

    With --state, and no backup: mend the state of a folder, whose messages are as they were. Rows that can be read
    stay, those that cannot are as the newest whole snapshot has them, and the streams tell the rest. Messages that were
    acked since the snapshot may come again; if rules may be older than they were, nobody is let in until
    headwater acl confirm. The old files are in quarantine/.

    A backup without its key (backup --with-keys) opens no secret of a channel: those that need theirs again are named.

    With --json: from, to, seconds, channels_without_secret; with --state: is_whole, rows, snapshot, snapshot_time,
    losses.
    """
    target = at.folder("restore makes a folder, which no server may hold while it does")
    start = time.perf_counter()
    if state:
        if backup is not None:
            raise Malformed("restore --state takes no backup: it mends the folder that --data names")
        _restore_state(target, without_snapshot, at.json)
        return
    if backup is None or without_snapshot:
        raise Malformed("say which backup to restore, or --state to mend the state of a folder")
    with side().status("restoring"):
        try:
            lacking = headwater.restore(backup, target)
        except NotFound:
            raise NotFound(f'"{backup}" is no backup; name a folder that headwater backup made') from None
    _done("restored", backup, target, start, at.json, channels_without_secret=lacking)
    for channel in [] if at.json else map(safe, lacking):
        say((f"channel {channel} needs its secret: headwater channels change {channel} --secret-stdin", "yellow"))


def _restore_state(target: str, without_snapshot: bool, json: bool) -> None:
    files = DiskFiles()
    folders.check(files, target)
    lock = files.lock(f"{target}/{folders.LOCK}")
    try:
        with side().status("restoring"):
            done = restore_state(files, target, without_snapshot=without_snapshot)
    finally:
        lock.release()
    when = to_datetime(done.snapshot_us) if done.snapshot is not None else None
    if json:
        emit(
            {
                "is_whole": done.is_whole,
                "rows": done.rows,
                "snapshot": done.snapshot,
                "snapshot_time": when.isoformat() if when is not None else None,
                "losses": [str(loss) for loss in done.losses],
            }
        )
        return
    if done.is_whole:
        say(("whole", "bold green"), ": the state can be read, and nothing was done")
        return
    of = f"the snapshot of {when:%Y-%m-%d %H:%M:%S} UTC" if when is not None else "what can be read"
    say(f"restored: {counted(done.rows, 'row')}, of {of}; the old files are in quarantine/")
    for loss in done.losses:
        say((safe(str(loss)), "yellow"))
    if any(loss.closes_access for loss in done.losses):
        say(("nobody is let in until rules are confirmed: headwater acl list, then headwater acl confirm", "red"))
    say("messages that were acked since then may come again")


def _done(what: str, source: str, target: str, start: float, json: bool, **others: object) -> None:
    seconds = time.perf_counter() - start
    found = {"from": source, "to": target, "seconds": round(seconds, 6), **others}
    tell(json, found, f"{what}: {safe(source)} → ", (safe(target), "cyan"), f"  {seconds:.2f} s")
