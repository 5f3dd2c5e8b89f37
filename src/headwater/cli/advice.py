"""Rewrites the advice of errors for the command line: commands in place of calls in Python."""

from __future__ import annotations

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
    r"\bexpire_after_s is (.*?); use seconds above 0, or None\b": r"--expire-after-s is \1; say more, or leave it out",
    r"\bttl_s is (.*?); use seconds above 0, or None\b": r"--ttl-s is \1; use more than 0, or leave it out",
    r"_s is (.*?); use seconds from 0, or None\b": r"_s is \1; use seconds from 0, or leave it out",
}
"""What is said, and what is said instead."""


def at_the_command_line(sentence: str) -> str:
    """The same sentence, with commands in place of calls."""
    for python, instead in IN_PYTHON.items():
        sentence = re.sub(python, instead, sentence)
    return sentence
