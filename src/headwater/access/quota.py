"""Limits per client: how much in a minute, and how long a wrong guess has to wait.

Invariants:

- Over any time, a client gets at most `per_minute` plus what has trickled in since; what is refused costs nothing.
- Memory is bounded: a client whose bucket is full again is forgotten, and so is a guesser that has waited long enough.
  If there are still too many, the one unused for longest goes.
- Time is the clock's that never jumps.
"""

from __future__ import annotations

from collections import OrderedDict

from headwater import threads
from headwater.access.name import quoted
from headwater.clock import SECOND_US, Clock
from headwater.errors import Malformed, QuotaExceeded

TRACKED_MAX = 100_000
"""Clients, or guessers, that are remembered at once; beyond it the one unused for longest is forgotten."""

_MINUTE_US = 60 * SECOND_US


class Quota:
    """A bucket for each client that holds a minute's worth and fills steadily.

    What a client has spent is counted in shares: one of what it takes is a minute's microseconds of them, and
    `per_minute` of them come back each microsecond. So everything is exact.
    """

    def __init__(
        self,
        per_minute: int,
        clock: Clock,
        *,
        what: str = "new topics",
        setting: str = "",
        tracked_max: int = TRACKED_MAX,
    ) -> None:
        """`setting` is what raises it, if that is one."""
        if per_minute < 0 or tracked_max < 1:
            raise Malformed(f"a quota of {per_minute} for {tracked_max} clients; use 0 or more, for 1 or more")
        self._per_minute = per_minute
        self._clock = clock
        self._what = what
        self._named = f" ({setting})" if setting else ""
        self._advice = ", or raise the setting" if setting else ""
        self._tracked_max = tracked_max
        self._full = per_minute * _MINUTE_US
        self._spent: OrderedDict[str, tuple[int, int]] = OrderedDict()
        """Shares spent, and when that was right; the client that took last is last."""
        self._lock = threads.Lock()

    def take(self, user: str, count: int = 1) -> None:
        """Take so many for a client, or none: QuotaExceeded (429) says when to try again."""
        if count < 0:
            raise Malformed(f"{count} {self._what}; take 0 or more")
        if count > self._per_minute:
            raise QuotaExceeded(
                f"client {quoted(user)} asked for {count} {self._what} at once, "
                f"and may have {self._per_minute} a minute{self._named}; ask for fewer{self._advice}"
            )
        if count == 0:
            return
        with self._lock:
            now_us = self._clock.monotonic_us()
            self._spent[user] = self._with(user, count, now_us), now_us
            self._spent.move_to_end(user)
            self._forget(now_us)

    def check(self, user: str) -> None:
        """QuotaExceeded (429) if a client could take none; nothing is taken."""
        with self._lock:
            self._with(user, 1, self._clock.monotonic_us())

    def _with(self, user: str, count: int, now_us: int) -> int:
        """Shares spent once so many more are taken; QuotaExceeded (429) if those are too many."""
        spent = self._spent_at(user, now_us) + count * _MINUTE_US
        if spent > self._full:
            wait_ms = -((self._full - spent) // (1000 * self._per_minute))  # rounded up
            raise QuotaExceeded(
                f"client {quoted(user)} may have {self._per_minute} {self._what} a minute{self._named}; "
                f"try again in {wait_ms / 1000:.3f} s{self._advice}"
            )
        return spent

    @property
    def tracked(self) -> int:
        """Clients that are remembered."""
        return len(self._spent)

    def _spent_at(self, user: str, now_us: int) -> int:
        spent, at_us = self._spent.get(user, (0, now_us))
        return max(0, spent - (now_us - at_us) * self._per_minute)

    def _forget(self, now_us: int) -> None:
        """Let go of full buckets: of those unused for longest, two a call, so that no call takes long."""
        for _ in range(2):
            oldest = next(iter(self._spent))
            if self._spent_at(oldest, now_us) and len(self._spent) <= self._tracked_max:
                return
            del self._spent[oldest]


class Guesses:
    """How long each failed login is made to wait: twice as long each time, and less again as time passes.

    A key is whatever a guesser cannot change at will: the user together with the address that it comes from. Names that
    nobody has are counted like others, so that waiting tells nothing.
    """

    def __init__(
        self,
        clock: Clock,
        *,
        delay_s: float = 0.25,
        delay_s_max: float = 10.0,
        forgive_s: float = 60.0,
        tracked_max: int = TRACKED_MAX,
    ) -> None:
        """One failure is forgiven every `forgive_s`; the first waits `delay_s`, the next twice as long, to the most."""
        if not 0 <= delay_s <= delay_s_max or forgive_s <= 0 or tracked_max < 1:
            raise Malformed(
                f"delays of {delay_s} to {delay_s_max} s, forgiven in {forgive_s} s, for {tracked_max} guessers; "
                "use 0 or more, in order, and more than 0 for the others"
            )
        self._clock = clock
        self._delay_s = delay_s
        self._delay_s_max = delay_s_max
        self._forgive_us = max(1, round(forgive_s * SECOND_US))
        self._tracked_max = tracked_max
        self._failures_max = 1
        while self._delay_s and self._delay_s * 2 ** (self._failures_max - 1) < delay_s_max:
            self._failures_max += 1
        self._failures: OrderedDict[str, tuple[int, int]] = OrderedDict()
        """How many, and when the last of them was forgiven or made; the guesser that failed last is last."""
        self._lock = threads.Lock()

    def delay_s(self, key: str) -> float:
        """How long a failed login waits for its answer; 0 for one that has not failed lately."""
        with self._lock:
            failures, _ = self._at(key, self._clock.monotonic_us())
        return min(self._delay_s_max, self._delay_s * 2 ** (failures - 1)) if failures else 0.0

    def failed(self, key: str) -> None:
        """Note a failed login."""
        with self._lock:
            now_us = self._clock.monotonic_us()
            failures, _ = self._at(key, now_us)
            self._failures[key] = min(failures + 1, self._failures_max), now_us
            self._failures.move_to_end(key)
            for _ in range(2):
                oldest = next(iter(self._failures))
                if self._at(oldest, now_us)[0] and len(self._failures) <= self._tracked_max:
                    return
                del self._failures[oldest]

    def succeeded(self, key: str) -> None:
        """Forgive everything: it is who it says it is."""
        with self._lock:
            self._failures.pop(key, None)

    @property
    def tracked(self) -> int:
        """Guessers that are remembered."""
        return len(self._failures)

    def _at(self, key: str, now_us: int) -> tuple[int, int]:
        failures, since_us = self._failures.get(key, (0, now_us))
        forgiven = (now_us - since_us) // self._forgive_us
        return max(0, failures - forgiven), since_us + forgiven * self._forgive_us
