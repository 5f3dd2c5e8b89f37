"""A grant: what the token of one connection allows, beside the rules that are stored.

Invariants:

- A grant adds to the rules and takes nothing away; a deny rule wins over it, as over any allow rule.
- It is of the session that the token's connection serves: another of the same user, with another token, has its own.
- It goes by the rules as they are, from the moment that they change.
"""

from __future__ import annotations

from headwater.access.acl import Acl, Rule, Ruling, Shut


class Grant:
    """Decides for one session whose client brought a token; asked as `Acl` is."""

    __slots__ = ("_acl", "_kept", "key", "rules", "user")

    def __init__(self, acl: Acl, user: str, rules: tuple[Rule, ...]) -> None:
        self.user = user
        self.rules = rules
        self.key = hash(rules)
        """The same for the same rules: what is remembered for some who see alike is told apart by it."""
        self._acl = acl
        self._kept = -1, Ruling({})
        """By which version of the rules, and what they said: one value, as several threads ask."""

    @property
    def ruling(self) -> Ruling:
        """The stored rules and these together."""
        version = self._acl.version  # read first: a change sets it last
        kept = self._kept
        if version != kept[0]:
            kept = self._kept = version, self._acl.ruling_with(self.user, self.rules)
        return kept[1]

    def may_publish(self, user: str, topic: str) -> bool:
        """Whether a rule, or the token, lets the user publish to a topic."""
        return self.ruling.may_publish(user, topic)

    def may_subscribe(self, user: str, filter: str) -> bool:
        """Whether the user may have everything that a filter matches."""
        return self.ruling.may_have(user, "subscribe", filter)

    def denies(self, user: str, filter: str) -> bool:
        """Whether a deny rule keeps the user from having something that a filter matches."""
        return self.ruling.denies(user, filter)

    def may_see_some(self, user: str, filter: str) -> bool:
        """Whether the user may have anything of what a filter matches."""
        return self.ruling.may_see_some(user, filter)

    def is_admin(self, user: str) -> bool:
        """Whether the user may change clients, rules and settings."""
        return self.ruling.is_admin(user)

    def check_publish_all(self, user: str, names: tuple[str, ...]) -> None:
        """NotAllowed (403) unless the user may publish to all of these topics."""
        ruling = self.ruling
        refused = ruling.first_refused(user, names)
        if refused is not None:
            raise ruling.refusal(user, "publish", refused)

    def check_create(self, user: str, topic: str) -> None:
        """NotAllowed (403) unless the user may make a topic."""
        ruling = self.ruling
        if not ruling.may_create(user, topic):
            raise ruling.refusal(user, "create", topic)

    def check_subscribe(self, user: str, filter: str) -> None:
        """NotAllowed (403) unless the user may have everything that a filter matches."""
        ruling = self.ruling
        if not ruling.may_have(user, "subscribe", filter):
            raise ruling.refusal(user, "subscribe", filter)


class Revoked(Grant):
    """What is left to a session whose client was removed, or has another secret: nothing."""

    __slots__ = ("_nothing",)

    def __init__(self, acl: Acl, user: str, why: str) -> None:
        super().__init__(acl, user, ())
        self._nothing = Shut(why)

    @property
    def ruling(self) -> Ruling:
        """No rule counts."""
        return self._nothing
