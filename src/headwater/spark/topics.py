"""Which topics a read is about: those that one filter matches, or any of several.

They are written as a filter, as filters with commas between them, or as a list in JSON, where a filter may have a comma
in it. A server is asked by one filter for each root, the narrowest that covers what is asked for there; what else
that matches is left out by whoever reads.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from itertools import takewhile
from typing import Any

import msgspec

from headwater.config import Config
from headwater.errors import Malformed
from headwater.topics.name import (
    check_filter,
    compile_filter,
    filter_covers,
    filter_covers_root,
    filters_overlap,
    is_everything_of,
    root_of_filter,
)

FILTERS_MAX = 1000


class Topics(msgspec.Struct, frozen=True):
    """The filters of a read; none of them is covered by another."""

    filters: tuple[str, ...]

    def __str__(self) -> str:
        return ", ".join(self.filters)

    @property
    def option(self) -> str:
        """The same as the option is written, whatever is in them."""
        alone = self.filters[0] if len(self.filters) == 1 else ""
        if alone and "," not in alone and alone == alone.strip() and not alone.startswith("["):
            return alone
        return json.dumps(self.filters, ensure_ascii=False)

    def covers_root(self, root: str) -> bool:
        """Whether any topic of a root could be wanted."""
        return any(filter_covers_root(one, root) for one in self.filters)

    def is_everything_of(self, root: str) -> bool:
        """Whether every topic of a root is wanted."""
        return any(is_everything_of(one, root) for one in self.filters)

    def overlaps(self, filter: str) -> bool:
        """Whether a filter could match a topic that is wanted."""
        return any(filters_overlap(one, filter) for one in self.filters)

    def test(self) -> Callable[[str], bool]:
        """Whether a topic is wanted, made once to be asked often."""
        tests = [compile_filter(one) for one in self.filters]
        return tests[0] if len(tests) == 1 else lambda topic: any(test(topic) for test in tests)

    def of_root(self, root: str) -> str:
        """One filter that matches all that is wanted of a root."""
        found = list(self.among(root))
        return found[0] if len(found) == 1 else _narrowest([_within(one, root) for one in found])

    def among(self, root: str) -> tuple[str, ...]:
        """Those filters that may match in a root."""
        return tuple(one for one in self.filters if filter_covers_root(one, root))

    @property
    def asked(self) -> list[str]:
        """Filters that together cover all that is wanted: one for each root that is named."""
        if len(self.filters) == 1:
            return list(self.filters)
        roots = dict.fromkeys(map(root_of_filter, self.filters))
        named = [self.of_root(root) for root in roots if root is not None]
        return named + [one for one in self.filters if root_of_filter(one) is None]


EVERYTHING = Topics(("#",))


def topics_of(text: str) -> Topics:
    """What the option says; Malformed if it is no filter, and no list of some."""
    try:
        stated = _list(text) if text.lstrip().startswith("[") else [one.strip() for one in text.split(",")]
        for one in stated:
            check_filter(one, Config())
    except Malformed as error:
        raise Malformed(f'option "topics": {error.args[0]}') from error
    if len(stated) > FILTERS_MAX:
        raise Malformed(f'option "topics" has {len(stated)} filters; use at most {FILTERS_MAX}, or wildcards')
    return Topics(tuple(_without_covered(dict.fromkeys(stated))))


def _list(text: str) -> list[str]:
    found: Any
    try:
        found = json.loads(text)
    except ValueError as error:
        raise Malformed(f'"{text}" is no list in JSON ({error}); write ["home/+/temp", "office/#"]') from None
    if not found or not all(isinstance(one, str) for one in found):
        raise Malformed(f'"{text}" is no list of filters; write ["home/+/temp", "office/#"]')
    return list(found)


def _without_covered(filters: Iterable[str]) -> list[str]:
    kept: list[str] = []
    for new in filters:
        if not any(filter_covers(one, new) for one in kept):
            kept = [one for one in kept if not filter_covers(new, one)]
            kept.append(new)
    return kept


def _within(filter: str, root: str) -> str:
    """What a filter means in one root."""
    first, slash, rest = filter.partition("/")
    return f"{root}/#" if first == "#" else root + slash + rest


def _narrowest(filters: list[str]) -> str:
    """A filter that covers several of one root: levels in which they differ are wildcards."""
    levels = [one.split("/") for one in filters]
    is_open = any(one[-1] == "#" for one in levels) or len({len(one) for one in levels}) > 1
    shortest = min(len(one) - (one[-1] == "#") for one in levels)
    common = list(zip(*(one[:shortest] for one in levels), strict=True))
    if is_open:
        same = [level[0] for level in takewhile(lambda level: len(set(level)) == 1, common)]
        return "/".join([*same, "#"])
    return "/".join(level[0] if len(set(level)) == 1 else "+" for level in common)
