"""Log lines of messages whose handler failed, or that were delivered again: one each."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from headwater.errors import HeadwaterError, Reject, Retry
from headwater.message import Envelope
from headwater.verdicts import Said, Verdict, verdict_of
from headwater.work.queue import Queue

log = logging.getLogger("headwater.work")


COUNTED: dict[Said, str] = {"ack": "done", "nack": "retried", "reject": "rejected"}
"""As what a message counts of which this was said by hand."""


def said_by_hand(queue: Queue, what: Said) -> None:
    """Count a message by what its handler said of it."""
    queue.count(**{COUNTED[what]: 1})


def failed(queue: Queue, message: Envelope, error: BaseException, said: Said) -> Verdict:
    """Log that a handler raised something; what that says about its message, unless it has said so by hand."""
    trace = error.__traceback__
    verdict = verdict_of(error, trace.tb_next if trace is not None else None)  # the first call is ours
    if queue.is_durable and said:
        became = f"failed after its {said} of"
    elif queue.is_durable and isinstance(error, Reject):
        queue.count(rejected=1)
        became = "rejected"
    else:
        queue.count(retried=1)
        became = "failed"
    why = str(error) if isinstance(error, Reject | Retry) else f"{type(error).__name__}: {error}"
    where = f'message {message.offset} of "{message.topic}"'
    of = f'for "{queue.handler.subscription}", attempt {message.attempt}' if queue.is_durable else "(live)"
    log.warning("handler %s %s %s %s: %s", queue.handler.name, became, where, of, " ".join(why.split()))
    return verdict


def unsaid(queue: Queue, message: Envelope, error: HeadwaterError) -> None:
    """Log that a nack or reject was not taken: the message comes again as if it had timed out."""
    log.warning(
        'message %d of "%s" for "%s" could not be nacked: %s',
        *(message.offset, message.topic, queue.handler.subscription, error),
    )


def recalled(queue: Queue, messages: Sequence[Envelope], error: HeadwaterError) -> None:
    """Log that messages were handled and could not be acked."""
    queue.count(recalled=len(messages))
    log.warning(
        '%d messages for "%s" were handled but not acked, from message %d of "%s" on: %s',
        *(len(messages), queue.handler.subscription, messages[0].offset, messages[0].topic, error),
    )


def unread(queue: Queue, error: HeadwaterError) -> None:
    """Log that a subscription could not be read, or is gone."""
    log.warning('subscription "%s" of handler %s: %s', queue.handler.subscription, queue.handler.name, error)


def broken(queue: Queue, error: Exception) -> None:
    """Log what nobody expected, with its traceback; the subscription is looked at again in a moment."""
    log.error('subscription "%s" could not be worked on', queue.handler.subscription, exc_info=error)
