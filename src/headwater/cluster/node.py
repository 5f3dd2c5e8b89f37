"""The node: one member of a cluster, from an empty folder to leading, and back to following.

    join ──▶ follow ──▶ stand ──▶ lead ──▶ over ──▶ follow …
              │  ▲
              ▼  │ too far behind, or what it has went bad
             copy

It reads the engine's stream in one thread, which asks for a copy where it has to, and stands for leader when its keeper
has the lease. Whoever serves is told so by a `Mandate`, opens a core on the same folder, and says when it is over.
Promises: this node leads only if it has applied all that the stream has, no node of a majority has more or something
else, and its clock is right; it applies nothing to a folder that has not the same history; what it cannot go on with it
says, in its log and to whoever asks.
"""

from __future__ import annotations

import logging
import os
import secrets
from collections.abc import Callable, Collection

import msgspec

from headwater import threads
from headwater.clock import SECOND_US, Clock, SystemClock
from headwater.cluster import adoption, candidate, history, rebuild
from headwater.cluster.copies import Copies
from headwater.cluster.digests import Digests
from headwater.cluster.engine import Engine, Reader, ReaderLost, Seen, StreamLost
from headwater.cluster.follower import Beyond, Diverged, Following, Missing
from headwater.cluster.founding import Founding
from headwater.cluster.history import KNOWN, History
from headwater.cluster.keeper import Keeper
from headwater.cluster.leader import Leader
from headwater.cluster.lease import Command, LeaseEvent
from headwater.cluster.members import REPORT, Members, Report
from headwater.cluster.others import Others
from headwater.cluster.pipeline import Committed, Stopped
from headwater.cluster.preamble import Preambles
from headwater.cluster.rebuild import REBUILD
from headwater.cluster.record import Epoch, Position, Record
from headwater.cluster.replica import Replica
from headwater.cluster.replication import CHECKPOINT_S, Replication
from headwater.cluster.sequencer import LEASE, Sequencer
from headwater.cluster.transfer import Transfer, is_begun
from headwater.config import Clustering, Config
from headwater.errors import (
    Conflict,
    Damaged,
    HeadwaterError,
    Malformed,
    NotFound,
    SteppedDown,
    Unavailable,
)
from headwater.server.log import Log
from headwater.store import folder as folders
from headwater.store.files import DiskFiles
from headwater.store.log import Hole
from headwater.version import __version__
from headwater.wire.administration import FAILOVERS_TOLD, ClusterStatus, Failover, NodeRole, NodeStatus

TURN_S = 0.1
"""How long the reader waits for the next record before it looks at other things."""
PAUSE_S = 0.5
"""How long a node that cannot go on waits before it tries again."""
LOOK_S = 4.0
MAJORITY_S = 1.0
NAMESAKE_S = 0.5
"""How long a node that begins waits for word of another one of its name."""
RUN_BYTES = 8
DIGESTS, STEP_DOWN, TAKE_OVER, NAMESAKE = "digests", "step-down", "take-over", "namesake"
ANEW = b"anew"
"""Asks for digests of what is on disk by now, though it was looked at before."""
TIMELINE = "timeline"
"""The key of a row."""

log = Log("headwater.cluster.node")


class MadeAnew(Missing):
    """The stream was made anew from what another node has: this one takes a copy, whatever it has."""


class Mandate:
    """This node is to lead: on what its core stands."""

    def __init__(self, sequencer: Sequencer) -> None:
        self.sequencer = sequencer
        self.replication = Replication(sequencer)

    @property
    def epoch(self) -> int:
        """How often a node began to lead, with this one."""
        return self.sequencer.epoch


