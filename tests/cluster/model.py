"""A model of a cluster without I/O: the rules that real nodes go by, in a world whose time, network and faults come
from a seed.

What is played is the product's own: `Keeper` and `Lease` (who leads), `candidate.unfit` (who may), `Sequencer` and
`Pipeline` (what becomes of records), `Following` (what counts). What is modelled is what lies around them: the engine's
stream and its lease, a network that delays, loses and repeats, nodes that stand still, are cut off and crash, folders
that are cut to their checkpoint, copies of folders, trimming; and an engine that loses the end of its stream, which a
right one does not.

    world = World(seed, loses=True)
    world.play()            # raises Broken
    world.reached           # what has happened, and how often

Checked all along: no two nodes have different records of one number; nobody hands out by an epoch when somebody has by
a later one; nobody begins an epoch in the place of what a majority has, though the engine lost it. And in the end, when
everybody is back: what was acknowledged is there; or somebody says that the engine has lost it.
"""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from headwater import threads
from headwater.clock import SECOND_US
from headwater.cluster.candidate import unfit
from headwater.cluster.engine import Acked, Refused, Row, Seen, Told, Unanswered
from headwater.cluster.follower import Beyond, Diverged, Following, Missing
from headwater.cluster.history import compare
from headwater.cluster.keeper import Keeper
from headwater.cluster.leader import Leader
from headwater.cluster.lease import Command, LeaseEvent, LeaseState
from headwater.cluster.members import Report
from headwater.cluster.others import trimming
from headwater.cluster.pipeline import Committed, Stopped
from headwater.cluster.record import Epoch, Position, Record, Rows
from headwater.cluster.sequencer import LEASE, PendingRecord, Sequencer
from headwater.errors import Unavailable

NODES = 3
LEASE_S = 3.0
LEASE_US = round(LEASE_S * SECOND_US)
TICK_US = 150_000
ANSWER_US = 2 * SECOND_US
STORY_US = 60 * SECOND_US
REST_US = 60 * SECOND_US
PART_BYTES = 300
"""So that some records have several parts."""
IN_FLIGHT_MAX = 20
KEPT_MAX = 15
"""Messages after which a member that holds back trimming is marked."""


class Broken(AssertionError):
    """A promise that was not kept."""


class Engine:
    """The stream and the lease: what is on the disks of a quorum."""

    def __init__(self) -> None:
        self.messages: dict[int, bytes] = {}
        self.first, self.last = 1, 0
        self.row: Row | None = None
        self.row_until_us = 0
        self.revision = 0
        self.has_lost = False
        self.losses = 0

    def store(self, after: int, data: bytes) -> Told:
        """A message, if it comes where it is meant to."""
        if after != self.last:
            return Refused(self.last)
        self.last += 1
        self.messages[self.last] = data
        return Acked(self.last)

    def write_row(self, now_us: int, value: bytes, revision: int) -> int | None:
        """The lease, over one revision; 0: nobody has it."""
        row = self.lease(now_us)
        if revision != (row.revision if row is not None else 0):
            return None
        self.revision += 1
        self.row, self.row_until_us = Row(value, self.revision), now_us + LEASE_US
        return self.revision

    def lease(self, now_us: int) -> Row | None:
        """Who has it."""
        if self.row is not None and now_us >= self.row_until_us:
            self.row = None
        return self.row

    def trim(self, upto: int) -> None:
        """What comes before is needed no more."""
        while self.first <= min(upto, self.last):
            del self.messages[self.first]
            self.first += 1

    def lose(self, count: int) -> None:
        """What it must not do."""
        for _ in range(min(count, self.last - self.first + 1)):
            del self.messages[self.last]
            self.last -= 1
            self.has_lost = True
        self.losses += 1


