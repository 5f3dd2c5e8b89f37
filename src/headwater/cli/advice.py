"""Rewrites the advice of errors for the command line: commands in place of calls in Python."""

from __future__ import annotations

import errno
import re

IN_PYTHON = {
    r", or open it here with read_only=True": "",
    r"; a bus makes it with headwater\.open\(.*?\)$": "; headwater init makes one, and so does the first headwater pub",
    r'\bunsubscribe\("(.*?)"\) first': r"headwater subs delete \1 first",
    r"\bbus\.subscriptions\(\) lists": "headwater subs lists",
    r"\bbus\.schedules\(\) lists": "headwater schedule list shows",
    r"\bbus\.schemas\(\) lists": "headwater schemas list shows",
    r', or look at nothing that is stored: check="none"': ", or say --check none",
    r"\bbus\.topics\(\) lists": "headwater topics shows",
    r'\bsee bus\.dead_letters\("(.*?)"\)': r"see headwater dead list \1",
    r"\buse after=\{root: offset\}, or since=datetime": "say --after ROOT=OFFSET for each, or --since",
    r"\ba sequence needs a producer: publish\(.*?\)": "--sequence needs --producer NAME",
    r'; read faster, or subscribe with when_full="drop_oldest" or with an id': "; read faster, or say --id NAME",
    r'; read on to continue after them, or subscribe with on_gap="skip".*': "",
    r"; open it without read_only=True": "",
    r"; use bus\.stage and bus\.commit_stage instead": "; publish to another topic",
    r"\bclose those that nobody reads any more \(`with .*?` does\)": "end commands that nobody reads",
    r"\bask with bus\.request, which waits below (\S+), or grant": r"have answers sent below \1, or grant",
    r" \(in Python also None\)": "",
    r"\bremove it by force": "say --force",
    r"; a folder is opened in this process, by headwater\.open": "; a folder is named with --data",
    r"\bremove it with force, which": "say --force, which",
    r"\bclose them, or force it": "end them, or say --force",
    r"\bexpire_after_s is (.*?); use seconds above 0, or None\b": r"--expire-after-s is \1; say more, or leave it out",
    r"\bttl_s is (.*?); use seconds above 0, or None\b": r"--ttl-s is \1; use more than 0, or leave it out",
    r"_s is (.*?); use seconds from 0, or None\b": r"_s is \1; use seconds from 0, or leave it out",
}
"""What is said, and what is said instead."""


OF_THE_SYSTEM = {
    errno.EROFS: "its disk is mounted to be read only; have it mounted to be written, or name another place",
    errno.EACCES: "this user may not do that there; do it as the user whose it is, or name another place",
    errno.EPERM: "this user may not do that there; do it as the user whose it is, or name another place",
    errno.ENOSPC: "its disk is full; make room there, or name another place",
    errno.EDQUOT: "this user's share of its disk is used up; make room there, or name another place",
    errno.ENOENT: "there is no such file or folder",
    errno.ENOTDIR: "it leads through a file; name another place",
    errno.EISDIR: "it is a folder; name a file",
}
"""What an error of the machine means for who typed a command."""
IN_THE_MAKING = ".tmp"


def of_the_system(error: OSError) -> str:
    """What to say of an error of the machine: about which file, and what to do."""
    said = error.strerror or str(error)
    if not error.filename:
        return f"what is shown cannot be written: {said}" if error.errno == errno.ENOSPC else said
    name = str(error.filename).removesuffix(IN_THE_MAKING)
    return f'"{name}": {OF_THE_SYSTEM.get(error.errno or 0, said)}'


def at_the_command_line(sentence: str) -> str:
    """The same sentence, with commands in place of calls."""
    for python, instead in IN_PYTHON.items():
        sentence = re.sub(python, instead, sentence)
    return sentence
