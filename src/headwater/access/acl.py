"""Rules: who may publish, subscribe, create topics, have messages pushed to them, and administer.

Invariants:

- Nothing is allowed that no rule allows; a deny rule wins over every allow rule.
- To publish or create, one allow rule matches the topic and no deny rule does. To subscribe, or have a channel, one
  allow rule covers the whole filter, and no deny rule has a single topic in common with it.
- `%u` in a rule is the client's name, as a whole level. A user whose name is not well formed may do nothing, so it
  cannot widen such a rule, wherever the name came from.
- Wildcards match no `$`-root: a rule for one names it.
- Rules that hold together, and every decision remembered about them, are one `Ruling`; a change makes another. So a
  decision is never remembered past the rules that it was made by, whichever threads ask meanwhile.
"""

from __future__ import annotations

import builtins
import shlex
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Literal, get_args

import msgspec

from headwater import threads
from headwater.access.name import EVERYONE, check_name, is_name, quoted
from headwater.audit import Audit
from headwater.book import Book
from headwater.config import Config
from headwater.errors import Malformed, NotAllowed, NotFound, QuotaExceeded
from headwater.memo import Memo
from headwater.store import state as rows
from headwater.store.state import State, key_words, pack
from headwater.topics.name import check_filter, compile_filter, filter_covers, filters_overlap, is_wild
from headwater.wire.request import page_after

Action = Literal["publish", "subscribe", "create", "channel", "admin"]
ACTIONS: tuple[Action, ...] = get_args(Action)

USER_LEVEL = "%u"
"""In a rule's filter: the name of the client, as a whole level."""
EVERYTHING = "#"
"""The filter of every admin rule."""

RULES_MAX = 100_000
"""One more rule: QuotaExceeded (429)."""
DECISIONS_KEPT = 100_000
"""Clients and topics whose decision is remembered; beyond it, remembering starts anew."""
NAMES_KEPT = 100_000
"""The same for whole batches, counted in their topics."""
RIGHTS_KEPT = 10_000
"""Clients and actions whose rules are kept ready; beyond it, that starts anew."""

WHOLE = ("subscribe", "channel")
"""Actions that are about all that a filter matches."""

_DOES = {
    "publish": "publish to",
    "create": "create topic",
    "subscribe": "subscribe to",
    "channel": "have a channel for",
}


class Rule(msgspec.Struct, frozen=True):
    """Whether a user, or everyone ("*"), may do something with the topics of a filter."""

    user: str
    action: Action
    filter: str
    allow: bool

    def __str__(self) -> str:
        return f"{'allow' if self.allow else 'deny'} {self.user} {self.action} {self.filter}"


Match = tuple[str, Callable[[str], bool], Rule]
"""A wildcard filter, its test, and the rule that it is of."""


class Rights:
    """The rules about one user and one action, ready to be asked."""

    __slots__ = ("_exact", "_wild")

    def __init__(self, user: str, rules: Iterable[Rule]) -> None:
        self._exact: dict[bool, dict[str, Rule]] = {True: {}, False: {}}
        self._wild: dict[bool, list[Match]] = {True: [], False: []}
        for rule in rules:
            ours = _filled(rule.filter, user)
            if is_wild(ours):
                self._wild[rule.allow].append((ours, compile_filter(ours), rule))
            else:
                self._exact[rule.allow][ours] = rule

    def allows(self, topic: str) -> bool:
        """Whether a topic is matched by an allow rule and by no deny rule."""
        return self.matching(True, topic) is not None and self.matching(False, topic) is None

    def matching(self, allow: bool, topic: str) -> Rule | None:
        """An allow or deny rule that matches a topic."""
        found = self._exact[allow].get(topic)
        if found is not None:
            return found
        for _, test, rule in self._wild[allow]:
            if test(topic):
                return rule
        return None

    def covering(self, filter: str) -> Rule | None:
        """An allow rule that matches every topic that a filter matches."""
        found = self._exact[True].get(filter)
        if found is not None:
            return found
        for ours, _, rule in self._wild[True]:
            if filter_covers(ours, filter):
                return rule
        return None

    def touches(self, filter: str) -> bool:
        """Whether an allow rule matches any topic that a filter matches."""
        return any(filters_overlap(ours, filter) for ours, _, _ in self._wild[True]) or any(
            filters_overlap(topic, filter) for topic in self._exact[True]
        )

    def overlapping(self, filter: str) -> Rule | None:
        """A deny rule that matches any topic that a filter matches."""
        for ours, _, rule in self._wild[False]:
            if filters_overlap(ours, filter):
                return rule
        for topic, rule in self._exact[False].items():
            if filters_overlap(topic, filter):
                return rule
        return None


