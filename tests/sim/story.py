"""A story: what clients do and what befalls them and the server, drawn from a seed before anything happens.

Each move is a value that stands for itself: it names what it is about by small numbers, and means something whatever
came before it. So any of them can be left out, and what is left is a story as well; that is how a failing one is made
short (sim/shrink.py). Which faults a story may have differs from story to story: a few kinds at a time get further than
all of them together.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

ROOTS = ("a", "b", "c")
TOPICS = tuple(f"{root}/{name}" for root in ROOTS for name in ("x", "y", "kept"))
SIZES = (0, 0, 10, 200, 900, 3000, 9000)
NAMED = {"strict": ("#", "strict"), "keyed": ("+/x", "key"), "free": ("b/#", "none")}
"""Named subscriptions: filter and order."""
NATIVES = 2
MQTTS = ((4, True), (5, True), (5, False))
"""MQTT clients: version, and whether their session is kept."""
MOVES_MIN, MOVES_MAX = 50, 130

GAPS_US = (0, 50, 300, 2_000, 20_000, 300_000, 3_000_000)
GAP_WEIGHTS = (20, 20, 20, 20, 12, 6, 2)


@dataclass(frozen=True)
class Move:
    """Something that happens, a while after the move before it."""

    gap_us: int
    kind: str
    args: tuple[Any, ...] = ()

    def __str__(self) -> str:
        return f"+{self.gap_us / 1e6:g} s  {self.kind}({', '.join(map(repr, self.args))})"


@dataclass(frozen=True)
class Story:
    """Everything that a seed decides before the first move."""

    seed: int
    setup: dict[str, Any]
    moves: tuple[Move, ...] = field(repr=False)

    def without(self, left_out: set[int]) -> Story:
        """The same without some of its moves."""
        moves = tuple(move for place, move in enumerate(self.moves) if place not in left_out)
        return Story(self.seed, self.setup, moves)

    def __str__(self) -> str:
        lines = [f"seed {self.seed}, {self.setup}", *(f"  {move}" for move in self.moves)]
        return "\n".join(lines)


WORK: dict[str, int] = {
    "publish": 14,
    "publish_many": 6,
    "produce": 6,
    "clear": 2,
    "delay": 2,
    "stage": 3,
    "commit": 3,
    "subscribe": 6,
    "take": 12,
    "ack": 10,
    "nack": 4,
    "reject": 3,
    "redrive": 3,
    "pause": 1,
    "pass_by": 1,
    "let_go": 2,
    "listen": 2,
    "look": 2,
    "replay": 1,
    "follow": 2,
    "ask": 2,
    "threaded_publish": 5,
    "threaded_publish_soon": 3,
    "threaded_consume": 3,
    "add_channel": 1,
    "fail_channel": 1,
    "mqtt_publish": 22,
    "mqtt_subscribe": 8,
    "mqtt_unsubscribe": 1,
    "mqtt_slow": 5,
    "mqtt_leave": 2,
}
FAULTS: dict[str, int] = {
    "reset": 5,
    "silence": 2,
    "stall": 3,
    "cut_off": 1,
    "slow_network": 1,
    "kill_server": 2,
    "stop_server": 1,
    "lose_power": 2,
    "lose_power_at_sync": 4,
    "fail_sync": 1,
    "fail_write": 1,
    "short_write": 1,
    "fill_disk": 1,
    "fail_state": 1,
    "slow_disk": 1,
    "jump_clock": 1,
    "kill_native": 2,
    "leave_native": 1,
    "kill_mqtt": 2,
    "kill_threaded": 1,
    "kill_receiver": 2,
}


def draw(seed: int) -> Story:
    """The story of a seed."""
    rng = random.Random(seed)
    weights = dict(WORK)
    for kind in rng.sample(sorted(WORK), rng.randint(0, 8)):
        weights[kind] *= 3
    for kind in rng.sample(sorted(FAULTS), rng.randint(0, 8)):
        weights[kind] = FAULTS[kind]
    setup = {
        "config": rng.randrange(5),
        "publishes_in_flight_max": rng.choice((2, 8, 64)),
        "requests_in_flight_max": rng.choice((2, 256)),
        "mqtt_receive_max": rng.choice((16, 1024)),
        "mqtt_in_flight_max": rng.choice((2, 10, 65_535)),
        "attention_us": rng.choice((0, 0, 0, 50)),
        "write_bytes_max": rng.choice((2_000, 1 << 20)),
        "receive_max": rng.choice((0, 3)),
        "auth": rng.choices(("none", "gatekeeper", "scram"), (88, 10, 2))[0],
        "will": rng.random() < 0.3,
        "sys_every_s": rng.choice((0.0, 0.0, 0.0, 5.0)),
        "last": rng.choice(("as it is", "stop", "kill", "power", "power")),
    }
    if rng.random() < 0.06:
        setup["last"] = "rot"
    kinds, shares = list(weights), list(weights.values())
    moves = [
        Move(0, "subscribe", (0, "strict")),
        Move(0, "mqtt_subscribe", (0, 0, 1)),
        Move(0, "mqtt_subscribe", (1, 1, 2)),
    ]
    for _ in range(rng.randint(MOVES_MIN, MOVES_MAX)):
        [gap_us] = rng.choices(GAPS_US, GAP_WEIGHTS)
        [kind] = rng.choices(kinds, shares)
        moves.append(Move(gap_us, kind, arguments(kind, rng)))
    return Story(seed, setup, tuple(moves))


def arguments(kind: str, rng: random.Random) -> tuple[Any, ...]:
    """What a move is about."""
    native = rng.randrange(NATIVES)
    mqtt = rng.randrange(len(MQTTS))
    topic = rng.choice(TOPICS)
    match kind:
        case "publish":
            return native, topic, rng.choice(SIZES), topic.endswith("kept")
        case "publish_many":
            count = rng.randint(1, 5)
            return native, tuple(rng.choice(TOPICS[:2] + TOPICS[3:5]) for _ in range(count)), rng.choice(SIZES[:5])
        case "produce":
            return native, tuple(f"{root}/x" for root in rng.sample(ROOTS, rng.randint(1, 2))), rng.random() < 0.6
        case "clear":
            return native, f"{rng.choice(ROOTS)}/kept"
        case "delay":
            return native, topic, rng.choice((0.5, 3.0, 20.0))
        case "stage":
            return native, tuple(rng.choice(TOPICS) for _ in range(rng.randint(1, 3)))
        case "commit" | "kill_native" | "leave_native":
            return (native,)
        case "pass_by":
            return native, rng.randrange(1000)
        case "pause":
            id = rng.choice(tuple(NAMED))
            return owner(id, native), id, rng.random() < 0.4
        case "subscribe" | "let_go" | "reject" | "redrive":
            id = rng.choice(tuple(NAMED))
            return owner(id, native), id
        case "take":
            id = rng.choice(tuple(NAMED))
            return owner(id, native), id, rng.randint(1, 10)
        case "ack":
            id = rng.choice(tuple(NAMED))
            return owner(id, native), id, rng.choice((0.0, 0.5, 1.0, 1.0)), rng.random() < 0.8
        case "nack":
            id = rng.choice(tuple(NAMED))
            return owner(id, native), id, rng.choice((None, 0.0, 3.0))
        case "listen":
            return native, rng.choice(("#", "a/#", "+/x")), rng.choice((0.5, 4.0))
        case "look":
            return native, rng.choice(("#", "+/kept"))
        case "replay":
            return native, rng.choice(ROOTS)
        case "follow":
            return native, rng.choice(ROOTS), rng.choice((1.0, 6.0))
        case "ask":
            return native, rng.randrange(5)
        case "threaded_publish":
            return topic if not topic.endswith("kept") else "a/x", rng.choice(SIZES)
        case "threaded_publish_soon":
            return f"{rng.choice(ROOTS)}/y", rng.randint(1, 8)
        case "threaded_consume":
            return (rng.randint(1, 20),)
        case "add_channel":
            return (native,)
        case "fail_channel":
            return (rng.randint(1, 20),)
        case "mqtt_publish":
            return mqtt, topic, rng.choice(SIZES), rng.randrange(3), topic.endswith("kept")
        case "mqtt_subscribe":
            root = rng.randrange(len(ROOTS))
            return mqtt, root, (mqtt + root + 1) % 3
        case "mqtt_unsubscribe":
            return mqtt, rng.randrange(len(ROOTS))
        case "mqtt_slow":
            return mqtt, rng.random() < 0.5
        case "mqtt_leave":
            return mqtt, rng.choice((0.01, 1.0, 10.0))
        case "kill_mqtt":
            return mqtt, rng.random() < 0.3
        case "reset" | "silence":
            return (rng.randrange(100),)
        case "stall":
            return rng.randrange(100), rng.choice((0.01, 0.5, 3.0, 15.0))
        case "cut_off":
            return (rng.choice((0.5, 5.0, 15.0)),)
        case "slow_network":
            return (rng.choice((1, 10, 200)),)
        case "lose_power_at_sync" | "fail_sync" | "fail_write" | "short_write" | "fail_state":
            return (rng.randint(1, 12),)
        case "fill_disk":
            return (rng.randint(0, 50_000),)
        case "slow_disk":
            return (rng.choice((0.2, 5.0, 50.0)),)
        case "jump_clock":
            return (rng.choice((-4000.0, -30.0, -2.0, 2.0, 30.0, 4000.0)),)
        case _:
            return ()


def owner(id: str, native: int) -> int:
    """Who consumes a named subscription: one program if the order is judged, any if it is not."""
    return {"strict": 0, "keyed": 1}.get(id, native)
