"""Makes a failing story short: leaves out moves, more and more of them, as long as it still fails in the same way."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from sim.play import Ending, play
from sim.story import Story

PLAYS_MAX = 400


def kind_of(violation: str) -> str:
    """What went wrong, without the names and numbers of those it went wrong for."""
    return re.sub(r"m?\d+", "#", violation)[:50]


def shrink(story: Story, ending: Ending, plays_max: int = PLAYS_MAX) -> tuple[Story, Ending]:
    """The shortest story that was found, and how it ends."""
    kinds = {kind_of(violation) for violation in ending.violations}
    best = ending

    def fails(places: Sequence[int]) -> bool:
        nonlocal best
        kept = set(places)
        found = play(story.without({place for place in range(len(story.moves)) if place not in kept}))
        if not kinds & {kind_of(violation) for violation in found.violations}:
            return False
        best = found
        return True

    places = smallest(list(range(len(story.moves))), fails, plays_max)
    kept = set(places)
    return story.without({place for place in range(len(story.moves)) if place not in kept}), best


def smallest(places: list[int], fails: Callable[[Sequence[int]], bool], tries_max: int) -> list[int]:
    """Zeller's delta debugging: parts are left out, first large ones and then ever smaller ones, while it fails."""
    parts, tries = 2, 0
    while places and tries < tries_max:
        size = max(1, len(places) // parts)
        for first in range(0, len(places), size):
            rest = places[:first] + places[first + size :]
            tries += 1
            if fails(rest):
                places = rest
                parts = max(2, parts - 1)
                break
            if tries >= tries_max:
                return places
        else:
            if size == 1:
                break
            parts = min(len(places), 2 * parts)
    return places


def report(story: Story, ending: Ending) -> str:
    """What to tell whoever has to mend it."""
    shorter, last = shrink(story, ending)
    lines = [
        *ending.violations[:5],
        f"play it again: cd tests && python -m sim {story.seed} --trace",
        f"the shortest that was found, of {len(story.moves)} moves, ends with: {'; '.join(last.violations[:2])}",
        str(shorter),
    ]
    return "\n".join(lines)
