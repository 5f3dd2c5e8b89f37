"""Names of clients: which are well formed, and how errors show them.

A name stands where rules are matched (`%u`), in URLs and in errors. So nothing that means something in a filter is
part of one, and two names that look the same are the same: they are compared in Unicode's normal form C.
"""

from __future__ import annotations

import unicodedata

from headwater.errors import Malformed

NAME_CHARS_MAX = 64
"""Longer names: Malformed (422)."""

EVERYONE = "*"
"""In a rule: every client."""

INNER = "$admin"
"""The server's own process that serves HTTP: it may do everything, and no client can have this name."""

_RESERVED = "/+#*%"
"""Wildcards and separators of filters, everyone, and what begins `%u`."""

_UNSEEN = frozenset(("Cc", "Cf", "Cs", "Zl", "Zp"))
"""Controls, reversed writing and other invisible characters, lone surrogates, ends of lines."""

_SHOWN_CHARS = 80  # of a bad name in an error


def check_name(name: str) -> str:
    """A client's name in normal form; Malformed (422) says what is wrong with one that cannot be."""
    if not isinstance(name, str):
        raise Malformed(f"the name of a client is a str such as sensor-7, not {type(name).__name__}")
    if not name:
        raise Malformed("the name of a client is empty; give it one, such as sensor-7")
    if len(name) > NAME_CHARS_MAX:
        raise Malformed(f"client name {quoted(name)} has {len(name)} characters; use at most {NAME_CHARS_MAX}")
    for char in name:
        if char in _RESERVED:
            raise Malformed(
                f"client name {quoted(name)} contains {char}, which means something in rules; use letters, digits, -"
            )
    if has_unseen(name):
        raise Malformed(f"client name {quoted(name)} contains an invisible or control character; leave it out")
    if name.startswith("$"):
        raise Malformed(f"client name {quoted(name)} begins with $, as the broker's own topics do; begin with a letter")
    if name != name.strip():
        raise Malformed(f"client name {quoted(name)} begins or ends with a space; leave it out")
    normal = unicodedata.normalize("NFC", name)
    if len(normal) > NAME_CHARS_MAX:
        raise Malformed(f"client name {quoted(name)} is too long in normal form; use at most {NAME_CHARS_MAX}")
    return normal


def has_unseen(text: str) -> bool:
    """Whether a text has characters in it that nobody sees, or that cannot be written."""
    return any(unicodedata.category(char) in _UNSEEN for char in text)


def is_name(name: str) -> bool:
    """Whether it is a client's name, in normal form."""
    try:
        return check_name(name) == name
    except Malformed:
        return False


def quoted(text: str) -> str:
    """Text as an error shows it: cut to a readable length, what is unprintable escaped."""
    cut = text if len(text) <= _SHOWN_CHARS else text[:_SHOWN_CHARS] + "…"
    return f'"{repr(cut)[1:-1]}"'
