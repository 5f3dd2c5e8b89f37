"""Rehearsals: recorded messages are read and handed to a shadow, with threads and with asyncio."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from datetime import datetime
from typing import Any

from headwater.delivery.replay import After
from headwater.errors import Gap, HeadwaterError
from headwater.message import Message
from headwater.work.comparison import Comparison, Outcome
from headwater.work.handlers import Function, check_run
from headwater.work.shadow import Shadow, Tries, listened_to, plain_envelope

BATCH = 100
"""Messages that are read at once."""


def rehearse(bus: Any, shadow: Shadow, after: After, since: datetime | None) -> Comparison:
    """Have each message handled, and compare."""
    with listened_to(bus, is_asynchronous=False):
        for message in _read(bus.replay(shadow.past.options.filter, after=after, since=since), shadow):
            if not shadow.wants():
                break
            shadow.note(message, [_outcome(code, shadow.tries(message)) for code in shadow.codes])
    for search in shadow.searches:
        try:
            for message in _read(bus.replay(search.filter, since=search.since), shadow):
                search.take(message)
        except HeadwaterError as error:
            shadow.miss(f'{search.what}, on "{search.filter}", could not be read: {error}')
    return shadow.comparison()


def _outcome(code: Function, tries: Tries) -> Outcome:
    given, error = next(tries), None
    while True:
        try:
            check_run(code(given))
            error = None
        except (Exception, SystemExit) as raised:
            error = raised
        try:
            given = tries.send(error)
        except StopIteration as end:
            found: Outcome = end.value
            return found


def _read(reading: Any, shadow: Shadow) -> Iterator[Message]:
    with reading:
        while True:
            try:
                found = reading.batch(BATCH)
            except Gap as gap:
                shadow.miss(str(gap))
                continue
            if not found:
                return
            yield from map(plain_envelope, found)


async def rehearse_async(
    bus: Any, shadow: Shadow, after: After, since: datetime | None, awaitable: Callable[[Message], Any]
) -> Comparison:
    """The same with coroutine functions; `awaitable` gives a message verbs that are coroutines."""
    with listened_to(bus, is_asynchronous=True):
        async for message in _read_async(bus.replay(shadow.past.options.filter, after=after, since=since), shadow):
            if not shadow.wants():
                break
            shadow.note(message, [await _awaited(code, shadow.tries(message), awaitable) for code in shadow.codes])
    for search in shadow.searches:
        try:
            async for message in _read_async(bus.replay(search.filter, since=search.since), shadow):
                search.take(message)
        except HeadwaterError as error:
            shadow.miss(f'{search.what}, on "{search.filter}", could not be read: {error}')
    return shadow.comparison()


async def _awaited(code: Function, tries: Tries, awaitable: Callable[[Message], Any]) -> Outcome:
    from headwater.work.tasks import is_of_handler  # a what-if with threads loads no event loop

    given, error = next(tries), None
    while True:
        try:
            check_run(await code(awaitable(given)))
            error = None
        except BaseException as raised:
            if not is_of_handler(raised):
                raise
            error = raised
        try:
            given = tries.send(error)
        except StopIteration as end:
            found: Outcome = end.value
            return found


async def _read_async(reading: Any, shadow: Shadow) -> AsyncIterator[Message]:
    async with reading:
        while True:
            try:
                found = await reading.batch(BATCH)
            except Gap as gap:
                shadow.miss(str(gap))
                continue
            if not found:
                return
            for message in found:
                yield plain_envelope(message)
