"""`headwater sub`: messages as they come, live or for a durable subscription."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, cast

import typer

from headwater import Gap, Malformed, Message
from headwater.bus import Bus
from headwater.cli.following import Follower, served
from headwater.cli.options import At, Hex, Raw, start
from headwater.cli.output import Messages, counted, remark
from headwater.cli.pipe import pipe_of_stdout
from headwater.clock import SECOND_US, SystemClock
from headwater.delivery.consumer import Consumer as EmbeddedConsumer
from headwater.delivery.options import Order
from headwater.surface import Consumer

BATCH = 100


def sub(
    at: At,
    filter: Annotated[str, typer.Argument(help="Which topics: home/+/temp, home/#")],
    id: Annotated[
        str | None, typer.Option("--id", help="The durable subscription of this name; made if there is none.")
    ] = None,
    from_: Annotated[
        str | None,
        typer.Option(
            "--start",
            metavar="WHERE",
            help="Where a new subscription begins: latest (if not said), earliest, an offset, a moment, or 10m (ago).",
        ),
    ] = None,
    order: Annotated[
        str | None, typer.Option("--order", help="strict, key or none; strict for a new one if not said.")
    ] = None,
    ack: Annotated[
        bool, typer.Option("--ack/--no-ack", help="Whether what was shown is done; else it is only looked at.")
    ] = True,
    count: Annotated[int | None, typer.Option("--count", min=1, help="End after so many.")] = None,
    timeout_s: Annotated[
        float | None, typer.Option("--timeout-s", min=0, help="End when none came for so many seconds.")
    ] = None,
    hex: Hex = False,
    raw: Raw = False,
) -> None:
    """Show messages as they come, until Ctrl-C.

    Without --id it looks on, beside the process that owns the folder or at a server: retained messages first, then
    what is new. With --id it is a consumer of a durable subscription, and without a server owns the folder itself: it
    goes on where that subscription was, and what it has shown is acked: into a pipe, one message after another, each
    once it was read there.

    Ends with code 1 if --count was not reached within --timeout-s.
    """
    messages = Messages(at.json, hex, raw)
    if id is None:
        if from_ is not None or order is not None or not ack:
            raise Malformed("--start, --order and --no-ack are about a durable subscription; name it with --id")
        with at.look() as bus:
            found = served(bus.subscribe(filter), timeout_s) if at.is_served else _beside(bus, filter, timeout_s)
            seen = messages.print_all(found, count)
    else:
        with at.own(make=True) as bus:
            begin = start(from_) if from_ is not None else "latest"
            consumer = bus.subscribe(filter, id=id, start=begin, order=cast("Order | None", order))
            try:
                # How many may be in flight, a server keeps to itself; there, it just sends no more.
                window = consumer.options.max_in_flight if isinstance(consumer, EmbeddedConsumer) else None
                seen = _consume(consumer, messages, None if ack else window, ack, count, timeout_s)
            finally:
                consumer.close()  # gives back what was not shown: nothing was wrong with it
    if count is not None and seen < count:
        remark(f"{seen} of {counted(count, 'message')} came")
        raise typer.Exit(1)


def _beside(bus: Bus, filter: str, timeout_s: float | None) -> Iterator[Message | None]:
    """What a live subscription would get, beside the process that owns the folder."""
    follower = Follower(bus, filter, after=bus.ends())
    yield from bus.retained(filter).values()
    yield None
    yield from follower.messages(timeout_s)


def _consume(
    consumer: Consumer, messages: Messages, window: int | None, ack: bool, count: int | None, timeout_s: float | None
) -> int:
    seen = 0
    clock = SystemClock()
    heard_us = clock.monotonic_us()
    pipe = pipe_of_stdout()
    # Whoever reads a pipe may leave at any moment: what it has not taken is not done.
    most = BATCH if pipe is None or not ack else 1
    while count is None or seen < count:
        if window is not None and seen >= window:
            remark(
                f"in flight: {counted(window, 'message')}, as many as this subscription allows; without acks, no more"
            )
            break
        left = most if count is None else min(most, count - seen)
        wait_s = None
        if timeout_s is not None:
            wait_s = timeout_s - (clock.monotonic_us() - heard_us) / SECOND_US
            if wait_s < 0:
                break
        try:
            batch = consumer.batch(left, wait_s)
        except Gap as gap:
            remark(f'messages {gap.first} to {gap.last} of "{gap.root}" are gone: {gap.reason}')
            continue
        for message in batch:
            messages.print(message)
        messages.flush()
        if ack and batch:
            if pipe is not None:
                pipe.wait_until_taken()
            consumer.ack(batch)
        seen += len(batch)
        if batch:
            heard_us = clock.monotonic_us()
    return seen