class Ruling:
    """Rules that hold together, and what was decided by them."""

    __slots__ = ("_batches", "_by_user", "_publishes", "_rights")

    def __init__(self, by_user: Mapping[str, tuple[Rule, ...]]) -> None:
        self._by_user = by_user
        self._rights: Memo[tuple[str, str], Rights] = Memo(RIGHTS_KEPT)
        self._publishes: Memo[tuple[str, str], bool] = Memo(DECISIONS_KEPT)
        self._batches: Memo[tuple[str, tuple[str, ...]], str | None] = Memo(NAMES_KEPT, NAMES_KEPT)

    def without(self, gone: Rule, instead: tuple[Rule, ...] = ()) -> Ruling:
        """The same, but for the rule about what this one is about."""
        its = tuple(rule for rule in self._by_user.get(gone.user, ()) if _key(rule) != _key(gone)) + instead
        by_user = {**self._by_user, gone.user: its}
        if not its:
            del by_user[gone.user]
        return Ruling(by_user)

    def plus(self, user: str, granted: tuple[Rule, ...]) -> Ruling:
        """What holds for a user to whom more is granted than the rules do."""
        of_all = self._by_user.get(EVERYONE, ())
        return Ruling({user: (*self._by_user.get(user, ()), *granted), EVERYONE: of_all})

    def rights(self, user: str, action: Action) -> Rights:
        """What the rules say about a user's action."""
        found = self._rights.known.get((user, action))
        if found is None:
            known = is_name(user)
            its = (*self._by_user.get(user, ()), *self._by_user.get(EVERYONE, ())) if known else ()
            found = Rights(user, [rule for rule in its if rule.action == action])
            self._rights.keep((user, action), found)
        return found

    def may_publish(self, user: str, topic: str) -> bool:
        found = self._publishes.known.get((user, topic))
        if found is None:
            found = self._publishes.keep((user, topic), self.rights(user, "publish").allows(topic))
        return found

    def first_refused(self, user: str, names: tuple[str, ...]) -> str | None:
        """The first of these topics that a user may not publish to."""
        asked = user, names
        try:
            return self._batches.known[asked]
        except KeyError:
            pass
        refused = None
        for name in names:
            if not self.may_publish(user, name):
                refused = name
                break
        room = len(names) + 1
        if room <= NAMES_KEPT:
            self._batches.keep(asked, refused, room)
        return refused

    def may_create(self, user: str, topic: str) -> bool:
        return self.rights(user, "create").allows(topic)

    def may_have(self, user: str, action: Action, filter: str) -> bool:
        """Whether a user may subscribe to, or have a channel for, everything that a filter matches."""
        rights = self.rights(user, action)
        return rights.covering(filter) is not None and rights.overlapping(filter) is None

    def denies(self, user: str, filter: str) -> bool:
        """Whether a deny rule keeps a user from subscribing to something that a filter matches."""
        return self.rights(user, "subscribe").overlapping(filter) is not None

    def may_see_some(self, user: str, filter: str) -> bool:
        """Whether a user may subscribe to anything of what a filter matches, as far as allow rules tell."""
        return self.rights(user, "subscribe").touches(filter)

    def is_admin(self, user: str) -> bool:
        return self.rights(user, "admin").allows(EVERYTHING)

    def refusal(self, user: str, action: Action, asked: str) -> NotAllowed:
        """Why it is not allowed, and what would allow it."""
        rights = self.rights(user, action)
        denied = rights.overlapping(asked) if action in WHOLE else rights.matching(False, asked)
        what = "administer this broker" if action == "admin" else f"{_DOES[action]} {quoted(asked)}"
        who = f"client {quoted(user)} may not {what}"
        if not is_name(user):
            return NotAllowed(f"{who} (its name is not that of a client); use a name such as sensor-7")
        if denied is None:
            return NotAllowed(f"{who} (rule: none); grant it with: {_command('allow', user, action, asked)}")
        remedy = _command("remove", denied.user, denied.action, denied.filter)
        narrower = f"{_DOES[action]} a narrower filter, or " if action in WHOLE and is_wild(asked) else ""
        return NotAllowed(f"{who} (rule: {_plain(str(denied))}); {narrower}take that rule back with: {remedy}")


class Shut(Ruling):
    """No rule counts, and why."""

    __slots__ = ("_why",)

    def __init__(self, why: str) -> None:
        super().__init__({})
        self._why = why

    def plus(self, user: str, granted: tuple[Rule, ...]) -> Ruling:
        return self

    def refusal(self, user: str, action: Action, asked: str) -> NotAllowed:
        return NotAllowed(f"client {quoted(user)} may do nothing: {self._why}")


