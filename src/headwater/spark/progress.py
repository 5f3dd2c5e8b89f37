"""How far a streaming query is, told to the broker: a subscription stands there, so that retention waits for the query
and its lag shows.

Spark keeps the truth in its checkpoint. A server is told over the planner's connection; the owner of a folder by a
file that it takes in before it deletes anything (`store/readers.py`). What is told again and again goes out when it
changes, and now and then so that the subscription does not expire under a query that has nothing to do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing
from typing import Protocol

from headwater.clock import SECOND_US, SystemClock
from headwater.errors import Conflict, NotAllowed
from headwater.spark.folder import Folder
from headwater.spark.options import EXPIRE_AFTER_S, ReadOptions
from headwater.spark.served import Served
from headwater.store import readers
from headwater.store.files import DiskFiles
from headwater.store.readers import Reader

AGAIN_S_MAX = 60.0
"""The place of a query that stands still is told again after so long, or a quarter of the time that it is kept for."""


class Broker(Protocol):
    """Who keeps a subscription's place."""

    def tell(self, places: Mapping[str, int]) -> None:
        """Have it stand at the next offset of each root."""

    def known(self) -> dict[str, int] | None:
        """Where it stands; None if there is none."""


class ByServer:
    """A server, over the connection that the planner has."""

    def __init__(self, options: ReadOptions, connected: Callable[[], Served]) -> None:
        self._id = options.subscription or ""
        self._expire_after_s = options.subscription_expire_after_s
        self._connected = connected

    def tell(self, places: Mapping[str, int]) -> None:
        # Each time, as somebody may have deleted it: the next one is to expire, too.
        self._connected().make_subscription(self._id, self._expire_after_s or EXPIRE_AFTER_S)
        self._connected().show_progress(self._id, places, self._expire_after_s)

    def known(self) -> dict[str, int] | None:
        return self._connected().progress(self._id)


class ByFolder:
    """The owner of a folder, who need not run at this moment."""

    def __init__(self, options: ReadOptions) -> None:
        self._folder = options.data or ""
        self._id = options.subscription or ""
        (self._filter,) = options.topics.filters  # a subscription has one
        self._expire_after_s = options.subscription_expire_after_s
        self._files = DiskFiles()
        self._is_checked = False

    def tell(self, places: Mapping[str, int]) -> None:
        if not self._is_checked:
            self._check()
        reader = Reader(
            id=self._id,
            filter=self._filter,
            places=dict(places),
            expire_after_s=self._expire_after_s or EXPIRE_AFTER_S,
            is_stated=self._expire_after_s is not None,
        )
        try:
            readers.leave(self._files, self._folder, reader)
        except PermissionError as error:
            raise NotAllowed(
                f'the place of subscription "{self._id}" cannot be left in "{self._folder}/{readers.READERS}" '
                f"({error.strerror}); let this user write there, or leave out the option"
            ) from error

    def _check(self) -> None:
        """Conflict now, rather than an event at the owner later."""
        with closing(Folder(self._folder)) as folder:
            row = folder.subscription(self._id)
        waiting = readers.waiting(self._files, self._folder, self._id)
        for known in (row and row.options.filter, waiting and waiting.filter):
            if known is not None and known != self._filter:
                raise Conflict(
                    f'subscription "{self._id}" has the filter "{known}", not "{self._filter}"; use another name, or '
                    f"delete it first: headwater subs delete {self._id}"
                )
        self._is_checked = True

    def known(self) -> dict[str, int] | None:
        waiting = readers.waiting(self._files, self._folder, self._id)
        if waiting is not None:
            return waiting.places
        with closing(Folder(self._folder)) as folder:
            row = folder.subscription(self._id)
            if row is None:
                return None
            return {root: floor + 1 for root, floor in folder.floors(row).items()}


class Progress:
    """How far one query is."""

    def __init__(self, options: ReadOptions, connected: Callable[[], Served]) -> None:
        self._broker: Broker = ByFolder(options) if options.data is not None else ByServer(options, connected)
        kept_s = options.subscription_expire_after_s or EXPIRE_AFTER_S
        self._again_us = round(min(AGAIN_S_MAX, kept_s / 4) * SECOND_US)
        self._clock = SystemClock()
        self._told: dict[str, int] | None = None
        self._told_us = 0

    def tell(self, places: Mapping[str, int]) -> None:
        """Everything before these offsets is done."""
        now_us = self._clock.monotonic_us()
        if places == self._told and now_us - self._told_us < self._again_us:
            return
        self._broker.tell(places)
        self._told, self._told_us = dict(places), now_us

    def known(self) -> dict[str, int] | None:
        """What was told last, by whichever process; None if nobody did, or it has expired."""
        return self._broker.known()
