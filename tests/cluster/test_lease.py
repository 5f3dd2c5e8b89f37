"""The lease is a table: what a node does when it has it, loses it, or does not know."""

from __future__ import annotations

import random

from headwater.cluster.lease import HOLDS, TRANSITIONS, Command, Lease, LeaseEvent, LeaseState

SECOND = 1_000_000


def leading(now_us: int = 0) -> Lease:
    lease = Lease(3 * SECOND)
    assert lease.happen(LeaseEvent.FREE) == (Command.TAKE,)
    assert lease.got(7, now_us) == ()
    assert lease.state is LeaseState.CANDIDATE
    assert lease.happen(LeaseEvent.OPENED) == ()
    return lease


def test_a_free_lease_is_taken_and_the_node_leads_once_its_epoch_is_written():
    lease = leading()
    assert (lease.state, lease.revision, lease.holds) == (LeaseState.LEADING, 7, True)


def test_a_lease_that_was_not_renewed_in_time_suspends_and_one_that_was_resumes():
    lease = leading()
    assert lease.look(3 * SECOND - 1) == ()
    assert lease.look(3 * SECOND) == (Command.SUSPEND,)
    assert lease.look(4 * SECOND) == ()
    assert lease.got(8, 4 * SECOND) == (Command.RESUME,)
    assert lease.look(7 * SECOND - 1) == ()


def test_time_counts_from_when_the_renewal_was_asked_for_and_not_from_its_answer():
    lease = leading()
    lease.got(8, 1 * SECOND)  # answered much later
    assert lease.look(4 * SECOND) == (Command.SUSPEND,)


def test_whoever_missed_the_lease_follows_and_may_take_the_next():
    lease = Lease(SECOND)
    lease.happen(LeaseEvent.FREE)
    lease.happen(LeaseEvent.MISSED)
    assert lease.state is LeaseState.FOLLOWING
    assert lease.happen(LeaseEvent.FREE) == (Command.TAKE,)


def test_a_candidate_that_may_not_lead_gives_the_lease_back():
    lease = Lease(SECOND)
    lease.happen(LeaseEvent.FREE)
    lease.got(1, 0)
    assert lease.happen(LeaseEvent.UNFIT) == (Command.RELEASE,)
    assert lease.state is LeaseState.FOLLOWING


def test_a_leader_whose_place_is_taken_ends_whatever_it_was_doing():
    for before in ((), (LeaseEvent.LATE,)):
        for last in (LeaseEvent.TAKEN_AWAY, LeaseEvent.STOPPED):
            lease = leading()
            for event in before:
                lease.happen(event)
            assert lease.happen(last) == (Command.END,), (before, last)


def test_from_over_there_is_no_way_back_and_no_event_is_unknown():
    assert not [state for state, _ in TRANSITIONS if state is LeaseState.OVER]
    rng = random.Random(1)
    for _ in range(500):
        lease, was_over = Lease(SECOND), False
        for _ in range(30):
            lease.happen(rng.choice(list(LeaseEvent)))
            assert lease.is_over or not was_over
            assert lease.holds == (lease.state in HOLDS)
            was_over = lease.is_over


def test_nothing_leads_without_having_had_the_lease():
    """Whatever happens, LEADING comes from CANDIDATE or SUSPENDED alone, and CANDIDATE from TAKING."""
    before = {
        state: {was for (was, _), (now, _) in TRANSITIONS.items() if now is state and was is not state}
        for state in LeaseState
    }
    assert before[LeaseState.LEADING] == {LeaseState.CANDIDATE, LeaseState.SUSPENDED}
    assert before[LeaseState.CANDIDATE] == {LeaseState.TAKING}
    assert before[LeaseState.SUSPENDED] == {LeaseState.LEADING}
