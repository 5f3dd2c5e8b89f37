"""Root limits: whether what a publish brings goes over how many roots, topics and retained messages there may be.

Promises: nothing changes here, and what is refused is refused before anything of it is stored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from headwater.config import Config
from headwater.errors import QuotaExceeded, ReadOnly
from headwater.log.publish import Part, Publish
from headwater.log.retained import check_retained
from headwater.log.root import SYS, Root, check_share, check_topics


class RootLimits:
    """The limits of all roots together, and of those that are new."""

    def __init__(self, roots: Mapping[str, Root], config: Config) -> None:
        self._roots = roots
        self._config = config
        self.coming: dict[str, str] = {}
        """Roots that are being made, or are made and have no message yet, and whose share they count in."""

    def check(self, parts: Sequence[Part], owner: str, *, may_make: bool) -> None:
        """QuotaExceeded (429) if parts that come together go over a limit, or over the share of whom what they make
        counts for, its roots among it if it makes them; ReadOnly (503) if a root takes no messages. In the committing
        role."""
        for part in parts:
            if (known := self._roots.get(part.root)) is not None:
                check_open(known)
        unknown = [part.root for part in parts if part.root not in self._roots and part.root != SYS]
        if unknown:
            self._check_new(unknown, owner if may_make else "")
        for part in parts:
            root = self._roots.get(part.root)
            if root is not None:
                if part.retain is not None or not root.knows_all(part.names):
                    root.admit(part.names, part.retains(), owner)
            else:
                self._check_first(part)
                if owner:
                    check_share(part.root, owner, 0, len(set(part.names)), self._config)

    def check_all(self, items: Sequence[Publish]) -> None:
        """The same of calls, if they came together."""
        joined: dict[str, tuple[dict[str, None], dict[str, int]]] = {}
        for item in items:
            for part in item.parts:
                topics, retained = joined.setdefault(part.root, ({}, {}))
                topics.update(dict.fromkeys(part.topics))
                retained.update(part.retains())
        parts = []
        for name, (names, retained) in joined.items():
            part = Part(name, tuple(names), (), ())
            part.retain, part.retained = [topic in retained for topic in names], retained
            parts.append(part)
        self.check(parts, "", may_make=False)

    def foresee(self, part: Part) -> None:
        """The same of one part as of a moment ago, from any thread. Whoever commits decides: what is on its way is not
        counted here."""
        root = self._roots.get(part.root)
        if root is None:
            self._check_new([part.root])
            self._check_first(part)
        elif part.retain is not None or not root.knows_all(part.names):
            root.foresee(part.names, part.retains())

    def _check_new(self, unknown: Sequence[str], owner: str = "") -> None:
        """Refuse more roots than there may be, or than one client may have made."""
        coming = self.coming
        unknown = [root for root in unknown if root not in coming]
        if not unknown:
            return
        if owner:
            made = sum(root.owner == owner for root in self._roots.values())
            made += sum(other == owner for other in coming.values())
            limit = self._config.roots_per_client_max
            if made + len(unknown) > limit:
                raise QuotaExceeded(
                    f'client "{owner}" has made {made} roots, and roots_per_client_max is {limit}; publish '
                    f'"{unknown[0]}/…" under a root that exists, have some removed, or raise the setting'
                )
        known_count = len(self._roots) - (SYS in self._roots) + len(coming) - (SYS in coming)
        if known_count + len(unknown) > self._config.roots_max:
            raise QuotaExceeded(
                f'there are {known_count} roots, and roots_max is {self._config.roots_max}; publish "{unknown[0]}/…" '
                "under a root that exists, or raise the setting"
            )

    def _check_first(self, part: Part) -> None:
        """Refuse what is too much for a root that is new."""
        check_topics(part.root, 0, len(set(part.names)), self._config)
        sizes = [size for size in part.retains().values() if size]
        check_retained(0, 0, len(sizes), sum(sizes), self._config)


def check_open(root: Root) -> None:
    """Refuse what comes to a root that takes no messages any more."""
    if root.stream.failed is not None:
        raise ReadOnly(f'stream "{root.name}" takes no messages: {root.stream.failed}; close the bus and open it again')
