"""The seed of a folder, found again in the segments that were sealed with it.

A CRC can be run backwards, so whoever sees a whole header can tell the seed that its CRC began with. That is why the
CRC of a header never leaves the folder, and why a VERSION that is lost can be written again.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterator
from itertools import islice

import google_crc32c

from headwater.store.batch import COVERED_FROM, HEADER, HEADER_BYTES_MAX, MAGIC, BadBatch, Seed, checksum, open_body
from headwater.store.files import File, Files
from headwater.store.segment import Segment, bases, header_at, walk

WITNESSES = 2
"""Batches that must agree on a seed; one alone may have a damaged header."""

ONES = 0xFFFFFFFF
STEPS = [google_crc32c.extend(ONES, bytes([index])) ^ ONES for index in range(256)]
STEP_WITH_TOP = {step >> 24: index for index, step in enumerate(STEPS)}
ZEROS = bytes(4)


def crc_before(crc: int, data: bytes) -> int:
    """The CRC32C from which these bytes led to this one."""
    register = crc ^ ONES
    for byte in reversed(data):
        index = STEP_WITH_TOP[register >> 24]
        register = (register ^ STEPS[index]) << 8 & ONES | index ^ byte
    return register ^ ONES


def secret_with(seed: Seed) -> bytes:
    """Bytes that a folder could have been made with, if this is its seed."""
    return ZEROS + (checksum(ZEROS) ^ crc_before(seed, ZEROS)).to_bytes(4, "little")


def seed_within(files: Files, folder: str, expected: Seed | None = None) -> Seed | None:
    """The seed of a folder's segments: the expected one, if any begins with it; None if too few are whole to tell."""
    witnesses: Counter[Seed] = Counter()
    for file in _segments(files, f"{folder}/streams"):
        if expected is not None and header_at(expected, file, 0) is not None:
            return expected
        seed = _seed_behind(file)
        if seed is not None:
            witnesses[seed] += _whole(seed, file)
            if witnesses[seed] >= WITNESSES:
                return seed
    return None


def _segments(files: Files, streams: str) -> Iterator[File]:
    for name in files.list(streams):
        for base in bases(files, f"{streams}/{name}"):
            try:
                file = files.open(Segment(f"{streams}/{name}", base).log_path, write=False)
            except FileNotFoundError:
                continue  # its owner deletes what got old
            try:
                yield file
            finally:
                file.close()


def _seed_behind(file: File) -> Seed | None:
    """The seed with which the header at the start of a file would be right."""
    data = file.pread(HEADER_BYTES_MAX, 0)
    if len(data) < HEADER.size or not data.startswith(MAGIC):
        return None
    crc, header_bytes = struct.unpack_from("<II", data, len(MAGIC))
    return Seed(crc_before(crc, data[COVERED_FROM:header_bytes]))


def _whole(seed: Seed, file: File) -> int:
    """How many batches at the start of a file are whole with a seed, of as many as are needed."""
    count = 0
    for _, header, stored in islice(walk(seed, file, 0), WITNESSES):
        try:
            open_body(header, stored)
        except BadBatch:
            break
        count += 1
    return count