@dataclass
class Folder:
    """What a node has: digests of records stand for all that these change."""

    position: Position = field(default_factory=Position)
    records: dict[int, bytes] = field(default_factory=dict)
    synced: Position = field(default_factory=Position)
    written: Position = field(default_factory=Position)
    """The last record whose rows are there, whatever a kill has cut."""
    is_mixed: bool = False
    """Whether it has rows of another history."""

    def apply(self, position: Position, records: dict[int, bytes]) -> None:
        """One more record."""
        if position.number != self.position.number + 1:
            raise Broken(f"record {position.number} was applied behind {self.position.number}")
        self.position = position
        self.records[position.number] = records[position.number] = position.digest
        self.is_mixed |= position.number == self.written.number and position.digest != self.written.digest
        if position.number > self.written.number:
            self.written = position

    def has(self, number: int, digest: bytes) -> bool:
        """Whether there is something of this record: all of it, or its rows."""
        is_ahead = self.position.number < number < self.written.number
        return is_ahead or digest in (self.records.get(number), self.written.digest)

    def checkpoint(self) -> None:
        """Bring it to disk."""
        self.synced = self.position

    def crash(self, is_power_loss: bool) -> None:
        """Cut it to its checkpoint; the rows that a power loss leaves are those of the checkpoint."""
        self.position = self.synced
        self.records = {number: digest for number, digest in self.records.items() if number <= self.synced.number}
        if is_power_loss:
            self.written = self.synced

    def copy(self) -> Folder:
        """What another node takes."""
        return Folder(self.position, dict(self.records), self.position, self.position)


