"""The radix tree of wildcard filters: found by walking down the levels of a topic, in few steps however many there are.

Filters share the levels that they begin with. Each ends in a level of its own, so that none lies on the way of another:
`a/+` and `a/+/b` part after the `+`. A branch has at least two children, except at the top; a filter that is alone on
its way down is a bare string, whatever is left of it.

    top ── home ─┬─ + ─┬─ temp:  "home/+/temp"
                 │     └─ power: "home/+/power/#"
                 └─ kitchen:     "home/kitchen/#"
"""

from __future__ import annotations

_END = "\0"  # the level after the last one of a name; no name contains it


class Branch:
    """Where filters part: the levels that they share since the branch above, and what follows in each."""

    __slots__ = ("children", "label")

    def __init__(self, label: list[str]) -> None:
        self.label = label
        self.children: dict[str, Branch | str] = {}

    def insert(self, filter: str) -> None:
        """Add a filter that is not there yet."""
        levels = _levels_of(filter)
        branch, depth = self, 0
        while True:
            key = levels[depth]
            depth += 1
            child = branch.children.get(key)
            if child is None:
                branch.children[key] = filter
                return
            label = child.label if isinstance(child, Branch) else _levels_of(child)[depth:]
            shared = _shared(label, levels[depth:])
            if isinstance(child, str) or shared < len(label):
                break
            branch, depth = child, depth + shared
        fork = Branch(label[:shared])
        fork.children[label[shared]] = child
        fork.children[levels[depth + shared]] = filter
        if isinstance(child, Branch):
            child.label = label[shared + 1 :]
        branch.children[key] = fork

    def remove(self, filter: str) -> None:
        """Remove a filter that is there; a branch that is left with one child is joined with it."""
        levels = _levels_of(filter)
        above, key_above = self, ""
        branch, depth = self, 0
        while isinstance(child := branch.children[levels[depth]], Branch):
            above, key_above = branch, levels[depth]
            branch, depth = child, depth + 1 + len(child.label)
        del branch.children[levels[depth]]
        if branch is self or len(branch.children) > 1:
            return
        ((key, only),) = branch.children.items()
        if isinstance(only, Branch):
            only.label = [*branch.label, key, *only.label]
        above.children[key_above] = only

    def find(self, levels: list[str]) -> list[str]:
        """The filters that match the topic with these levels."""
        found: list[str] = []
        self._collect(levels, 0, found)
        if levels[0].startswith("$"):
            return [each for each in found if not each.startswith(("+", "#"))]
        return found

    def _collect(self, levels: list[str], depth: int, found: list[str]) -> None:
        """Add to those found what matches below this branch, whose label is next."""
        if self.label:
            if not _fits(self.label, levels, depth):
                return
            depth += len(self.label)
        children = self.children
        if isinstance(last := children.get("#"), str):
            found.append(last)
        if depth == len(levels):
            if isinstance(last := children.get(_END), str):
                found.append(last)
            return
        level = levels[depth]
        depth += 1
        for key in (level, "+"):
            if key in children:
                child = children[key]
                if isinstance(child, Branch):
                    child._collect(levels, depth, found)
                # What is left of a filter mostly has no wildcard: then it is what is left of the topic.
                elif (rest := child.split("/")[depth:]) == levels[depth:] or _fits_to_the_end(rest, levels, depth):
                    found.append(child)


def _fits(wanted: list[str], levels: list[str], depth: int) -> bool:
    """Whether levels of a filter fit those of a topic from a depth on."""
    if depth + len(wanted) > len(levels):
        return False
    for want in wanted:
        if want not in ("+", levels[depth]):
            return False
        depth += 1
    return True


def _fits_to_the_end(rest: list[str], levels: list[str], depth: int) -> bool:
    """Whether what is left of a filter fits what is left of a topic."""
    if rest and rest[-1] == "#":
        return _fits(rest[:-1], levels, depth)
    return depth + len(rest) == len(levels) and _fits(rest, levels, depth)


def _levels_of(name: str) -> list[str]:
    """The levels of a filter and its end, which `#` leaves open."""
    levels = name.split("/")
    if levels[-1] != "#":
        levels.append(_END)
    return levels


def _shared(some: list[str], others: list[str]) -> int:
    """How many levels two lists have in common at their start."""
    count = 0
    for one, other in zip(some, others, strict=False):
        if one != other:
            break
        count += 1
    return count
