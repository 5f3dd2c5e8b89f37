"""Due rows: the state's rows of what is published later, which batches make and take with them.

A batch in `$delayed` makes the row of each message that waits; the batch that brings one to its topic states the row as
its producer and sequence, and takes it away, as the batch with an MQTT client's last will takes that, and one with dead
letters those that it brings. Promises: a row
is gone once its batch is durable, crash or not, so that nothing is published twice; no client has more waiting than
its share.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from headwater.config import Config
from headwater.errors import QuotaExceeded
from headwater.log.checkpoints import Checkpoints
from headwater.log.delays import due_key
from headwater.log.root import DELAYED, LETTERS, WILLS
from headwater.store import state as rows
from headwater.store.batch import Batch
from headwater.store.state import Rows, State


class DueRows:
    """Rows of delayed messages and wills, and how many of the former each client has."""

    def __init__(self, state: State, config: Config, checkpoints: Checkpoints) -> None:
        self._state = state
        self._config = config
        self._checkpoints = checkpoints
        self.count = 0
        """Delayed messages that wait."""
        self._by_owner: Counter[str] = Counter()
        """Of them, those of each client;"""
        self._promised_by: Counter[str] = Counter()
        """and those that a group is about to bring."""
        self.promised = 0
        """How many that is."""
        self.on_waiting: Callable[[bytes], None] = lambda _row: None
        """Hears when messages have begun to wait, with the earliest row of theirs."""

    def recover(self) -> None:
        """Every batch was applied again: count."""
        self._by_owner = Counter(owner.decode() for _, owner in self._state.scan(rows.DELAYED))
        self.count = self._by_owner.total()

    def promise(self, owner: str) -> None:
        """Somebody is about to delay a message: QuotaExceeded (429) if that is one too many."""
        config, waiting = self._config, self._by_owner[owner] + self._promised_by[owner]
        if owner and waiting >= config.delayed_per_client_max:
            raise QuotaExceeded(
                f'{waiting} delayed messages of client "{owner}" wait already, and delayed_per_client_max is '
                f"{config.delayed_per_client_max}; publish without deliver_at, wait for some to be due, or raise the "
                "setting"
            )
        if self.count + self.promised >= config.delayed_max:
            raise QuotaExceeded(
                f"{self.count} delayed messages wait already, and delayed_max is {config.delayed_max}; "
                "publish without deliver_at, wait for some to be due, or raise the setting"
            )
        self._promised_by[owner] += 1
        self.promised += 1

    def forget_promises(self) -> None:
        """Their group was appended, or was not."""
        self._promised_by.clear()
        self.promised = 0

    def apply(self, root: str, batch: Batch, owners: Sequence[str] = ()) -> None:
        """A batch is durable: a delayed message has begun to wait, or has reached its topic and waits no more; a will
        is published, or dead letters."""
        producer = batch.header.producer
        if root == DELAYED:
            messages = batch.body.messages(batch.first_offset)
            known = owners if len(owners) == len(messages) else [""] * len(messages)
            waiting: Rows = {due_key(message): owner.encode() for message, owner in zip(messages, known, strict=True)}
            self._checkpoints.write(waiting)
            self.count += len(messages)
            self._by_owner.update(known)
            self.on_waiting(min(waiting))
        elif producer is not None and producer.startswith(DELAYED):
            key = rows.key_due(int(producer.removeprefix(DELAYED + "/")), batch.header.sequence)
            owner = (self._state.get(key) or b"").decode()
            self._checkpoints.write({key: None})
            self.count -= 1
            self._by_owner[owner] -= 1
            if self._by_owner[owner] <= 0:
                del self._by_owner[owner]
        elif producer is not None and producer.startswith(WILLS):
            self._state.write({rows.WILL + producer.removeprefix(WILLS + "/").encode(): None})
        elif producer == LETTERS:
            first = batch.header.sequence
            self._checkpoints.write({rows.key_letter(number): None for number in range(first, first + batch.count)})
