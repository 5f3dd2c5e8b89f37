"""What went wrong in a pipeline, in a sentence: where in the user's file, and whether it may pass by itself.

Spark wraps what a task, a planner or the user's own function raised into its own errors, with stacks of Java and of
Python in their text. Here the text is read for what tells a person something: an error of ours, or the line of the
user's file that failed and what Python said there.
"""

from __future__ import annotations

import re
import traceback
from pathlib import Path

import msgspec

from headwater import errors
from headwater.errors import Failed, HeadwaterError

OURS = re.compile(r"headwater\.errors\.(\w+): (\w+\(\d+\): .*)")
PASSING = re.compile(
    r"Python worker exited unexpectedly|Python worker failed to connect back|ExecutorLostFailure|FetchFailed"
)
"""What Spark says when a machine or a process went away, and not the code."""
RAISED = re.compile(r"[A-Za-z_][\w.]*(: .*)?$")
"""The last line of a stack of Python."""
CONDITION = re.compile(r"\[[A-Z_]+(?:\.[A-Z_]+)*\]")
TEXT_MAX = 500
CAUSES_MAX = 10


class Trouble(msgspec.Struct, frozen=True):
    """Why a pipeline does not go on."""

    sentence: str
    is_passing: bool = False
    """Whether it may go better if it is tried again."""


class PipelineFailed(Failed):
    """A pipeline ended."""

    def __init__(self, trouble: Trouble) -> None:
        super().__init__(trouble.sentence)


def trouble_of(error: BaseException, file: str) -> Trouble:
    """What an error says about a pipeline in a file."""
    if isinstance(error, HeadwaterError):
        return Trouble(_at(file, _line_here(error, file), str(error)), error.retryable)
    text, whole = str(error), _with_causes(error)
    ours = said_by_us(whole)
    if ours is not None:
        return ours
    gone = PASSING.search(whole)
    if gone is not None:
        return Trouble(gone[0], is_passing=True)
    there = _in_task(whole, file)
    if there is not None:
        return Trouble(there)
    if type(error).__module__.startswith(("pyspark.", "py4j.")):
        return Trouble(_at(file, _line_here(error, file), _first(text)))
    return Trouble(_at(file, _line_here(error, file), f"{type(error).__name__}: {text}"))


def said_by_us(text: str) -> Trouble | None:
    """An error of ours in what Spark says, as a task or the planner raised it."""
    found = OURS.findall(text)
    if not found:
        return None
    name, said = found[-1]
    kind: type[HeadwaterError] = getattr(errors, name, HeadwaterError)
    return Trouble(said.strip(), kind.retryable)


def _with_causes(error: BaseException) -> str:
    """What an error of Spark says, and what those say that it came from."""
    found: list[str] = []
    cause: object = error
    while cause is not None and len(found) < CAUSES_MAX:
        found.append(str(cause))
        cause = getattr(cause, "_cause", None)
    return "\n".join(reversed(found))


def _line_here(error: BaseException, file: str) -> int | None:
    """The line of the user's file that an error on the driver went through last."""
    if isinstance(error, SyntaxError) and error.filename == file:
        return error.lineno
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
    return lines[-1] if lines else None


def _in_task(text: str, file: str) -> str | None:
    """What the user's function said in a task or in foreachBatch, from the stack of Python in Spark's text."""
    lines = text.splitlines()
    places = [
        (at, int(found[1]))
        for at, line in enumerate(lines)
        if (found := re.search(rf'File "{re.escape(file)}", line (\d+)', line))
    ]
    if not places:
        return None
    at, number = places[-1]
    said = next((line for line in lines[at + 1 :] if RAISED.match(line)), "it failed")
    return _at(file, number, said)


def _at(file: str, line: int | None, text: str) -> str:
    return text if line is None else f"{Path(file).name}:{line}: {text}"


def _first(text: str) -> str:
    """The sentence of an error of Spark, without plans and stacks."""
    found = CONDITION.search(text)
    text = text[found.start() :] if found else text
    text = re.split(r"\n|;\s*$|;\n", text.strip(), maxsplit=1)[0]
    return text[:TEXT_MAX]
