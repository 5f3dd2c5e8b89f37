"""Damage to the files of a folder, by kind and place, and the judge who says what became of it.

    for case in cases(image, 2000): judge(image, whole, case, somewhere)

A verdict is one of: **refused**, the folder does not open and a typed error says why; **told**, something is gone, and
an event or a gap says so; **mended**, all is there, and something was said about it; **harmless**, all is there.
Whatever else comes of it fails the test: an error without a type, a message that nobody published, an offset that is
used twice, an ack that is forgotten in silence.
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Literal

from faults.lived_in import ROOTS, Image, Place, Seen, look, visit, visiting
from headwater.cli.verify import _verify_state_here, _walk
from headwater.errors import Damaged, HeadwaterError, Malformed
from headwater.store.batch import MAGIC
from headwater.store.files import DiskFiles

Verdict = Literal["refused", "told", "mended", "harmless"]
VERDICTS: tuple[Verdict, ...] = ("refused", "told", "mended", "harmless")
PAGE_BYTES = 512
"""What is zeroed and swapped: the files are small."""
SAYS_NOTHING = ("gap", "dead", "expired", "torn", "retention", "clock")
"""Events that do not say that something went bad."""


# What is damaged

Find = Callable[[Image], list[str]]


def named(*ends: str, within: str = "") -> Find:
    return lambda image: [path for path in image.files if path.startswith(within) and path.endswith(ends)]


def tables(begins: str) -> Find:
    return lambda image: [path for path in image.files if path.startswith(f"state/{begins}")]


PLACES: dict[str, Find] = {
    "VERSION": named("VERSION"),
    "manifest": named("manifest"),
    "watermarks": named("watermarks"),
    "journal": named("journal"),
    "owner.lock": named("owner.lock"),
    "state.synced": named("state.synced"),
    "hand-outs": named("hand-outs"),
    "archived": named("", within="archived/"),
    "quarantine": named("", within="quarantine/"),
    "segment": named(".log", within="streams/"),
    "index": named(".idx", within="streams/"),
    "RocksDB log": named(".log", within="state/"),
    "RocksDB table": named(".sst", within="state/"),
    "RocksDB MANIFEST": tables("MANIFEST"),
    "RocksDB CURRENT": tables("CURRENT"),
    "RocksDB OPTIONS": tables("OPTIONS"),
    "RocksDB others": lambda image: [
        path
        for path in image.files
        if path.startswith("state/") and not path.endswith((".log", ".sst", "LOCK")) and "-0" not in path
    ],
}
OFTEN = ("segment", "segment", "segment", "journal", "index", "manifest", "watermarks", "RocksDB log", "RocksDB table")
"""These are damaged more often than others."""


@dataclass
class Case:
    """One damage."""

    number: int
    place: str
    kind: str
    path: str
    do: Callable[[str], None] = field(repr=False)
    detail: str = ""

    def __str__(self) -> str:
        return f"case {self.number}: {self.kind} of {self.path} {self.detail}".rstrip()


def cases(image: Image, count: int) -> Iterator[Case]:
    """So many of them, the same for the same image; every place and kind has its turn."""
    places = [place for place, find in PLACES.items() if find(image)]
    places += [place for place in OFTEN if place in places]
    turns = [(place, kind) for place in places for kind in KINDS]
    turns += [("folder", kind) for kind in FOLDER_KINDS] * 4
    random.Random(1).shuffle(turns)
    for number in range(count):
        place, kind = turns[number % len(turns)]
        rng = random.Random(number)
        if place == "folder":
            yield FOLDER_KINDS[kind](image, rng, number)
        else:
            path = rng.choice(PLACES[place](image))
            yield KINDS[kind](image, rng, Case(number, place, kind, path, lambda folder: None))


def _change(case: Case, change: Callable[[bytearray], object], detail: str = "") -> Case:
    def do(folder: str) -> None:
        with open(f"{folder}/{case.path}", "r+b") as file:
            data = bytearray(file.read())
            change(data)
            file.seek(0)
            file.truncate()
            file.write(data)

    case.do, case.detail = do, detail
    return case


def _used(image: Image, path: str) -> int:
    """Where the zeros begin that a file ends with; damage to what is before is the more interesting."""
    return len(image.files[path].rstrip(b"\0")) or len(image.files[path])


def flip(image: Image, rng: random.Random, case: Case) -> Case:
    """One bit."""
    size = _used(image, case.path) if rng.random() < 0.9 else len(image.files[case.path])
    return _flip(case, rng, rng.randrange(max(1, size)))


def flip_in_header(image: Image, rng: random.Random, case: Case) -> Case:
    """One bit of what a batch, an entry or a file begins with."""
    data = image.files[case.path]
    starts = [at for at in range(0, len(data), 8) if data.startswith(MAGIC, at)] or [0]
    return _flip(case, rng, min(rng.choice(starts) + rng.randrange(64), max(0, len(data) - 1)))


def _flip(case: Case, rng: random.Random, at: int) -> Case:
    bit = rng.randrange(8)

    def change(data: bytearray) -> None:
        if at < len(data):
            data[at] ^= 1 << bit

    return _change(case, change, f"at byte {at}, bit {bit}")


def truncate(image: Image, rng: random.Random, case: Case) -> Case:
    """Shorter, to nothing at times."""
    size = rng.choice([0, rng.randrange(_used(image, case.path) + 1), rng.randrange(_used(image, case.path) + 1)])
    return _change(case, lambda data: data.__delitem__(slice(size, None)), f"to {size} bytes")


def truncate_at_batch(image: Image, rng: random.Random, case: Case) -> Case:
    """Shorter, at the start of a batch, a line or an entry, so that what is left looks whole."""
    data = image.files[case.path]
    starts = [at for at in range(0, len(data), 8) if data.startswith(MAGIC, at)]
    starts = (
        starts or [at + 1 for at in range(len(data)) if data[at : at + 1] == b"\n"] or list(range(0, len(data), 24))
    )
    size = rng.choice(starts or [0])
    return _change(case, lambda data: data.__delitem__(slice(size, None)), f"to {size} bytes")


def delete(image: Image, rng: random.Random, case: Case) -> Case:
    """Gone."""
    case.do = lambda folder: os.remove(f"{folder}/{case.path}")
    return case


def zero(image: Image, rng: random.Random, case: Case) -> Case:
    """A page of zeros."""
    at = rng.randrange(_used(image, case.path) // PAGE_BYTES + 1) * PAGE_BYTES
    size = len(image.files[case.path])
    end = min(at + PAGE_BYTES, size)
    return _change(case, lambda data: data.__setitem__(slice(at, end), bytes(end - at)), f"from {at} to {end}")


def swap(image: Image, rng: random.Random, case: Case) -> Case:
    """Two pages, each in the other's place."""
    size = _used(image, case.path)
    page = min(PAGE_BYTES, max(8, size // 16 * 8))
    first, second = (rng.randrange(max(1, size // page)) * page for _ in range(2))

    def change(data: bytearray) -> None:
        one, other = data[first : first + page], data[second : second + page]
        length = min(len(one), len(other))
        data[first : first + length], data[second : second + length] = other[:length], one[:length]

    return _change(case, change, f"{page} bytes at {first} and {second}")


def append(image: Image, rng: random.Random, case: Case) -> Case:
    """Garbage at the end."""
    garbage = rng.choice([rng.randbytes(rng.randrange(1, 200)), image.files[case.path][-64:], b"\n", b"\0" * 100])
    return _change(case, lambda data: data.extend(garbage), f"{len(garbage)} bytes")


def scribble(image: Image, rng: random.Random, case: Case) -> Case:
    """Garbage in the middle."""
    at = rng.randrange(_used(image, case.path) + 1)
    garbage = rng.randbytes(rng.randrange(1, 200))
    return _change(case, lambda data: data.__setitem__(slice(at, at + len(garbage)), garbage), f"from {at} on")


def duplicate(image: Image, rng: random.Random, case: Case) -> Case:
    """The same content under a second name, which another file may have had."""
    beside = [path for path in PLACES[case.place](image) if path != case.path]
    names = [f"{case.path}~", f"{case.path} (1)", *rng.sample(beside, min(2, len(beside)))]
    if case.place in ("segment", "index"):
        folder, name = os.path.split(case.path)
        base = int(name[:20]) + rng.randrange(1, 12)
        names += [f"{folder}/{base:020d}{name[20:]}"] * 2
    other = rng.choice(names)
    case.do = lambda folder: (shutil.copyfile(f"{folder}/{case.path}", f"{folder}/{other}"), None)[1]
    case.detail = f"as {other}"
    return case


KINDS: dict[str, Callable[[Image, random.Random, Case], Case]] = {
    "flip": flip,
    "flip in a header": flip_in_header,
    "truncation": truncate,
    "truncation at a boundary": truncate_at_batch,
    "deletion": delete,
    "zeroed page": zero,
    "swapped pages": swap,
    "garbage appended": append,
    "garbage within": scribble,
    "duplicate": duplicate,
}


def _folders(image: Image) -> list[str]:
    return [path for path in image.folders if path != "archived"]


def delete_folder(image: Image, rng: random.Random, number: int) -> Case:
    """A folder with all that is in it; a lake's mark is removed by operators, and means what they mean by it."""
    path = rng.choice(_folders(image))
    return Case(number, "folder", "deletion", path, lambda folder: shutil.rmtree(f"{folder}/{path}"))


def empty_folder(image: Image, rng: random.Random, number: int) -> Case:
    """All files of a folder."""
    path = rng.choice(_folders(image))

    def do(folder: str) -> None:
        for name in os.listdir(f"{folder}/{path}"):
            if os.path.isfile(f"{folder}/{path}/{name}"):
                os.remove(f"{folder}/{path}/{name}")

    return Case(number, "folder", "emptying", path, do)


def duplicate_folder(image: Image, rng: random.Random, number: int) -> Case:
    """A stream's folder under a second name."""
    path = rng.choice([path for path in image.folders if path.startswith("streams/")])
    stream, _, root = path.removeprefix("streams/").partition("-")
    names = [f"{path} (copy)", f"{path}.bak", f"streams/99-{root}", f"streams/{stream}-other", f"{path}=ZZ"]
    other = rng.choice(names)
    return Case(
        number,
        "folder",
        "duplicate",
        path,
        lambda folder: (shutil.copytree(f"{folder}/{path}", f"{folder}/{other}"), None)[1],
        f"as {other}",
    )


FOLDER_KINDS = {"deletion": delete_folder, "emptying": empty_folder, "duplicate": duplicate_folder}


# The judge


def judge(image: Image, whole: Seen, case: Case, folder: str) -> Verdict:
    """Damage a copy of the folder, open it, and see what became of it."""
    image.put(folder)
    try:
        case.do(folder)
        verified = _verified(folder)
        looked_at = _looked_at(folder, whole, case)
        try:
            with visiting(folder) as bus:
                seen = visit(bus)
        except HeadwaterError as error:
            assert isinstance(error, Damaged | Malformed), f"{case}: refused for another reason ({error!r})"
            assert len(str(error)) > 40, f"{case}: an error that says little ({error})"
            return "refused"
        said = [text for kind, text in seen.events if kind not in SAYS_NOTHING]
        gone, lost = _gone(whole, seen, case), _lost(whole, seen, case)
        assert said or not lost, f"{case}: no event says that {lost[:3]}"
        assert verified or not (gone or lost), f"{case}: verify does not say that {(gone + lost)[:3]}"
        _check_next_life(folder, seen, case)
        return "told" if gone or lost else "mended" if said or verified or looked_at else "harmless"
    finally:
        shutil.rmtree(folder)


def _verified(folder: str) -> list[str]:
    """What `headwater verify` says, which is read-only."""
    try:
        report = _walk(DiskFiles(), folder)
        state = _verify_state_here(DiskFiles(), folder)
    except HeadwaterError as error:
        return [str(error)]
    return [*report.troubles, *state.troubles] + [
        damage.reason for stream in report.streams for damage in stream.damages if not damage.is_known
    ]


def _looked_at(folder: str, whole: Seen, case: Case) -> list[str]:
    """What somebody says who reads beside an owner that is not there."""
    try:
        with visiting(folder, read_only=True) as bus:
            seen = look(bus)
    except HeadwaterError as error:
        return [str(error)]
    # What is in the journal alone is not there for readers before the next owner puts it back.
    unread = Seen(
        gaps={root: [(end + 1, whole.ends[root])] for root, end in seen.ends.items() if end < whole.ends[root]}
    )
    _gone(whole, seen, case, unread)
    return []


def _gone(whole: Seen, seen: Seen, case: Case, unread: Seen | None = None) -> list[str]:
    """Messages that are gone, of which readers are told; wrong ones, or ones gone in silence, fail the test."""
    for place, message in seen.messages.items():
        assert whole.messages.get(place) == message, f"{case}: {place} is {message[0]!r} {message[1][:40]!r}"
    gone = whole.messages.keys() - seen.messages.keys()
    for place in gone:
        assert seen.has_gap(place) or (unread and unread.has_gap(place)), f"{case}: {place} is gone in silence"
    return [f"{place} is gone" for place in sorted(gone)]


def _lost(whole: Seen, seen: Seen, case: Case) -> list[str]:
    """What else is gone, in words; what must never be fails the test."""
    for root, offset in seen.published.items():
        assert offset > whole.ends[root], f"{case}: offset {offset} of {root} is given a second time"
    lost = list(_lost_of_subscriptions(whole, seen, case))
    for topic, kept in whole.retained.items():
        if seen.retained.get(topic) != kept:
            lost.append(f"the retained message of {topic} is {seen.retained.get(topic)}")
    for topic, kept in seen.retained.items():
        published = whole.messages.get((topic.partition("/")[0], kept[0]))
        assert published == (topic, kept[1]), f"{case}: {topic} keeps {kept}"
    if seen.topics != whole.topics and seen.gaps == whole.gaps:
        lost.append(f"the topics are {seen.topics}")
    for sequence, (is_known, offset) in seen.repeats.items():
        if is_known:
            assert (is_known, offset) == whole.repeats[sequence], f"{case}: sequence {sequence} stands at {offset}"
        else:
            lost.append(f"sequence {sequence} of a producer is forgotten")
    if isinstance(seen.committed, str):
        assert seen.gaps.get("$staged") or lost, f"{case}: what was staged is not there ({seen.committed})"
    for what, value in whole.others.items():
        # Operators remove a lake's mark when they give the lake up: that is what it means.
        if seen.others[what] != value and not (what == "marks" and seen.others[what] == {}):
            lost.append(f"{what} are {seen.others[what]} instead of {value}")
    return lost


def _lost_of_subscriptions(whole: Seen, seen: Seen, case: Case) -> Iterator[str]:
    for id, owed in whole.pending.items():
        if id not in seen.pending:
            yield f"subscription {id} is gone"
            continue
        got = seen.pending[id]
        again: set[Place] = set(got) - set(owed)
        if again or len(set(got)) != len(got):
            yield f"acked deliveries came again to {id}: {sorted(again)[:5]}"
        never = {place for place in set(owed) - set(got) if not seen.has_gap(place)}
        assert not never, f"{case}: {id} never got {sorted(never)[:5]}"
        letters = seen.letters[id]
        for place, content in whole.letters[id].items():
            if place not in letters:
                yield f"the dead letter {place} of {id} is gone"
            else:
                assert letters[place] == content, f"{case}: the dead letter {place} has other contents"


def _check_next_life(folder: str, seen: Seen, case: Case) -> None:
    """The next opening finds what this one left: what was published since, and the same gaps."""
    with visiting(folder) as bus:
        again = look(bus)
    for root, offset in seen.published.items():
        assert again.messages.get((root, offset)) == (f"{root}/new", b"new"), f"{case}: {root} {offset} was not kept"
    for place, message in seen.messages.items():
        if place[0] in ROOTS:  # what waited in a root of the broker's own waits no more
            assert again.messages.get(place) == message, f"{case}: {place} is gone in the next life"
    for root in ROOTS:
        before, after = _offsets(seen.gaps.get(root, [])), _offsets(again.gaps.get(root, []))
        assert before == after, f"{case}: the gaps of {root} were {before}, and are {after}"


def _offsets(gaps: list[tuple[int, int]]) -> set[int]:
    return {offset for first, last in gaps for offset in range(first, last + 1)}
