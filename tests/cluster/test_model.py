"""The rules of a cluster, played from seeds in a world without I/O; and each rule is broken once, to see it noticed."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from cluster import model
from cluster.model import Broken, World
from headwater.cluster import candidate, keeper, lease, pipeline
from headwater.cluster.follower import Following
from headwater.cluster.lease import LeaseEvent, LeaseState
from headwater.cluster.others import Trimming
from headwater.cluster.record import Position, RecordPart

SEEDS = 40
MANY = 3_000
MUTANT_SEEDS = 150
HAPPENED = (
    *("led", "handed out", "acked", "copy", "marked", "unfit", "suspended", "stopped", "stepped down", "over"),
    *("pause", "cut", "stall", "kill", "power", "trim"),
)
HAPPENED_TO_LOSERS = ("lost and told", "doubt", "fault")


@pytest.fixture(autouse=True)
def silence() -> Iterator[None]:
    """Nobody reads what thousands of nodes log."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def play(seeds: range, *, loses: bool) -> Counter[str]:
    """What has happened in these stories."""
    reached: Counter[str] = Counter()
    for seed in seeds:
        world = World(seed, loses=loses)
        try:
            world.play()
        except Broken as error:
            raise Broken(f"seed {seed}: {error}") from error
        reached += world.reached
    return reached


def test_what_is_acknowledged_is_never_lost_and_histories_never_fork():
    reached = play(range(SEEDS), loses=False)
    assert [kind for kind in HAPPENED if not reached[kind]] == []


def test_an_engine_that_loses_the_end_of_its_stream_is_noticed():
    reached = play(range(SEEDS), loses=True)
    assert [kind for kind in HAPPENED_TO_LOSERS if not reached[kind]] == []


@pytest.mark.soak
def test_the_same_for_thousands_of_stories():
    play(range(1_000, 1_000 + MANY), loses=False)
    play(range(1_000, 1_000 + MANY), loses=True)


# Broken on purpose

Breaking = Callable[[pytest.MonkeyPatch], object]


def anothers_is_ours(patch: pytest.MonkeyPatch) -> None:
    """A leader takes another's message in its place for its own."""
    key = pipeline.Fate.DOUBTED, pipeline.FlightEvent.ANOTHERS
    patch.setitem(pipeline.TRANSITIONS, key, pipeline.Fate.STORED)


def refused_is_stored(patch: pytest.MonkeyPatch) -> None:
    """A leader takes a refusal for an acknowledgement."""
    patch.setitem(pipeline.TRANSITIONS, (pipeline.Fate.SENT, pipeline.FlightEvent.REFUSAL), pipeline.Fate.STORED)


def void_counts(patch: pytest.MonkeyPatch) -> None:
    """A reader does not look whether a record continues the one before."""

    def is_next(self: Following, part: RecordPart) -> bool:
        return part.number == self.position.number + 1

    patch.setattr(Following, "_is_next", is_next)


def late_goes_on(patch: pytest.MonkeyPatch) -> None:
    """A leader hands out though its lease was not renewed in time."""
    patch.delitem(lease.TRANSITIONS, (LeaseState.LEADING, LeaseEvent.LATE))
    patch.setattr(lease.Lease, "until_us", 1 << 62)


def renewed_from_the_answer(patch: pytest.MonkeyPatch) -> None:
    """A lease counts from when its renewal was answered, though it was asked for long before."""
    got = keeper.Keeper._got

    def counted(self: keeper.Keeper, revision: int, asked_us: int) -> object:
        return got(self, revision, asked_us + 2 * model.LEASE_US)

    patch.setattr(keeper.Keeper, "_got", counted)


def nobody_asked(patch: pytest.MonkeyPatch) -> None:
    """A candidate asks nobody."""
    patch.setattr(model, "unfit", lambda *_: "")


def minority(patch: pytest.MonkeyPatch) -> None:
    """A candidate goes by what those say who happen to answer."""

    def unfit(*given: Any) -> str:
        why = candidate.unfit(*given)
        return "" if "majority" in why else why

    patch.setattr(model, "unfit", unfit)


def forgets_what_was_written(patch: pytest.MonkeyPatch) -> None:
    """Rows of records that the engine has lost stay, and nobody looks."""
    made = Following.__init__
    patch.setattr(Following, "__init__", lambda self, position, _: made(self, position))

    def unfit(node: str, ours: Position, _: Position, *given: Any) -> str:
        return candidate.unfit(node, ours, Position(), *given)

    patch.setattr(model, "unfit", unfit)


def trims_too_much(patch: pytest.MonkeyPatch) -> None:
    """The leader trims what it has on disk itself, and has taken its copy by then."""

    def trimming(node: str, _: object, synced: dict[str, int], *__: object, **___: object) -> Trimming:
        return Trimming(synced[node] + 5, "", ())

    patch.setattr(model, "trimming", trimming)


def backwards_goes_on(patch: pytest.MonkeyPatch) -> None:
    """A reader does not look where the stream ends, nor what it has in the place of the last record."""
    patch.setattr(Following, "check", lambda *_: None)
    patch.setattr(model, "unfit", lambda *_: "")


OF_RIGHT_ENGINES: list[Breaking] = [
    *(anothers_is_ours, refused_is_stored, void_counts, late_goes_on, renewed_from_the_answer, trims_too_much),
]
OF_LOSING_ENGINES: list[Breaking] = [nobody_asked, minority, backwards_goes_on, forgets_what_was_written]


@pytest.mark.parametrize("breaking", OF_RIGHT_ENGINES, ids=lambda breaking: breaking.__name__)
def test_a_rule_that_is_broken_is_noticed(monkeypatch: pytest.MonkeyPatch, breaking: Breaking):
    breaking(monkeypatch)
    with pytest.raises(Broken):
        play(range(MUTANT_SEEDS), loses=False)


@pytest.mark.parametrize("breaking", OF_LOSING_ENGINES, ids=lambda breaking: breaking.__name__)
def test_a_rule_for_engines_that_lose_is_noticed_where_it_is_broken(
    monkeypatch: pytest.MonkeyPatch, breaking: Breaking
):
    breaking(monkeypatch)
    with pytest.raises(Broken):
        play(range(MUTANT_SEEDS), loses=True)