class World:
    """One story."""

    def __init__(self, seed: int, *, loses: bool = False) -> None:
        self.rng = random.Random(seed)
        self.now_us = 1_000 * SECOND_US
        self.engine = Engine()
        self.nodes = [Node(self, f"n{number + 1}") for number in range(NODES)]
        self.loses = loses
        self.marked: set[str] = set()
        """Members that nothing is kept for."""
        self.history: dict[int, bytes] = {}
        """Of each record number, what any node has applied; of what the engine lost, what was applied instead."""
        self.acked: dict[int, bytes] = {}
        self.handed_out = (0, "")
        """The latest epoch by which something was handed out, and by whom."""
        self.reached: Counter[str] = Counter()
        self.trouble: list[str] = []
        self.quiet = self.is_resting = False
        """Whether nothing goes wrong any more, and whether nothing is published."""
        self._order = 0
        self._coming: list[tuple[int, int, Node | None, Callable[[], None]]] = []

    # Time

    def later(self, delay_us: int, do: Callable[[], None], node: Node | None = None) -> None:
        """Do something after a while; where it is a node's, once that does not stand still."""
        self._order += 1
        heapq.heappush(self._coming, (self.now_us + delay_us, self._order, node, do))

    def _run(self, until_us: int) -> None:
        while self._coming and self._coming[0][0] <= until_us:
            at_us, _, node, do = heapq.heappop(self._coming)
            self.now_us = max(self.now_us, at_us)
            if node is not None and node.paused_until_us > self.now_us:
                self.later(node.paused_until_us - self.now_us, do, node)
                continue
            do()
        self.now_us = until_us

    def chance(self, share: float) -> bool:
        """Whether it happens; nothing does once all is quiet."""
        return not self.quiet and self.rng.random() < share

    def delay_us(self) -> int:
        """Of a message on its way: now and then a long one."""
        slow = self.chance(0.01)
        return round(self.rng.uniform(0.2, 4.0) * SECOND_US) if slow else self.rng.randrange(500, 30_000)

    # The story

    def play(self) -> None:
        """All of it."""
        for node in self.nodes:
            node.start()
        begun_us = self.now_us
        while self.now_us < begun_us + STORY_US:
            self._run(self.now_us + round(self.rng.uniform(0.3, 4.0) * SECOND_US))
            self._fault()
        self.quiet = True
        for node in self.nodes:
            node.is_cut = False
            if not node.is_up:
                node.start()
        self._run(self.now_us + REST_US)
        self.is_resting = True
        self._run(self.now_us + REST_US // 4)
        self._judge()

    def _fault(self) -> None:
        rng, node = self.rng, self.rng.choice(self.nodes)
        leading = [one for one in self.nodes if one.sequencer is not None]
        if leading and rng.random() < 0.5:
            node = rng.choice(leading)
        kinds = ("pause", "cut", "stall", "kill", "power", "checkpoint", "down", "trim", "lose", "none")
        kind = rng.choice((*kinds, "vanish") if self.loses else kinds)
        if kind != "none":
            self.reached[kind] += 1
        match kind:
            case "pause":
                node.paused_until_us = self.now_us + round(rng.uniform(0.1, 8.0) * SECOND_US)
            case "cut":
                node.is_cut = True
                self.later(round(rng.uniform(0.1, 8.0) * SECOND_US), node.uncut)
            case "stall":
                node.stalled_until_us = self.now_us + round(rng.uniform(1.0, 8.0) * SECOND_US)
            case "kill" | "power":
                node.crash(is_power_loss=kind == "power")
                self.later(round(rng.uniform(0.1, 15.0) * SECOND_US), node.start)
            case "down":
                node.successor = rng.choice([one.name for one in self.nodes if one is not node])
            case "lose" if self.loses and rng.random() < 0.3:
                self.engine.lose(rng.randrange(1, 12))
            case "vanish" if leading:
                self._vanish(leading[0])
            case "checkpoint":
                node.folder.checkpoint()
            case "trim" if leading:
                leading[0].trim()
            case _:
                pass

    def _vanish(self, leader: Node) -> None:
        """A leader is killed, and the engine loses what this one alone had applied, as the others stood still."""
        others = [node for node in self.nodes if node is not leader]
        for node in others:
            node.paused_until_us = max(node.paused_until_us, self.now_us + SECOND_US)

        def vanish() -> None:
            if leader.is_up:
                leader.crash(is_power_loss=False)
                self.engine.lose(self.engine.last - max(node.folder.position.sequence for node in others))
                self.later(round(self.rng.uniform(0.1, 15.0) * SECOND_US), leader.start)

        self.later(SECOND_US, vanish)

    # What is checked

    def applied(self, node: Node, position: Position) -> None:
        """A node has applied a record."""
        known = self.history.setdefault(position.number, position.digest)
        if known != position.digest:
            if not self.engine.has_lost:
                raise Broken(f"{node.name} has another record {position.number} than was applied before")
            self.reached["other history"] += 1
            self.history[position.number] = position.digest

    def begins(self, node: Node, position: Position) -> None:
        """A node begins an epoch, and the engine has lost nothing since it was looked whether it may."""
        known = self.history.get(position.number, position.digest)
        if known != position.digest and sum(one.folder.has(position.number, known) for one in self.nodes) > NODES // 2:
            raise Broken(f"{node.name} begins an epoch with another record {position.number} than a majority has")

    def hands_out(self, node: Node, epoch: int) -> None:
        """A node acts outside of the stream. Of epochs that the engine has lost nobody may know."""
        if epoch < self.handed_out[0] and not self.engine.has_lost:
            raise Broken(f"{node.name} hands out by epoch {epoch}, and {self.handed_out[1]} has by a later one")
        self.handed_out = epoch, node.name

    def _judge(self) -> None:
        troubled = [node for node in self.nodes if node.trouble]
        whole = [node for node in self.nodes if not node.trouble]
        if not self.engine.has_lost and troubled:
            raise Broken(f"{troubled[0].name} does not go on, though nothing was lost: {troubled[0].trouble}")
        if not self.engine.has_lost and not any(node.state is LeaseState.LEADING for node in self.nodes):
            raise Broken("nobody leads in the end")
        if len({node.folder.position.number for node in whole}) > 1 and not self.engine.has_lost:
            raise Broken(f"they stand at {[node.folder.position.number for node in whole]}")
        if any(node.folder.is_mixed or node.folder.written.number > node.folder.position.number for node in whole):
            raise Broken("a folder has rows that are of another history, and nobody says so")
        for number in set[int]().union(*(node.folder.records for node in whole)):
            if len({node.folder.records[number] for node in whole if number in node.folder.records}) > 1:
                raise Broken(f"record {number} is not the same on all nodes, and none of them says so")
        lost = [n for n, digest in self.acked.items() if all(node.folder.records.get(n) != digest for node in whole)]
        if lost and not troubled and not any(node.forgot >= min(lost) for node in self.nodes):
            raise Broken(f"records {lost} were acknowledged and are lost, and nobody says so")
        self.reached["acked"] += len(self.acked)
        self.reached["lost and told"] += bool(lost and troubled)


class View:
    """The engine as one node sees it, its clock included."""

    part_bytes_max = PART_BYTES

    def __init__(self, world: World, node: Node) -> None:
        self._world, self._node = world, node
        self.life = node.life

    # The clock

    def now_us(self) -> int:
        return self._world.now_us

    def monotonic_us(self) -> int:
        return self._world.now_us

    def read(self) -> tuple[int, int]:
        return self._world.now_us, self._world.now_us

    def wait(self, condition: threads.Condition, timeout_us: int | None) -> bool:
        raise AssertionError("nobody waits in a world of one thread")

    # The stream

    def publish(self, after: int, data: bytes, attempt: int, told: Callable[[Told], None]) -> None:
        world, rng = self._world, self._world.rng
        answered: list[bool] = []

        def answer(said: Told) -> None:
            if not answered and self.life == self._node.life:
                answered.append(True)
                told(said)

        def arrive() -> None:
            said = world.engine.store(after, data)
            if not self._node.is_cut and not world.chance(0.01):
                world.later(world.delay_us(), lambda: answer(said), self._node)

        held_us = max(0, self._node.stalled_until_us - world.now_us)
        copies = 0 if self._node.is_cut or world.chance(0.01) else 2 if world.chance(0.05) else 1
        for copy in range(copies):
            world.later(held_us + world.delay_us() + copy * rng.randrange(SECOND_US), arrive)
        world.later(ANSWER_US * attempt, lambda: answer(Unanswered("silence")), self._node)

    def look(self, sequence: int, told: Callable[[Seen | None], None]) -> None:
        world, life = self._world, self.life
        is_lost = self._node.is_cut or world.chance(0.05)

        def answer() -> None:
            engine = world.engine
            seen = None if is_lost else Seen(engine.messages.get(sequence), engine.first, engine.last)
            world.later(world.delay_us(), lambda: told(seen) if life == self._node.life else None, self._node)

        world.later(world.delay_us() if not is_lost else ANSWER_US, answer)

    def check(self) -> None:
        """Unavailable if it cannot be asked."""
        is_held = self._node.stalled_until_us > self._world.now_us
        if self._node.is_cut or is_held or self._world.chance(0.02):
            raise Unavailable("no answer")

    def bounds(self) -> tuple[int, int]:
        self.check()
        return self._world.engine.first, self._world.engine.last

    # The lease

    def lease(self) -> Row | None:
        self.check()
        return self._world.engine.lease(self._world.now_us)

    def take_lease(self, value: bytes) -> int | None:
        return self._write(value, 0)

    def renew_lease(self, value: bytes, revision: int) -> int | None:
        return self._write(value, revision)

    def _write(self, value: bytes, revision: int) -> int | None:
        world = self._world
        self.check()
        if world.chance(0.02):  # it comes late, and nobody hears of it
            world.later(world.delay_us(), lambda: self._write_late(value, revision))
            raise Unavailable("no answer")
        made = world.engine.write_row(world.now_us, value, revision)
        if world.chance(0.02):
            raise Unavailable("no answer")
        return made

    def _write_late(self, value: bytes, revision: int) -> None:
        self._world.engine.write_row(self._world.now_us, value, revision)

    def release_lease(self, revision: int) -> None:
        self.check()
        row = self._world.engine.lease(self._world.now_us)
        if row is not None and row.revision == revision:
            self._world.engine.row = None


class Node:
    """One node: what `headwater.cluster.node` does, in turns."""

    def __init__(self, world: World, name: str) -> None:
        self.world, self.name = world, name
        self.folder = Folder()
        self.life = 0
        self.is_up = self.is_cut = False
        self.paused_until_us = 0
        self.stalled_until_us = 0
        """Until when what it sends is on its way, all of which comes then."""
        self.trouble = ""
        self.said_synced = 0
        """What it had on disk when it was asked last."""
        self.forgot = 0
        """The highest record that it had applied, rows alone included, before its power went."""
        self.sequencer: Sequencer | None = None
        self._standing: tuple[Sequencer, PendingRecord] | None = None
        self._tickets: list[tuple[PendingRecord, Record]] = []
        self._losses = 0
        """How often the engine had lost something when this node stood for leader."""
        self._begin()

    def _begin(self) -> None:
        """A new life: nothing is known but what the folder has."""
        self.life += 1
        self.apart = ""
        """Why this folder is of another history than the stream."""
        self.successor = ""
        """Who is to lead next, once it was asked to step down."""
        self.sequencer, self._standing, self._tickets = None, None, []
        self.following: Following | None = None
        self.digests = dict(self.folder.records)
        self.view = view = View(self.world, self)
        self.keeper = keeper = Keeper(view, view, LEASE_S, self.name)  # type: ignore[arg-type]
        keeper.is_behind = self._is_behind
        keeper.is_alone = self._is_alone
        keeper.on_command = self._on_command
        keeper.on_lost = self._on_lost

    @property
    def state(self) -> LeaseState:
        """Its part in the lease."""
        return self.keeper.lease.state

    def start(self) -> None:
        """Its process begins."""
        if not self.is_up:
            self.is_up = True
            self._begin()
            self._tick_later(self.life)

    def crash(self, is_power_loss: bool) -> None:
        """Its process ends at once."""
        if self.is_up:
            self.is_up = False
            if is_power_loss:
                self.forgot = max(self.forgot, self.folder.position.number, self.folder.written.number)
            self.life += 1
            self.folder.crash(is_power_loss)

    def uncut(self) -> None:
        """It reaches the engine again."""
        self.is_cut = False

    def _tick_later(self, life: int) -> None:
        def tick() -> None:
            if life == self.life and self.is_up:
                self._tick()
                self._tick_later(self.life)

        self.world.later(self.world.rng.randrange(TICK_US // 2, TICK_US), tick, self)

    # A turn

    def _tick(self) -> None:
        if self.world.chance(0.1):
            self.folder.checkpoint()
        self.keeper.turn()
        if self.sequencer is not None:
            self._lead(self.sequencer)
        elif self._standing is not None:
            self._stand_on(*self._standing)
        else:
            try:
                self._follow()
            except Missing:
                self._copy_unless_alone()
            except Diverged as error:
                self._doubt(str(error.args[0]), is_for_good=not isinstance(error, Beyond))
            except Unavailable:
                self.following, self.keeper.may_stand = None, False

    def _copy_unless_alone(self) -> None:
        """Take another's folder, unless this one has what nobody else has."""
        try:
            if self.apart:
                raise Diverged(self.apart)
            for node in self.world.nodes:
                if node is not self and node.is_reachable:
                    compare((self.folder.position, self.folder.written), node.name, node.digests)
        except Diverged as error:
            self._doubt(str(error.args[0]), is_for_good=True)
        else:
            self._copy()

    def _doubt(self, why: str, *, is_for_good: bool) -> None:
        self.following, self.keeper.may_stand, self.trouble = None, False, why
        self.apart = why if is_for_good else ""
        self.world.reached["doubt"] += 1
        self.keeper.happen(LeaseEvent.UNFIT)

    def _follow(self) -> None:
        engine = self.world.engine
        if self.following is None:
            self.following = Following(self.folder.position, self.folder.written)
            first, last = self.view.bounds()
            self.following.check(first, last, engine.messages.get(self.folder.position.sequence))
            self.trouble = ""
            self.apart = ""
        self.view.check()
        self._read(self.following, self.world.rng.randrange(1, 30))
        self.keeper.may_stand = True
        if self.keeper.is_candidate:
            self._stand(self.following)

    def _read(self, following: Following, count: int) -> None:
        engine = self.world.engine
        for sequence in range(following.end + 1, min(following.end + count, engine.last) + 1):
            if sequence < engine.first:
                raise Missing
            if following.read(sequence, engine.messages[sequence]) is not None:
                self._apply(following.position)

    def _apply(self, position: Position) -> None:
        self.world.applied(self, position)
        self.folder.apply(position, self.digests)

    def _copy(self) -> None:
        """Take another's folder."""
        self.following, self.keeper.may_stand = None, False
        self.keeper.happen(LeaseEvent.UNFIT)
        others = [node for node in self.world.nodes if node is not self and node.is_reachable and not node.trouble]
        first = self.world.engine.first
        others = [node for node in others if node.folder.position.sequence + 1 >= first]
        if others and not self.is_cut:
            self.folder = self.world.rng.choice(others).folder.copy()
            self.digests = dict(self.folder.records)
            self.world.reached["copy"] += 1
        else:
            self.trouble = "no node gives a copy of its folder"

    # Standing

    @property
    def is_reachable(self) -> bool:
        """Whether it answers others."""
        return self.is_up and not self.is_cut and self.paused_until_us <= self.world.now_us

    def report(self) -> Report:
        """What it says of itself."""
        return Report(
            node=self.name,
            role="following",
            position=self.folder.position,
            synced=self.folder.synced,
            time_us=0,
            written=self.folder.written,
        )

    def _stand(self, following: Following) -> None:
        _, last = self.view.bounds()
        self._read(following, last)
        if following.end < last:
            return
        members = [node.name for node in self.world.nodes]
        reports = {node.name: node.report() for node in self.world.nodes if node is not self and node.is_reachable}
        why = unfit(self.name, following.position, self.folder.written, last, members, reports, self.digests)
        if why:
            if "lost" in why or "another record" in why:
                self.trouble = why
            self.world.reached["unfit"] += 1
            self.keeper.happen(LeaseEvent.UNFIT)
            return
        self.trouble, self._losses = "", self.world.engine.losses
        epoch = following.position.epoch + 1
        sequencer = Sequencer(self.view, following.position, following.end, epoch, self.view, self._committed)  # type: ignore[arg-type]
        self._standing = sequencer, sequencer.send([Epoch(epoch, self.name, "model")])

    def _committed(self, committed: Committed) -> None:
        if self._standing is not None and self._losses == self.world.engine.losses:
            self.world.begins(self, committed.position)
        self._apply(committed.position)

    def _stand_on(self, sequencer: Sequencer, ticket: PendingRecord) -> None:
        sequencer.carry_out()
        if not ticket.is_over:
            return
        self._standing = None
        if ticket.error is not None or not self.keeper.is_candidate:
            sequencer.stop("it has the lease no more")
            self.following = None
            return
        self.sequencer = sequencer
        sequencer.on_stopped = self._stopped
        self.keeper.say(Leader(node=self.name, epoch=sequencer.epoch))
        self.world.reached["led"] += 1

    # Leading

    def _lead(self, sequencer: Sequencer) -> None:
        rng = self.world.rng
        sequencer.carry_out()
        self._answer()
        if sequencer.stopped is not None:
            self._over()
            return
        if self.successor and not sequencer.in_flight:
            self._step_down(sequencer)
            return
        is_late = self.world.now_us >= self.keeper.lease.until_us
        if not sequencer.is_suspended and not is_late:
            self.world.hands_out(self, sequencer.epoch)
            self.world.reached["handed out"] += 1
        for _ in range(0 if self.world.is_resting or self.successor else rng.randrange(4)):
            if sequencer.is_suspended or sequencer.in_flight > IN_FLIGHT_MAX:
                return
            size = rng.choice((5, 5, 700))
            entries = [Rows({b"%d" % rng.randrange(1 << 30): b"x" * size})]
            self._tickets.append((sequencer.send(entries), Record(0, 0, 0, b"", ())))
        if self.world.chance(0.2):
            self.trim()

    def _answer(self) -> None:
        """Tell who waits."""
        waiting = []
        for ticket, record in self._tickets:
            if not ticket.is_over:
                waiting.append((ticket, record))
            elif ticket.error is None:
                self.world.acked[ticket.position.number] = ticket.position.digest
        self._tickets = waiting

    def trim(self) -> None:
        """Delete what nobody needs, as `Others` does."""
        world, marked = self.world, self.world.marked
        names = [node.name for node in world.nodes]
        synced = {node.name: node.said_synced for node in world.nodes if node.said_synced}
        synced[self.name] = self.folder.synced.sequence
        is_too_much = len(world.engine.messages) > KEPT_MAX
        found = trimming(self.name, names, synced, marked, world.engine.first, is_too_much=is_too_much)
        marked.difference_update(found.has_copy)
        if found.too_far_behind:
            marked.add(found.too_far_behind)
            world.reached["marked"] += 1
        world.engine.trim(found.upto)
        for node in world.nodes:
            if node.is_reachable:
                node.said_synced = node.folder.synced.sequence

    def _step_down(self, sequencer: Sequencer) -> None:
        """What was under way is carried out: another is to lead."""
        self.world.reached["stepped down"] += 1
        self.keeper.stop(self.successor)
        sequencer.on_stopped = lambda _: None
        sequencer.stop("it stepped down")
        self._over()

    def _stopped(self, stopped: Stopped) -> None:
        self.world.reached["fault" if stopped.is_fault else "stopped"] += 1
        self.keeper.happen(LeaseEvent.STOPPED)

    def _over(self) -> None:
        """Begin anew, from where the folder is."""
        self.folder.checkpoint()
        life = self.life
        self._begin()
        self.world.reached["over"] += 1
        assert self.life == life + 1

    # As its keeper asks and tells

    def _is_behind(self) -> bool:
        end = self.following.end if self.following is not None else self.folder.position.sequence
        return self.view.bounds()[1] > end

    def _is_alone(self) -> bool:
        sequencer = self.sequencer
        if sequencer is None:
            return False
        if sequencer.in_flight:
            raise Unavailable("it is not known yet")
        return self.view.bounds()[1] == sequencer.position.sequence

    def _on_command(self, command: Command) -> None:
        sequencer = self.sequencer
        if sequencer is None:
            return
        match command:
            case Command.SUSPEND:
                self.world.reached["suspended"] += 1
                sequencer.suspend("late", LEASE)
            case Command.RESUME:
                sequencer.resume(LEASE)
            case Command.END:
                sequencer.stop("its lease is over")
            case _:
                pass

    def _on_lost(self) -> None:
        if self._standing is not None:
            self._standing[0].stop("the lease is another's")
        if self.sequencer is not None:
            self.sequencer.stop("the lease is another's")
