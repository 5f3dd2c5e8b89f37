"""Topic names and filters: which are well formed, and which filter matches which topic.

A topic is a path of levels, `home/kitchen/temp`; its first level is its root. Levels may be empty: the root of `/a`
is the empty string. In a filter, `+` stands for any one level, and `#`, last, for the level before it and everything
below. The rules are those of MQTT 5, section 4.7: a wildcard as the first level matches no topic that begins with `$`.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable

from headwater.config import Config
from headwater.errors import Malformed

SHARE = "$share"
"""How a shared subscription of MQTT begins."""
_SHOWN_CHARS = 80  # of a bad name in an error


_NOT_IN_A_LEVEL = re.compile(r"[%/+#*~\x00-\x1f\x7f]+")
DIGEST_CHARS = 16


def check_topic(topic: str, config: Config) -> str:
    """The root of a topic that can be published to; Malformed (422) says what is wrong with any other."""
    root = _check_levels("topic", topic, config)
    if "+" in topic or "#" in topic:
        raise Malformed(
            f"topic {_shown(topic)} contains + or #, which only filters may; publish to one topic, without wildcards"
        )
    if root == SHARE:
        raise Malformed(f'topic {_shown(topic)} begins with "{SHARE}", where nobody can subscribe; leave it out')
    return root


def check_filter(filter: str, config: Config) -> str:
    """The first level of a filter that can be subscribed to; Malformed (422) says what is wrong with any other."""
    first = _check_levels("filter", filter, config)
    if first == SHARE:
        raise Malformed(
            f"filter {_shown(filter)} is a shared subscription of MQTT; "
            "to share the messages of one subscription, give several consumers the same id"
        )
    if "+" in filter or "#" in filter or "*" in filter:
        _check_wildcards(filter)
    return first


def root_of(topic: str) -> str:
    """The first level of a topic."""
    return topic.partition("/")[0]


def level_of(name: str, bytes_max: int) -> str:
    """A name as one level of a topic: what a level may not have is written as in a URL; one that gets longer than so
    many bytes ends in a digest of the whole."""
    level = _NOT_IN_A_LEVEL.sub(lambda found: "".join(f"%{byte:02X}" for byte in found[0].encode()), name)
    if len(level.encode()) <= bytes_max:
        return level
    digest = hashlib.sha256(name.encode()).hexdigest()[:DIGEST_CHARS]
    return level.encode()[: bytes_max - DIGEST_CHARS - 1].decode(errors="ignore") + "~" + digest


def root_of_filter(filter: str) -> str | None:
    """The one root whose topics a filter can match; None if its first level is a wildcard."""
    first = filter.partition("/")[0]
    return None if first in {"+", "#"} else first


def is_wild(filter: str) -> bool:
    """Whether a filter can match more than the one topic that is spelled like it."""
    return "+" in filter or filter.endswith("#")


def filter_covers_root(filter: str, root: str) -> bool:
    """Whether a filter could match any topic of a root."""
    first = filter.partition("/")[0]
    return first == root or (first in {"+", "#"} and not root.startswith("$"))


def matches(filter: str, topic: str) -> bool:
    """Whether a filter matches a topic; both are well formed."""
    if filter == topic:
        return True
    if topic.startswith("$") and filter.startswith(("+", "#")):
        return False
    levels = topic.split("/")
    wanted = filter.split("/")
    for want, level in zip(wanted, levels, strict=False):
        if want == "#":
            return True
        if want not in ("+", level):
            return False
    return len(wanted) == len(levels) or (wanted[-1] == "#" and len(wanted) == len(levels) + 1)


def compile_filter(filter: str) -> Callable[[str], bool]:
    """`matches` of one filter, made once to be asked often."""
    if not is_wild(filter):
        return filter.__eq__
    if filter == "#":
        return _is_ordinary
    if "+" in filter:
        return _compile_pluses(filter)
    parent = filter.removesuffix("/#")
    below = parent + "/"
    return lambda topic: topic.startswith(below) or topic == parent


def _compile_pluses(filter: str) -> Callable[[str], bool]:
    wanted = filter.split("/")
    open_ended = wanted[-1] == "#"
    if open_ended:
        wanted.pop()
    start = filter[: filter.index("+")]
    count = len(wanted)
    fixed = [(place, level) for place, level in enumerate(wanted) if level != "+"]

    def test(topic: str) -> bool:
        if not topic.startswith(start) or (not start and topic.startswith("$")):
            return False
        levels = topic.split("/")
        if len(levels) != count and not (open_ended and len(levels) > count):
            return False
        for place, level in fixed:  # a loop, for `all` and its generator take twice as long
            if levels[place] != level:
                return False
        return True

    return test


def _is_ordinary(topic: str) -> bool:
    return not topic.startswith("$")


def _check_levels(kind: str, name: str, config: Config) -> str:
    """The first level, after the checks that topics and filters share."""
    if not isinstance(name, str):
        raise Malformed(f"a {kind} is a str such as home/kitchen/temp, not {type(name).__name__}; decode bytes first")
    if not name:
        raise Malformed(f"the {kind} is empty; give it at least one level, such as home/kitchen/temp")
    if "\0" in name:
        raise Malformed(f"{kind} {_shown(name)} contains a NUL character; leave it out")
    size = _utf8_bytes(kind, name)
    if size > config.topic_bytes_max:
        raise Malformed(
            f"{kind} {_shown(name)} has {size} bytes; use at most {config.topic_bytes_max}, or raise topic_bytes_max"
        )
    levels = name.count("/") + 1
    if levels > config.topic_levels_max:
        raise Malformed(
            f"{kind} {_shown(name)} has {levels} levels; "
            f"use at most {config.topic_levels_max}, or raise topic_levels_max"
        )
    first = name.partition("/")[0]
    size = _utf8_bytes(kind, first)
    if size > config.root_bytes_max:
        raise Malformed(
            f"the first level of {kind} {_shown(name)} has {size} bytes; "
            f"use at most {config.root_bytes_max}, or raise root_bytes_max"
        )
    return first


def _check_wildcards(filter: str) -> None:
    levels = filter.split("/")
    for level in levels:
        if level == "*":
            raise Malformed(
                f"filter {_shown(filter)} has a level *; use + for any one level, or # at the end for the rest"
            )
        if level != "+" and "+" in level:
            raise Malformed(
                f"filter {_shown(filter)} has + in level {_shown(level)}; + stands for a whole level, as in home/+/temp"
            )
        if level != "#" and "#" in level:
            raise Malformed(
                f"filter {_shown(filter)} has # in level {_shown(level)}; # stands for whole levels, as in home/#"
            )
    if "#" in levels[:-1]:
        raise Malformed(f"filter {_shown(filter)} goes on after #; # is the last level, use + for one level in between")


def _utf8_bytes(kind: str, name: str) -> int:
    if name.isascii():
        return len(name)
    try:
        return len(name.encode())
    except UnicodeEncodeError as error:
        raise Malformed(
            f"{kind} {_shown(name)} cannot be written as UTF-8 (a lone surrogate at character {error.start}); "
            "decode it from bytes with the right encoding"
        ) from None


def _shown(name: str) -> str:
    """A name as an error shows it: cut to a readable length, what is unprintable escaped."""
    cut = name if len(name) <= _SHOWN_CHARS else name[:_SHOWN_CHARS] + "…"
    return f'"{repr(cut)[1:-1]}"'


def beginning_of(filter: str) -> str:
    """What the name of every topic begins with that a filter matches."""
    return filter.partition("+")[0].removesuffix("#").removesuffix("/") if is_wild(filter) else filter


def is_everything_of(filter: str, root: str) -> bool:
    """Whether a filter matches every topic of a root."""
    return filter == f"{root}/#" or (filter in ("#", "+/#") and not root.startswith("$"))


def is_utf8(text: str) -> bool:
    """Whether a text can be written as UTF-8: it has no lone surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def filter_covers(outer: str, inner: str) -> bool:
    """Whether one filter matches every topic that another matches; both are well formed."""
    wide, wide_is_open = _shape(outer)
    narrow, narrow_is_open = _shape(inner)
    if len(wide) > len(narrow) or (not wide_is_open and (narrow_is_open or len(wide) < len(narrow))):
        return False
    if wide[0] == "+" and narrow[0].startswith("$"):
        return False
    for want, level in zip(wide, narrow, strict=False):
        if want not in ("+", level):
            return False
    return True


def filters_overlap(a: str, b: str) -> bool:
    """Whether there could be a topic that both filters match; both are well formed."""
    ours, ours_is_open = _shape(a)
    theirs, theirs_is_open = _shape(b)
    if (len(ours) < len(theirs) and not ours_is_open) or (len(theirs) < len(ours) and not theirs_is_open):
        return False
    if (ours[0] == "+" and theirs[0].startswith("$")) or (theirs[0] == "+" and ours[0].startswith("$")):
        return False
    for one, other in zip(ours, theirs, strict=False):
        if one != other and "+" not in (one, other):
            return False
    return True


def _shape(filter: str) -> tuple[list[str], bool]:
    """The levels that a topic must have at least, and whether it may have more.

    No topic is empty: what `#` matches has a first level, and what `/#` matches has a second.
    """
    levels = filter.split("/")
    if levels[-1] != "#":
        return levels, False
    levels.pop()
    if levels in ([], [""]):
        levels.append("+")
    return levels, True
