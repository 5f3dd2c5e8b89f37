"""A node's part in the lease, turn by turn: who takes it, who renews it, and to whom it is handed over."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from cluster.memory_engine import Bed, MemoryEngine
from headwater.clock import SECOND_US, ManualClock
from headwater.cluster.keeper import Keeper
from headwater.cluster.leader import Leader
from headwater.cluster.lease import LeaseEvent, LeaseState
from headwater.errors import Unavailable

LEASE_S = 3.0


class Losing(MemoryEngine):
    """An engine whose answers about the lease are lost when it is told so, once what was asked for is done."""

    loses = False

    def put_row(self, key: str, value: bytes, revision: int | None = None) -> int | None:
        made = super().put_row(key, value, revision)
        if self.loses:
            raise Unavailable("no answer")
        return made


@dataclass
class Part:
    engine: Losing
    keeper: Keeper

    def lead(self) -> None:
        self.keeper.turn()
        self.keeper.say(Leader(node=self.keeper._said.node, epoch=1))
        assert self.keeper.lease.state is LeaseState.LEADING


def part_of(one: Part) -> LeaseState:
    return one.keeper.lease.state


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def parts(clock: ManualClock) -> Iterator[list[Part]]:
    bed = Bed()
    made = []
    for node in ("n1", "n2", "n3"):
        engine = Losing(bed)
        keeper = Keeper(engine, clock, LEASE_S, node)
        keeper.may_stand = True
        made.append(Part(engine, keeper))
    yield made
    for part in made:
        part.engine.close()


def test_one_has_a_lease_that_is_free_and_the_others_see_who(parts: list[Part]) -> None:
    one, two, _ = parts
    one.lead()
    one.keeper.turn()
    two.keeper.turn()
    assert two.keeper.lease.state is LeaseState.FOLLOWING
    assert two.keeper.leader is not None
    assert two.keeper.leader.node == "n1"


def test_a_lease_that_is_handed_over_is_taken_by_that_node_and_by_no_other(parts: list[Part]) -> None:
    one, two, three = parts
    one.lead()
    one.keeper.stop("n3")
    two.keeper.turn()
    assert two.keeper.lease.state is LeaseState.FOLLOWING
    assert two.keeper.leader is None
    three.keeper.turn()
    assert three.keeper.is_candidate


def test_a_lease_that_is_handed_over_is_not_taken_by_a_node_that_cannot_stand(parts: list[Part]) -> None:
    one, _, three = parts
    one.lead()
    one.keeper.stop("n3")
    three.keeper.may_stand = False
    three.keeper.turn()
    assert three.keeper.lease.state is LeaseState.FOLLOWING


def test_a_lease_whose_taking_was_not_answered_counts_from_the_question(parts: list[Part], clock: ManualClock) -> None:
    one, *_ = parts
    clock.advance(1.0)
    asked_us = clock.monotonic_us()
    one.engine.loses = True
    one.keeper.turn()
    assert one.keeper.lease.state is LeaseState.FOLLOWING
    one.engine.loses = False
    clock.advance(1.0)
    one.keeper.turn()
    assert one.keeper.is_candidate
    assert one.keeper.lease.until_us == asked_us + round(LEASE_S * SECOND_US)


def test_a_lease_whose_renewal_was_not_answered_counts_from_the_question(parts: list[Part], clock: ManualClock) -> None:
    one, *_ = parts
    one.lead()
    clock.advance(1.0)
    asked_us = clock.monotonic_us()
    one.engine.loses = True
    one.keeper.turn()
    one.engine.loses = False
    clock.advance(1.0)
    one.keeper.turn()
    assert one.keeper.lease.until_us == asked_us + round(LEASE_S * SECOND_US)


def test_a_leader_that_cannot_renew_is_suspended_in_time(parts: list[Part], clock: ManualClock) -> None:
    one, *_ = parts
    one.lead()
    one.engine.is_up = False
    clock.advance(LEASE_S - 0.1)
    one.keeper.turn()
    assert part_of(one) is LeaseState.LEADING
    clock.advance(0.2)
    one.keeper.turn()
    assert part_of(one) is LeaseState.SUSPENDED


@pytest.mark.parametrize("is_alone", [True, False])
def test_a_lease_that_was_gone_is_taken_again_only_if_nobody_has_written_since(
    parts: list[Part], is_alone: bool
) -> None:
    one, *_ = parts
    one.lead()
    del one.engine.bed.rows["lease"]
    one.keeper.is_alone = lambda: is_alone
    one.keeper.turn()
    assert one.keeper.lease.state is (LeaseState.LEADING if is_alone else LeaseState.OVER)


def test_one_that_may_not_lead_leaves_the_lease_to_others_for_a_while(parts: list[Part], clock: ManualClock) -> None:
    one, two, _ = parts
    one.keeper.turn()
    one.keeper.happen(LeaseEvent.UNFIT)
    one.keeper.turn()
    assert one.keeper.lease.state is LeaseState.FOLLOWING
    two.keeper.turn()
    assert two.keeper.is_candidate


def test_an_engine_whose_stream_is_gone_ends_nobodys_part(parts: list[Part]) -> None:
    one, *_ = parts
    one.keeper.is_behind = lambda: one.engine.bounds()[1] > 0
    one.engine.unmake()
    one.keeper.turn()
    one.engine.make()
    one.keeper.turn()
    assert one.keeper.is_candidate
