"""The loading of a durable subscription: its state machine, as its stored rows say.

What was in flight is pending again. Consumers that were killed, and the broker in their process with them, left notes
of what they were at (`hand_outs`): of these a delivery is counted before anybody is served, as nobody else ever would.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set

from headwater.delivery import rows as stored
from headwater.delivery.hand_outs import HandOuts
from headwater.delivery.lane import Changes, Failure, LaneId, Moment
from headwater.delivery.rows import RetainedRest, Waiting
from headwater.delivery.subscription import Subscription
from headwater.store.state import State

NEVER_FAILED = Failure(0, 0)


def load(
    machine: Subscription,
    number: int,
    state: State,
    there: Set[int],
    now: Moment,
    hand_outs: HandOuts | None,
) -> dict[int, RetainedRest]:
    """Bring a state machine to where the rows of a subscription are, in the streams that are there; answers, by stream,
    the retained messages that are still to be noted. Without hand-outs nothing is counted, and nothing stored."""
    floors = stored.floors_of(state, number)
    acked = stored.acked_of(state, number)
    failures = stored.failures_of(state, number)
    copies, rests = stored.copies_of(state, number)
    if hand_outs is not None:
        handed = _unfinished(hand_outs.left(), floors, acked, copies)
        if handed is not None:
            changes = _blame(machine, handed, failures, now)
            # At once, as the next consumer may be killed before a commit; durable with the next.
            state.write(stored.rows_of(number, changes))
            hand_outs.forget_left()
    # A root that appeared after the subscription has no floor until its first message is acked.
    for stream in there & (floors.keys() | acked.keys() | {stream for stream, copied in failures if not copied}):
        lane, floor, failed = (stream, False), floors.get(stream, 0), failures.get((stream, False), {})
        machine.load_lane(lane, floor, acked.get(stream, ()), failed, now)
    for stream, found in copies.items():
        if stream in there:
            failed = failures.get((stream, True), {})
            machine.load_lane((stream, True), 0, (), failed, now, sorted(found), stored.copy_keys(found))
    return {stream: rest for stream, rest in rests.items() if stream in there}


def _unfinished(
    handed: Mapping[LaneId, set[int]],
    floors: Mapping[int, int],
    acked: Mapping[int, Sequence[int]],
    copies: Mapping[int, Mapping[int, Waiting]],
) -> list[tuple[LaneId, int]] | None:
    """What consumers had that are gone, without what they had acked; None if they had nothing."""
    if not handed:
        return None
    held: list[tuple[LaneId, int]] = []
    for lane, offsets in handed.items():
        stream = lane[0]
        if lane[1]:
            left = offsets & copies.get(stream, {}).keys()
        else:
            floor = floors.get(stream, 0)
            left = {offset for offset in offsets.difference(acked.get(stream, ())) if offset > floor}
        held += [(lane, offset) for offset in sorted(left)]
    return held


def _blame(
    machine: Subscription, held: list[tuple[LaneId, int]], failures: dict[LaneId, dict[int, Failure]], now: Moment
) -> Changes:
    """Count a delivery of these; of the suspects alone, if there are any among them."""
    changes = Changes()
    if machine.options.max_deliveries:
        suspects = [one for one in held if failures.get(one[0], {}).get(one[1], NEVER_FAILED).vanished]
        for lane, offset in suspects or held:
            failed = failures.setdefault(lane, {})
            failed[offset] = changes.failures[lane, offset] = machine.with_delivery(failed.get(offset), now)
    return changes