class Acl:
    """The rules of a broker; changes are durable when they return. While rules may be lost, none of them counts."""

    def __init__(
        self,
        state: State,
        *,
        config: Config | None = None,
        rules_max: int = RULES_MAX,
        read_only: bool = False,
        audit: Audit | None = None,
    ) -> None:
        self._book = Book(state, read_only=read_only, audit=audit)
        self._config = config or Config()
        self.rules_max = rules_max
        """A setting of the server, who sets it here."""
        self._lock = threads.Lock()
        self._rules: dict[tuple[str, str, str], Rule] = {}
        self._written = Ruling({})
        self._ruling = self._written
        """What is gone by."""
        self.version = 0
        """Rises with each change."""
        self.closed: str | None = None
        """Why no rule counts."""
        self.on_change: Callable[[Collection[str]], None] | None = None
        """Called after each change with the users whom it concerns, "*" among them if all; by the thread that made it.
        """
        self.reload()

    # Changing

    def allow(self, user: str, action: Action, filter: str) -> None:
        """Let a user, or everyone ("*"), do something with the topics of a filter; replaces the same deny rule."""
        self._put(self._checked(user, action, filter, allow=True))

    def deny(self, user: str, action: Action, filter: str) -> None:
        """Forbid it, whatever other rules allow; replaces the same allow rule."""
        self._put(self._checked(user, action, filter, allow=False))

    def remove(self, user: str, action: Action, filter: str) -> None:
        """Take a rule back."""
        wanted = self._checked(user, action, filter, allow=True)
        with self._lock:
            before = self._rules.get(_key(wanted))
            if before is None:
                raise NotFound(
                    f"there is no rule about {_plain(f'{wanted.user} {action} {filter}')}; "
                    "headwater acl list shows those that are"
                )
            self._book.write({key_words(rows.RULE, *_key(wanted)): None})
            del self._rules[_key(wanted)]
            self._change(self._written.without(wanted))
            self._book.note("rule-removed", wanted.user, before)
        self._tell((wanted.user,))

    def reload(self) -> None:
        """Read the rules again, as after another process changed them."""
        with self._lock:
            found = {_key(rule): rule for rule in self._book.read(rows.RULE, Rule)}
            closed = self._book.why_closed()
            if found == self._rules and closed == self.closed:
                return
            changed = set(found.items()) ^ set(self._rules.items())
            users = {rule.user for _, rule in changed} if closed == self.closed else {EVERYONE}
            self.closed = closed
            self._rules = found
            by_user: dict[str, list[Rule]] = {}
            for rule in found.values():
                by_user.setdefault(rule.user, []).append(rule)
            self._change(Ruling({user: tuple(its) for user, its in by_user.items()}))
        self._tell(users)

    def confirm(self) -> int:
        """Clients, rules and tokens are right as they are, though some may have been lost: they count again."""
        with self._lock:
            count = self._book.confirm()
            if count:
                self._book.note("access-confirmed", "*", self.closed)
        self.reload()
        return count

    def list(self) -> list[Rule]:
        """Every rule, by user, action and filter."""
        return sorted(self._rules.values(), key=_key)

    def page(self, after: tuple[str, str, str] | None, limit: int | None) -> builtins.list[Rule]:
        """The next of them after a user, an action and a filter."""
        return page_after(tuple(self._rules.values()), _key, after, limit)

    # Deciding

    def may_publish(self, user: str, topic: str) -> bool:
        """Whether a user may publish to a topic."""
        return self._ruling.may_publish(user, topic)

    def may_create(self, user: str, topic: str) -> bool:
        """Whether a user may make a topic that is not there yet."""
        return self._ruling.may_create(user, topic)

    def may_subscribe(self, user: str, filter: str) -> bool:
        """Whether a user may have everything that a filter, without MQTT's `$share/…/` before it, matches."""
        return self._ruling.may_have(user, "subscribe", filter)

    def denies(self, user: str, filter: str) -> bool:
        """Whether a deny rule keeps a user from having something that a filter matches."""
        return self._ruling.denies(user, filter)

    def may_see_some(self, user: str, filter: str) -> bool:
        """Whether a user may have anything of what a filter matches, as far as allow rules tell."""
        return self._ruling.may_see_some(user, filter)

    def is_admin(self, user: str) -> bool:
        """Whether a user may change clients, rules and settings."""
        return self._ruling.is_admin(user)

    def granted(self, user: str, action: Action, filter: str) -> Rule:
        """An allow rule that is stored nowhere, as a token brings it; Malformed (422) if it cannot be one."""
        return self._checked(user, action, filter, allow=True)

    def ruling_with(self, user: str, granted: tuple[Rule, ...]) -> Ruling:
        """What the rules say of a user to whom these are granted as well."""
        return self._ruling.plus(user, granted)

    def check_publish(self, user: str, topic: str) -> None:
        """NotAllowed (403) unless a user may publish to a topic."""
        ruling = self._ruling
        if not ruling.may_publish(user, topic):
            raise ruling.refusal(user, "publish", topic)

    def check_publish_all(self, user: str, names: tuple[str, ...]) -> None:
        """NotAllowed (403) unless a user may publish to all of these topics."""
        ruling = self._ruling
        refused = ruling.first_refused(user, names)
        if refused is not None:
            raise ruling.refusal(user, "publish", refused)

    def check_create(self, user: str, topic: str) -> None:
        """NotAllowed (403) unless a user may make a topic."""
        ruling = self._ruling
        if not ruling.may_create(user, topic):
            raise ruling.refusal(user, "create", topic)

    def check_subscribe(self, user: str, filter: str) -> None:
        """NotAllowed (403) unless a user may have everything that a filter matches."""
        self._check_whole(user, "subscribe", filter)

    def check_channel(self, user: str, filter: str) -> None:
        """NotAllowed (403) unless a user may have everything that a filter matches pushed somewhere."""
        self._check_whole(user, "channel", filter)

    def _check_whole(self, user: str, action: Action, filter: str) -> None:
        ruling = self._ruling
        if not ruling.may_have(user, action, filter):
            raise ruling.refusal(user, action, filter)

    def check_admin(self, user: str) -> None:
        """NotAllowed (403) unless a user may administer."""
        ruling = self._ruling
        if not ruling.is_admin(user):
            raise ruling.refusal(user, "admin", EVERYTHING)

    # Rows

    def _checked(self, user: str, action: Action, filter: str, allow: bool) -> Rule:
        """A rule that can be; Malformed (422) says what is wrong with any other."""
        user = user if user == EVERYONE else check_name(user)
        if action not in ACTIONS:
            raise Malformed(f"{quoted(str(action))} is no action; use one of {', '.join(ACTIONS)}")
        check_filter(filter, self._config)
        if action == "admin" and filter != EVERYTHING:
            raise Malformed(f"an admin rule is about everything; use {EVERYTHING} as its filter, not {quoted(filter)}")
        for level in filter.split("/"):
            if USER_LEVEL in level and level != USER_LEVEL:
                raise Malformed(
                    f"filter {quoted(filter)} has {USER_LEVEL} in level {quoted(level)}; it stands for a client's "
                    f"name as a whole level, as in home/{USER_LEVEL}/temp"
                )
        return Rule(user, action, filter, allow)

    def _put(self, rule: Rule) -> None:
        with self._lock:
            before = self._rules.get(_key(rule))
            if before == rule:
                self._book.check_writable()
                return
            if before is None and len(self._rules) >= self.rules_max:
                raise QuotaExceeded(
                    f"there are {len(self._rules)} rules; join some with wildcards or %u, or remove some"
                )
            self._book.write({key_words(rows.RULE, *_key(rule)): pack(rule)})
            self._rules[_key(rule)] = rule
            self._change(self._written.without(rule, (rule,)))
            self._book.note("rule-allowed" if rule.allow else "rule-denied", rule.user, before, rule)
        self._tell((rule.user,))

    def _change(self, ruling: Ruling) -> None:
        self._written = ruling
        self._ruling = ruling if self.closed is None else Shut(self.closed)
        self.version += 1

    def _tell(self, users: Collection[str]) -> None:
        if self.on_change is not None:
            self.on_change(users)


def _key(rule: Rule) -> tuple[str, str, str]:
    return rule.user, rule.action, rule.filter


def _filled(filter: str, user: str) -> str:
    """A rule's filter with the user's name where it asks for it."""
    if USER_LEVEL not in filter:
        return filter
    return "/".join(user if level == USER_LEVEL else level for level in filter.split("/"))


def _command(verb: str, user: str, action: str, filter: str) -> str:
    """What to type."""
    return f"headwater acl {verb} {_word(user)} {action} {_word(filter)}"


def _word(text: str) -> str:
    return shlex.quote(_plain(text))


def _plain(text: str) -> str:
    """Text with nothing in it that a terminal would obey."""
    return text if text.isprintable() else repr(text)[1:-1]
