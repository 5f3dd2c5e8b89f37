"""What HTTP takes and answers has the fields of the operations behind it."""

from __future__ import annotations

import msgspec
import pytest
from pydantic import BaseModel

from headwater.admin.api import (
    channels,
    clients,
    dead_letters,
    messages,
    rules,
    schemas,
    sessions,
    subscriptions,
    tokens,
    topics,
)
from headwater.admin.api.dependencies import Body
from headwater.message import DeadLetter, Outgoing, Receipt, SubscriptionInfo
from headwater.wire import administration as wire
from headwater.wire import requests
from headwater.wire.request import OPTION_NAMES, Change, Request

IN_PATH = {"id", "name", "filter"}
"""Fields that stand in the path of some routes."""
AS_SHOWN = {"time_us": "time", "dead_at_us": "dead_at", "header_pairs": "headers"}
CONTENTS = {"encoding", "key_encoding"}
"""How payloads and keys, which are bytes, are put into JSON."""

ASKED: list[tuple[type[BaseModel], type[msgspec.Struct], dict[str, str]]] = [
    (clients.NewClient, wire.AddClient, {}),
    (clients.NewSecret, wire.RotateClient, {}),
    (rules.NewRule, wire.ChangeRule, {"change": "allow"}),
    (tokens.NewToken, wire.AddToken, {}),
    (schemas.NewSchema, wire.SetSchema, {"schema": "document"}),
    (topics.Purging, requests.Purge, {}),
    (subscriptions.NewSubscription, wire.CreateSubscription, {"start_us": "start"}),
    (subscriptions.Seeking, wire.SeekSubscription, {"to_us": "to"}),
    (channels.NewChannel, wire.ChannelSpec, {}),
    (channels.ChangedChannel, wire.ChangeChannel, {}),
    (dead_letters.Redriving, requests.Redrive, {"offsets": "places"}),
    (messages.NewMessage, Outgoing, {}),
    (messages.SingleMessage, requests.Delay, {"deliver_at_us": "deliver_at"}),
]
ANSWERED: list[tuple[type[BaseModel], type[msgspec.Struct]]] = [
    (clients.Registration, wire.Registration),
    (clients.Client, wire.Client),
    (rules.Rule, wire.Rule),
    (tokens.MadeToken, wire.NewToken),
    (tokens.Token, wire.Token),
    (sessions.Session, wire.SessionInfo),
    (sessions.SessionSubscription, wire.SessionSubscription),
    (subscriptions.Subscription, SubscriptionInfo),
    (channels.Channel, wire.ChannelInfo),
    (channels.Trial, wire.ChannelTrial),
    (dead_letters.Letter, DeadLetter),
    (messages.PublishReceipt, Receipt),
]
ELSEWHERE = {
    "SubscriptionOptions": "the options of a subscription, below",
    "NewBatch": "messages, a producer and a sequence: what `publish_many` takes",
    "LetterPlace": "a place within Redriving",
    "NewSchedule": "a message, and when: what `schedule` takes",
}


@pytest.mark.parametrize(("body", "operation", "renamed"), ASKED, ids=lambda one: getattr(one, "__name__", ""))
def test_a_body_has_the_fields_of_its_operation(
    body: type[BaseModel], operation: type[msgspec.Struct], renamed: dict[str, str]
) -> None:
    fields = {renamed.get(name, name) for name in operation.__struct_fields__} - set(Change.__struct_fields__)
    extra = {"producer", "sequence"} if body is messages.SingleMessage else set()
    given = set(body.model_fields) - CONTENTS - extra
    assert given <= fields
    assert fields - given <= (IN_PATH if issubclass(operation, Request) else set())


@pytest.mark.parametrize(("body", "answer"), ANSWERED, ids=lambda one: one.__name__)
def test_an_answer_has_the_fields_of_what_is_answered(body: type[BaseModel], answer: type[msgspec.Struct]) -> None:
    fields = {AS_SHOWN.get(name, name.removesuffix("_us")) for name in answer.__struct_fields__}
    extra = {"root"} if body is dead_letters.Letter else set()
    assert set(body.model_fields) - CONTENTS - extra == fields


def test_options_of_a_subscription_are_those_of_the_wire() -> None:
    assert set(subscriptions.SubscriptionOptions.model_fields) == OPTION_NAMES


def test_every_body_is_held_to_an_operation() -> None:
    def below(one: type[Body]) -> set[str]:
        return {one.__name__, *(name for sub in one.__subclasses__() for name in below(sub))}

    assert below(Body) - {"Body"} == {body.__name__ for body, _, _ in ASKED} | set(ELSEWHERE)