class Node:
    """One node, as whoever serves has it."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        config: Config,
        clustering: Clustering,
        engine: Engine,
        *,
        name: str,
        clock: Clock | None = None,
    ) -> None:
        self.node = name
        self.doors = Leader(node=name)
        """Where clients find it."""
        self.secret = b""
        self.role: NodeRole = "joining"
        self.trouble = ""
        """Why it does not go on; empty if it does."""
        self.on_leader: Callable[[Leader | None], None] = lambda _: None
        """Hears who leads now, as long as this node follows; in whatever thread, and returns at once."""
        self.on_replica: Callable[[Replica | None], None] = lambda _: None
        """Hears of the folder that follows, so that it may be read, and, with None, that it is about to be closed: it
        returns once nobody reads it any more."""
        self.on_over: Callable[[str], None] = lambda _: None
        """Hears that this node leads no more, and why; in the same way."""
        self.on_step_down: Callable[[str], None] = lambda _: None
        """Hears that another node is to lead, and which, if that was said; in the same way."""
        self._path = os.fspath(path)
        self._config, self._clustering, self._engine = config, clustering, engine
        self._clock = clock or SystemClock()
        self._files = DiskFiles()
        self._members = Members(engine)
        self._founding = Founding(engine, self._members, clustering.bus, name)
        self._position = self._synced_last = self._written = Position()
        self._end = 0
        """The last sequence of the stream that was read."""
        self._bus_id = ""
        self._run = secrets.token_bytes(RUN_BYTES)
        """Tells this process from another of the same name."""
        self._history = History()
        self._keeper: Keeper | None = None
        self._replica: Replica | None = None
        self._mandate: Mandate | None = None
        self._copies: Copies | None = None
        self._transfer: Transfer | None = None
        self._others: Others | None = None
        self._standing: Sequencer | None = None
        """Of the epoch that this node is about to begin."""
        self._timeline: list[Failover] = []
        self._failovers = 0
        self._epoch = 0
        self._checkpoint_us = 0
        """When what is applied is to be brought to disk, on the clock that never jumps."""
        self._bad = ""
        """What went bad in this folder, so that it takes a copy of another node's; empty if nothing has."""
        self._told_unfit = ""
        """Why this node may not lead, as it said last: it is looked at again and again."""
        self._names: Collection[str] = ()
        """The members, as of when this node looked last."""
        self._is_planned = False
        self._is_cut_off = False
        """Whether the engine's stream is not the one that this node has applied, so that it waits for a new one."""
        self._apart = ""
        """Why that is so for good, though the stream may be trimmed meanwhile."""
        self._records = self._record_bytes = 0
        """Of the epochs that this process has led before."""
        self._is_stopped = False
        self._work = threads.Condition()

    # As the server sees the node that it is

    def introductions(self, door: str) -> Preambles:
        """What is believed at a door."""
        return Preambles(self.secret, door, self.node, self._clock)

    def status(self) -> ClusterStatus:
        """How the cluster is, as far as this node knows."""
        keeper, others, mandate = self._keeper, self._others, self._mandate
        leader = keeper.leader if keeper is not None else None
        position = self.position
        ours = NodeStatus(
            name=self.node,
            role=self.role,
            address=self.doors.native,
            record=position.number,
            lag_records=0,
            lag_s=0.0,
            seen_us=self._clock.now_us(),
        )
        nodes = [ours, *(others.statuses() if others is not None else [])]
        sequencer = mandate.sequencer if mandate is not None else None
        why = sequencer.why if sequencer is not None else None
        return ClusterStatus(
            bus=self._clustering.bus,
            node=self.node,
            role=self.role,
            leader=leader.node if leader is not None else "",
            epoch=position.epoch,
            record=position.number,
            suspended=why or self.trouble,
            failovers=self._failovers,
            records=self._records + (sequencer.records if sequencer is not None else 0),
            record_bytes=self._record_bytes + (sequencer.record_bytes if sequencer is not None else 0),
            record_bytes_last=sequencer.record_bytes_last if sequencer is not None else 0,
            nodes=tuple(sorted(nodes, key=lambda node: node.name)),
            timeline=tuple(self._timeline),
        )

    @property
    def position(self) -> Position:
        """The last record that this node has applied."""
        mandate = self._mandate
        return mandate.sequencer.position if mandate is not None else self._position

    @property
    def synced(self) -> Position:
        """The last record that this node has on disk."""
        mandate, replica = self._mandate, self._replica
        if mandate is not None:
            try:
                return mandate.replication.synced
            except AssertionError:  # its core is yet to be opened
                return self._synced_last
        return replica.synced if replica is not None else self._synced_last

    # What other nodes and commands ask

    def _handlers(self) -> dict[str, Callable[[bytes], bytes]]:
        copies = self._copies
        assert copies is not None
        return {
            REPORT: lambda _: msgspec.msgpack.encode(self.report()),
            DIGESTS: lambda data: msgspec.msgpack.encode(self._digests_now(anew=data == ANEW)),
            KNOWN: self._history.answer,
            STEP_DOWN: self._asked_to_step_down,
            TAKE_OVER: self._asked_to_take_over,
            REBUILD: self._asked_to_rebuild,
            NAMESAKE: self._asked_for_namesake,
            **copies.handlers(),
        }

    def report(self) -> Report:
        """What it says of itself."""
        keeper, mandate = self._keeper, self._mandate
        leader = keeper.leader if keeper is not None else None
        return Report(
            node=self.node,
            role=self.role,
            position=self.position,
            synced=self.synced,
            written=self._written,
            time_us=self._clock.now_us(),
            bus_id=self._bus_id,
            leader=leader.node if leader is not None else "",
            doors=self.doors,
            trouble=(mandate.sequencer.why if mandate is not None else None) or self.trouble,
            is_cut_off=self._is_cut_off,
            version=__version__,
        )

    def _digests_now(self, *, anew: bool) -> Digests:
        replica, mandate = self._replica, self._mandate
        if mandate is not None and self.role == "leading":
            return mandate.replication.digests(anew=anew)
        if replica is not None:
            return replica.digests(anew=anew)
        raise Unavailable(f'node "{self.node}" has no folder open at the moment; ask again')

    def _asked_to_step_down(self, data: bytes) -> bytes:
        if self.role != "leading":
            raise Conflict(f'node "{self.node}" does not lead; headwater cluster status shows who does')
        target, fit = data.decode("ascii", "replace"), self._fit()
        if (target or next(iter(fit), "")) not in fit and self._others is not None:
            self._others.ask_now()  # one that follows since less than a second
            fit = self._fit()
        if not fit:
            raise Conflict("no other node follows, so that nobody would lead; start one first")
        if target and target not in fit:
            raise Conflict(f'node "{target}" does not follow, so it cannot lead; see: headwater cluster status')
        chosen = target or self.successor()
        log.info("step-down-asked", next=chosen)
        self._is_planned = True
        self.on_step_down(chosen)
        return chosen.encode()

    def _asked_to_take_over(self, _: bytes) -> bytes:
        keeper = self._keeper
        if keeper is not None:
            self._is_planned = True
            keeper.hurry(take=True)
        return b""

    def _asked_to_rebuild(self, data: bytes) -> bytes:
        ours = self._position
        if not self._is_cut_off:
            raise Conflict(f'node "{self.node}" goes on with the stream that there is; nothing is to be made anew')
        if msgspec.msgpack.decode(data, type=Position) != ours or self._synced_last != ours:
            raise Conflict(f'node "{self.node}" stands at record {ours.number} by now; ask again')
        log.warning("rebuilding", record=ours.number, epoch=ours.epoch)
        engine = self._engine
        engine.open_rows()
        self._founding.found_anew(self._bus_id, self.secret)
        self._belong()
        rebuild.make(engine, self.node, ours)
        return b""

    def _asked_for_namesake(self, data: bytes) -> bytes:
        """Where this node is, for another one that begins under its name."""
        name, run = msgspec.msgpack.decode(data, type=tuple[str, bytes])
        if name != self.node or run == self._run:
            raise NotFound(f'this node is called "{self.node}"')
        return self.doors.native.encode()

    # Joining

    def begin(self) -> None:
        """Look at the folder, and at what all nodes share, before anything else; Conflict (409) if the folder is of
        something else, Unavailable (503) while the engine does not answer."""
        files, bus = self._files, self._clustering.bus
        files.make_folder(self._path)
        if is_begun(self._path):
            Transfer(self._path, self._engine, bus, self._config).finish()
        known = folders.cluster_of(files, self._path)
        if known and known != bus:
            raise Conflict(f'"{self._path}" is the folder of a node of cluster "{known}", and this is "{bus}"')
        if not known and not is_begun(self._path) and folders.inspect(files, self._path) is not None:
            raise Conflict(
                f'"{self._path}" is no folder of a node: name an empty one, or make it the first of a cluster with: '
                f"headwater cluster adopt --data {self._path}"
            )
        self._engine.open_rows()
        self.secret = self._founding.secret()
        self._copies = Copies(self._path, files, self._clock)
        self._engine.answer(self.node, self._handlers())
        self._check_name()
        for server in self._engine.unsynced():
            log.warning(
                "engine-not-synced",
                server=server,
                advice="acknowledged messages may be gone after a loss of power: set sync_interval: always there",
            )

    def _check_name(self) -> None:
        """That no other node has this one's name: they would answer for each other, and count as one."""
        asked = msgspec.msgpack.encode((self.node, self._run))
        for where in self._engine.ask_all(NAMESAKE, asked, NAMESAKE_S, enough=1):
            raise Conflict(
                f'there is a node "{self.node}" already, at {where.decode()}: give this one another name with --node'
            )

    def join(self) -> None:
        """Have a folder that follows: its own from before, one that is new, or a copy of another node's; raises
        `Unavailable` while that cannot be."""
        bus = self._clustering.bus
        if folders.cluster_of(self._files, self._path):
            try:
                self._belong()
            except Unavailable as error:  # which may be as the engine has lost its rows: who follows says so
                log.info("membership-not-noted", reason=error.args[0])
            return
        self._founding.check_alone()
        founded = self._founding.founded()
        if founded.node == self.node and not founded.id and not is_begun(self._path):
            adoption.adopt(self._path, bus, self._config)
        else:
            self._belong()
            self._copy(0)
        self._belong()

    def _belong(self) -> None:
        self._founding.belong(self.doors.native)

    def _copy(self, at_least: int) -> None:
        """Take a copy of another node's folder."""
        self.role = "joining"
        others = [name for name in self._members.all() if name != self.node]
        self._transfer = Transfer(self._path, self._engine, self._clustering.bus, self._config)
        try:
            if self._is_stopped:
                raise Unavailable("the node is ending")
            self._transfer.run(others, at_least)
        finally:
            self._transfer = None

    # Following

    def follow(self) -> Mandate | None:
        """Follow until this node is to lead, or is stopped: None. Conflict (409) if it cannot follow here at all."""
        assert self._copies is not None
        self._mandate = None
        keeper = self._keeper = Keeper(self._engine, self._clock, self._clustering.lease_s, self.node)
        keeper.on_leader = self._on_leader
        keeper.on_command = self._on_command
        keeper.on_lost = self._on_lost
        keeper.is_behind = self._is_behind
        keeper.is_alone = self._is_alone
        keeper.start()
        while not self._is_stopped:
            try:
                mandate = self._follow(keeper)
            except (Missing, Damaged, StreamLost) as error:
                keeper.happen(LeaseEvent.UNFIT)
                self._see_to(error)
            except (Unavailable, ReaderLost) as error:
                log.write(logging.DEBUG, "not-following", {"reason": error.args[0] if error.args else error})
                self._pause()
            else:
                if mandate is not None:
                    return mandate
        keeper.stop()
        return None

    def _follow(self, keeper: Keeper) -> Mandate | None:
        assert self._copies is not None
        self._check_bad()
        replica = Replica(self._path, self._config, clock=self._clock)
        self._replica, self._position, self._end = replica, replica.position, replica.position.sequence
        self._written = replica.written
        self._copies.take = replica.snapshot
        is_whole = False
        try:
            self._bus_id = replica.id
            made = rebuild.rebuilt(self._engine) if replica.is_ahead else None
            if made is not None and replica.position == made.position:
                self._written = replica.position
                if made.node != self.node:
                    raise MadeAnew(f"node {made.node}, from which the stream goes on, has other rows than this one")
                # The stream goes on from here: of the records whose rows are ahead nobody has more than these.
                log.warning("rows-ahead", record=replica.position.number, rows=replica.written.number)
                replica.accept_rows()
            following = Following(replica.position, self._written)
            try:
                self._founding.check_bus(replica.id, self._path)
            except Unavailable:
                self._check_stream(following)  # where all of it is lost, this says so
                raise
            self._check_stream(following)
            self.secret = self._founding.secret(self.secret)
            self._names = self._members.all()
            if self.node not in self._names:
                self._belong()  # its row was lost, or could not be written yet
            reader = self._engine.read(following.end)
            self.on_replica(replica)
            try:
                while not self._is_stopped:
                    self._check_bad()
                    self._read(reader, following, replica)
                    self.role, self.trouble, self._is_cut_off, self._apart = "following", "", False, ""
                    keeper.may_stand = True
                    if keeper.is_candidate:
                        mandate = self._stand(keeper, reader, following, replica)
                        if mandate is not None:
                            is_whole = True
                            return mandate
            finally:
                reader.close()
            is_whole = True
            return None
        except (ReaderLost, Unavailable, Missing, Diverged, StreamLost):
            is_whole = True  # it is the engine's stream that does not go on
            raise
        finally:
            keeper.may_stand = False
            self.on_replica(None)
            self._copies.take = None
            self._replica = None
            self._let_go(replica, is_whole)

    def _let_go(self, replica: Replica, is_whole: bool) -> None:
        if is_whole:
            replica.close()
        else:
            replica.abandon()
        self._synced_last = replica.synced

    def _read(self, reader: Reader, following: Following, replica: Replica, timeout_s: float = TURN_S) -> None:
        """Apply what has come."""
        for sequence, data in reader.next(timeout_s):
            record = following.read(sequence, data)
            if record is not None:
                replica.apply(record, following.position)
                self._note(record, following.position)
        self._end = following.end
        now_us = self._clock.monotonic_us()
        if replica.synced != replica.position and now_us >= self._checkpoint_us:
            replica.checkpoint()
            now_us = self._clock.monotonic_us()
        if replica.synced == replica.position:
            self._checkpoint_us = now_us + round(CHECKPOINT_S * SECOND_US)

    def _note(self, record: Record, position: Position) -> None:
        self._position = position
        self._history.note(position)
        if position.epoch != self._epoch:
            self._failovers += bool(self._epoch)
            self._epoch = position.epoch

    def _check_stream(self, following: Following) -> None:
        """That the engine's stream still goes on from where this folder is; the first node makes it."""
        try:
            self._engine.bounds()
        except StreamLost:
            if following.position.number or not self._founding.is_first():
                raise StreamLost(
                    f'the engine has no stream for bus "{self._clustering.bus}", and this node has applied its records '
                    f"up to {following.position.number}; see: headwater cluster rebuild"
                ) from None
            self._engine.make()
        ours = following.position
        seen = self._look(ours.sequence)
        following.check(seen.first, seen.last, seen.data)
        if ours.number and seen.data is None:
            made = rebuild.rebuilt(self._engine)
            if made is not None and ours.sequence >= made.position.sequence and not rebuild.has_gone_on(ours, made):
                raise MadeAnew(
                    f"the stream was made anew, from what node {made.node} has, and this node has other records"
                )

    def _look(self, sequence: int) -> Seen:
        """What is at a sequence of the stream; raises `Unavailable`."""
        found: list[Seen | None] = []
        heard = threads.Event()

        def told(seen: Seen | None) -> None:
            found.append(seen)
            heard.set()

        self._engine.look(max(1, sequence), told)
        heard.wait(LOOK_S)
        if not found or found[0] is None:
            raise Unavailable("the engine does not answer")
        seen = found[0]
        return seen if sequence else Seen(None, seen.first, seen.last)

    def _see_to(self, error: Exception) -> None:
        """This folder cannot go on as it is."""
        if isinstance(error, Missing) and not isinstance(error, MadeAnew):
            try:
                self._check_apart()
            except Diverged as apart:
                error = apart
        if isinstance(error, Diverged) and not isinstance(error, Beyond):
            self._apart = str(error.args[0])
        why = str(error.args[0]) if error.args else type(error).__name__
        made = rebuild.rebuilt(self._engine)
        is_engines = isinstance(error, Diverged | StreamLost)
        if is_engines and (made is None or rebuild.has_gone_on(self._position, made)):
            if self.trouble != why:
                ours = self._position
                fields = {"record": ours.number, "epoch": ours.epoch, "sequence": ours.sequence, "reason": why}
                log.write(logging.ERROR, "cluster-stopped", fields)
            self.role, self.trouble, self._is_cut_off = "joining", why, True
            self._pause()
            return
        log.warning("copy-needed", record=self._position.number, reason=why)
        self._is_cut_off, self._apart = False, ""
        try:
            self._copy(made.position.sequence if made is not None else 0)
            self._bad = ""
        except HeadwaterError as failure:
            self.trouble = str(failure.args[0])
            log.at_will(logging.WARNING, "no-copy", reason=self.trouble)
            self._pause()

    def _check_apart(self) -> None:
        """That this folder has nothing but what others have had, too: it is about to give way to a copy of theirs."""
        if self._apart:
            raise Diverged(self._apart)
        try:
            names = [name for name in self._members.all() if name != self.node]
        except Unavailable:
            return  # nor is there a copy to be had
        history.check(self._engine, names, (self._position, self._written))

    def note_bad(self, root: str, hole: Hole) -> None:
        """Bytes of this node's folder went bad; by any thread. Unavailable (503) if another node has them: then it is
        no gap, and this node takes a copy, before which it leads no more."""
        why = f'messages {hole.first} to {hole.last} of "{root}" went bad on this node ({hole.reason})'
        if not self.note_damaged(why):
            return
        # In a thread of its own, as whoever reads may hold what is needed to end.
        threads.Thread(target=self._stop_leading, args=(why,), name="headwater-bad", daemon=True).start()
        raise Unavailable(f"{why}, and another has them: ask again")

    def note_damaged(self, why: str) -> bool:
        """This node's folder went bad: whether another node has what it should have, so that it takes a copy."""
        others = self._others
        names = others.members if others is not None and others.members else self._names
        if set(names) <= {self.node}:
            return False
        if not self._bad:
            self._bad = why
            log.write(logging.ERROR, "folder-went-bad", {"reason": why, "advice": "a copy of another node is taken"})
        return True

    def _stop_leading(self, why: str) -> None:
        mandate = self._mandate
        if mandate is not None:
            mandate.sequencer.stop(why)

    def _check_bad(self) -> None:
        if self._bad:
            raise Damaged(self._bad)

    def _pause(self) -> None:
        with self._work:
            if not self._is_stopped:
                self._clock.wait(self._work, round(PAUSE_S * SECOND_US))

    # Standing for leader

    def _stand(self, keeper: Keeper, reader: Reader, following: Following, replica: Replica) -> Mandate | None:
        """Read to the stream's end, ask the others, and begin an epoch; None if this node may not lead, or yet has to
        read on."""
        _, last = self._engine.bounds()
        until_us = self._clock.monotonic_us() + round(LOOK_S * SECOND_US)
        while following.end < last and keeper.is_candidate and not self._is_stopped:
            if self._clock.monotonic_us() > until_us:
                raise ReaderLost(f"the reader is at {following.end}, and the stream ends at {last}")
            self._read(reader, following, replica)
        why = self._unfit(following, last) if keeper.is_candidate else "it has the lease no more"
        if why and self._engine.bounds()[1] > last:
            return None  # the one before still writes: others may have read that already
        if why:
            if why != self._told_unfit:
                log.warning("not-to-lead", reason=why)
            self._told_unfit = why
            keeper.happen(LeaseEvent.UNFIT)
            return None

        self._told_unfit = ""

        def apply(committed: Committed) -> None:
            replica.apply(committed.record, committed.position)
            self._note(committed.record, committed.position)

        epoch = following.position.epoch + 1
        sequencer = Sequencer(self._engine, following.position, following.end, epoch, self._clock, apply)
        self._standing = sequencer
        try:
            sequencer.commit([Epoch(epoch, self.node, self._clustering.bus, self.doors.native)])
        except SteppedDown as error:
            log.info("epoch-refused", reason=error.args[0])
            return None  # it reads on
        finally:
            self._standing = None
        sequencer.forget_apply()
        if not keeper.is_candidate:
            sequencer.stop("its lease is over")
            raise ReaderLost("this node began an epoch, and has the lease no more")
        mandate = self._mandate = Mandate(sequencer)
        self._settle_in(keeper, mandate)
        return mandate

    def _unfit(self, following: Following, last: int) -> str:
        """Why this node may not lead; empty if it may."""
        members = self._members.all()
        reports = self._members.reports([name for name in members if name != self.node], MAJORITY_S)
        ours = following.position
        why = candidate.unfit(self.node, ours, self._written, last, members, reports, self._history.digests)
        skew_s_max = self._clustering.clock_skew_s_max
        return why or candidate.clock_is_off(self._clock.now_us(), self._engine.time_us(), ours.time_us, skew_s_max)

    def _settle_in(self, keeper: Keeper, mandate: Mandate) -> None:
        sequencer, lease = mandate.sequencer, keeper.lease
        sequencer.on_stopped = self._on_stopped
        mandate.replication.is_late = lambda: self._clock.monotonic_us() >= lease.until_us
        self._note_failover(keeper, mandate)

    def _note_failover(self, keeper: Keeper, mandate: Mandate) -> None:
        free_s = (self._clock.monotonic_us() - keeper.free_since_us) / SECOND_US if keeper.free_since_us else 0.0
        ours = Failover(
            time_us=self._clock.now_us(),
            epoch=mandate.epoch,
            node=self.node,
            took_s=free_s,
            planned=self._is_planned,
        )
        self._is_planned = False
        try:
            row = self._engine.row(TIMELINE)
            before = msgspec.json.decode(row.value, type=list[Failover]) if row is not None else []
        except (Unavailable, msgspec.MsgspecError):
            before = self._timeline
        self._timeline = [*before, ours][-FAILOVERS_TOLD:]

    # Leading

    def opened(self) -> None:
        """The core is open and clients may come to this node's doors: it leads."""
        keeper, mandate = self._keeper, self._mandate
        assert keeper is not None
        assert mandate is not None
        assert self._copies is not None
        replication, sequencer = mandate.replication, mandate.sequencer
        self._copies.take = replication.snapshot
        self.role = "leading"
        self._others = Others(
            *(self._engine, self._members, self._clock, self.node, self._clustering.cluster_bytes_max),
            *(lambda: sequencer.position, lambda: replication.synced, self._on_fault),
        )
        self._others.on_look = self._check_clock
        self._others.start()
        keeper.say(msgspec.structs.replace(self.doors, epoch=mandate.epoch))
        log.info("leading", node=self.node, epoch=mandate.epoch, record=sequencer.position.number)
        try:
            self._engine.put_row(TIMELINE, msgspec.json.encode(self._timeline))
        except Unavailable as error:
            log.info("timeline-not-noted", reason=error.args[0])

    def _check_clock(self) -> None:
        """A leader whose clock went wrong has another lead, if there is one whose clock is right."""
        others, skew_s_max = self._others, self._clustering.clock_skew_s_max
        engine_us = self._engine.time_us()
        why = candidate.clock_is_off(self._clock.now_us(), engine_us, 0, skew_s_max)
        if not why or others is None:
            return
        told = others.clocks_us()
        fit = self._fit()
        right = [name for name in fit if not candidate.clock_is_off(told.get(name, 0), engine_us, 0, skew_s_max)]
        chosen = max(right, key=lambda name: fit[name].position.number, default="")
        log.warning("clock-off", reason=why, next=chosen or "-")
        if chosen:
            self._is_planned = True
            self.on_step_down(chosen)

    @property
    def is_leading(self) -> bool:
        """Whether it still does, or is about to, as far as it knows."""
        mandate = self._mandate
        return mandate is not None and mandate.sequencer.stopped is None

    def successor(self) -> str:
        """Which node would lead best after this one; empty if none is there."""
        fit = self._fit()
        return max(fit, key=lambda name: fit[name].position.number) if fit else ""

    def _fit(self) -> dict[str, Report]:
        """The other nodes that could lead."""
        others = self._others.reports() if self._others is not None else {}
        return {name: report for name, report in others.items() if not report.trouble and report.role == "following"}

    def doors_of(self, node: str) -> Leader | None:
        """Where clients find another node; None if that is not known."""
        report = self._others.reports().get(node) if self._others is not None else None
        return report.doors if report is not None else None

    def leave_lead(self, next_node: str = "") -> None:
        """The core is closed, so this node leads no more; with a name, that node is asked to lead at once."""
        keeper, mandate, copies = self._keeper, self._mandate, self._copies
        self.role = "joining"
        if copies is not None:
            copies.take = None
        others, self._others = self._others, None
        if keeper is not None:
            keeper.stop(next_node)  # which lets go of the lease, unless it is another's
        if mandate is not None:
            sequencer = mandate.sequencer
            self._position, self._synced_last = sequencer.position, self.synced
            sequencer.stop("it stepped down")
            self._records += sequencer.records
            self._record_bytes += sequencer.record_bytes
            self._mandate = None
        if next_node:
            try:
                self._engine.ask(next_node, TAKE_OVER, b"", MAJORITY_S)
            except Unavailable as error:
                log.info("successor-not-asked", node=next_node, reason=error.args[0])
        if others is not None:
            others.stop()

    def _on_command(self, command: Command) -> None:
        mandate = self._mandate
        if mandate is None:
            return
        match command:
            case Command.SUSPEND:
                mandate.sequencer.suspend("the engine does not renew this node's lease", LEASE)
            case Command.RESUME:
                mandate.sequencer.resume(LEASE)
            case Command.END:
                mandate.sequencer.stop("another node may lead: its lease is over")
            case _:
                pass

    def _on_stopped(self, stopped: Stopped) -> None:
        keeper = self._keeper
        if keeper is not None:
            keeper.happen(LeaseEvent.STOPPED)
        self.on_over(stopped.why)

    def _on_lost(self) -> None:
        standing, mandate = self._standing, self._mandate
        if standing is not None:
            standing.stop("the lease is another's")
        if mandate is not None:
            mandate.sequencer.stop("the lease is another's")

    def _on_leader(self, leader: Leader | None) -> None:
        if self._mandate is None:
            self.on_leader(leader)

    def _on_fault(self, error: HeadwaterError) -> None:
        mandate = self._mandate
        if mandate is not None and mandate.sequencer.stopped is None:
            log.write(logging.ERROR, "engine-lost-records", {"reason": error.args[0]})
            mandate.sequencer.stop(str(error.args[0]))

    def _is_behind(self) -> bool:
        try:
            return self._engine.bounds()[1] > self._end
        except StreamLost:
            return False  # who reads sees to it

    def _is_alone(self) -> bool:
        mandate = self._mandate
        if mandate is None:
            return False
        if mandate.sequencer.in_flight:
            raise Unavailable("what becomes of records on their way is not known yet")
        try:
            return self._engine.bounds()[1] == mandate.sequencer.position.sequence
        except StreamLost as error:
            raise Unavailable(str(error.args[0])) from None

    # Ending

    def stop(self) -> None:
        """Have `follow` and `join` end soon; by any thread."""
        with self._work:
            self._is_stopped = True
            self._work.notify_all()
        transfer, standing = self._transfer, self._standing
        if transfer is not None:
            transfer.stop()
        if standing is not None:
            standing.stop("the node is ending")

    def close(self) -> None:
        """Let go of the engine."""
        if self._copies is not None:
            self._copies.close()
        self._members.close()
        self._engine.close()


def name_of(clustering: Clustering, address: str) -> str:
    """What a node is called, if its settings do not say."""
    if clustering.node:
        return clustering.node
    host, _, port = address.rpartition(":")
    if port == "0":
        raise Malformed("a node needs a name that stays, and its port is chosen at each start: give it one with --node")
    return "".join(char if char.isalnum() and char.isascii() else "-" for char in f"{host}-{port}").strip("-")
