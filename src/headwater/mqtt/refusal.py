"""Which reason an MQTT client is told for an error of Headwater's."""

from __future__ import annotations

from headwater.errors import (
    Closed,
    Conflict,
    DiskFull,
    NotAllowed,
    QuotaExceeded,
    ReadOnly,
    SchemaMismatch,
    TimedOut,
    TooLarge,
    TooManyFiles,
    Unauthenticated,
)
from headwater.mqtt.reasons import MqttError, Reason

REASONS: tuple[tuple[type[BaseException], Reason], ...] = (
    (Unauthenticated, Reason.BAD_USER_NAME_OR_PASSWORD),
    (NotAllowed, Reason.NOT_AUTHORIZED),
    (QuotaExceeded, Reason.QUOTA_EXCEEDED),
    (TooLarge, Reason.PACKET_TOO_LARGE),
    (SchemaMismatch, Reason.PAYLOAD_FORMAT_INVALID),
    (DiskFull, Reason.QUOTA_EXCEEDED),
    (TooManyFiles, Reason.QUOTA_EXCEEDED),
    (ReadOnly, Reason.IMPLEMENTATION_SPECIFIC_ERROR),
)
GOODBYES: tuple[tuple[type[BaseException], Reason], ...] = (
    (Conflict, Reason.SESSION_TAKEN_OVER),
    (TimedOut, Reason.KEEP_ALIVE_TIMEOUT),
    (NotAllowed, Reason.NOT_AUTHORIZED),
    (QuotaExceeded, Reason.QUOTA_EXCEEDED),
    (TooLarge, Reason.PACKET_TOO_LARGE),
    (Closed, Reason.ADMINISTRATIVE_ACTION),
)


def reason_of(error: BaseException, otherwise: Reason) -> Reason:
    """Why something was refused."""
    if isinstance(error, MqttError):
        return error.reason
    return next((reason for kind, reason in REASONS if isinstance(error, kind)), otherwise)


def goodbye_of(error: BaseException | None, *, is_stopping: bool) -> Reason:
    """Why a connection is ended."""
    if is_stopping:
        return Reason.SERVER_SHUTTING_DOWN
    if error is None:
        return Reason.SUCCESS
    if isinstance(error, MqttError):
        return error.reason
    return next((reason for kind, reason in GOODBYES if isinstance(error, kind)), Reason.UNSPECIFIED_ERROR)
