"""What HTTP takes and answers has the fields of the operations behind it."""

from __future__ import annotations

import importlib
import pkgutil

import msgspec
import pytest
from pydantic import BaseModel

import headwater.events
from headwater.admin import api
from headwater.admin.api import (
    channels,
    clients,
    config,
    dead_letters,
    dependencies,
    figures,
    health,
    messages,
    pipelines,
    rules,
    schedules,
    schemas,
    sessions,
    subscriptions,
    tokens,
    topics,
)
from headwater.admin.api.dependencies import Body
from headwater.message import (
    ConsumerInfo,
    DeadLetter,
    Outgoing,
    Receipt,
    ScheduleInfo,
    SchemaInfo,
    StateInfo,
    SubscriptionInfo,
)
from headwater.wire import administration as wire
from headwater.wire import requests
from headwater.wire.request import OPTION_NAMES, Change, Request

IN_PATH = {"id", "name", "filter"}
"""Fields that stand in the path of some routes."""
AS_SHOWN = {"header_pairs": "headers", "text": "document"}
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
ANSWERED: list[tuple[type[BaseModel], type[msgspec.Struct], set[str]]] = [
    (clients.Registration, wire.Registration, set()),
    (clients.Client, wire.Client, set()),
    (rules.Rule, wire.Rule, set()),
    (tokens.MadeToken, wire.NewToken, set()),
    (tokens.Token, wire.Token, set()),
    (sessions.Session, wire.SessionInfo, set()),
    (sessions.SessionSubscription, wire.SessionSubscription, set()),
    (subscriptions.Subscription, SubscriptionInfo, set()),
    (subscriptions.Consumer, ConsumerInfo, set()),
    (subscriptions.MessageState, StateInfo, {"error"}),
    (channels.Channel, wire.ChannelInfo, set()),
    (channels.Trial, wire.ChannelTrial, set()),
    (dead_letters.Letter, DeadLetter, {"root"}),
    (messages.PublishReceipt, Receipt, set()),
    (schedules.Schedule, ScheduleInfo, set()),
    (schemas.Schema, SchemaInfo, set()),
    (topics.TopicLevel, wire.Level, {"rate", "value"}),
    (config.Setting, wire.Setting, set()),
    (config.Event, headwater.events.Event, {"time_us"}),
    (figures.Figures, wire.Figures, {"time_us", "started_us"}),
    (health.Check, wire.HealthCheck, set()),
    (pipelines.Pipeline, wire.Pipeline, set()),
    (pipelines.Job, wire.Job, set()),
]
"""What HTTP answers, what it is made of, and what it has besides."""
MADE_HERE = {
    *("Alive", "Readiness", "Problem", "Me", "LetterCount", "Purged", "History", "Answer"),  # of no operation alone
    *("StoredMessage", "MissingMessages", "Topic", "SubscriptionDetail"),  # of messages, and of what is held above
}
LISTINGS = ("Page", "List", "Levels", "Receipts")
"""What answers end with that list others."""
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


@pytest.mark.parametrize(("body", "answer", "more"), ANSWERED, ids=lambda one: getattr(one, "__name__", ""))
def test_an_answer_has_the_fields_of_what_is_answered(
    body: type[BaseModel], answer: type[msgspec.Struct], more: set[str]
) -> None:
    renamed = AS_SHOWN if answer is not headwater.events.Event else {}
    fields = {renamed.get(name, name.removesuffix("_us")) for name in answer.__struct_fields__}
    assert set(body.model_fields) - CONTENTS - more == fields


def test_options_of_a_subscription_are_those_of_the_wire() -> None:
    assert set(subscriptions.SubscriptionOptions.model_fields) == OPTION_NAMES


def test_every_body_is_held_to_an_operation() -> None:
    def below(one: type[Body]) -> set[str]:
        return {one.__name__, *(name for sub in one.__subclasses__() for name in below(sub))}

    assert below(Body) - {"Body"} == {body.__name__ for body, _, _ in ASKED} | set(ELSEWHERE)


def test_every_answer_is_held_to_what_it_is_made_of() -> None:
    made: set[type[BaseModel]] = set()
    for module in pkgutil.iter_modules(api.__path__):
        found = vars(importlib.import_module(f"{api.__name__}.{module.name}")).values()
        made |= {one for one in found if isinstance(one, type) and issubclass(one, BaseModel)}
    ours = {one for one in made if one.__module__.startswith(api.__name__) and not issubclass(one, Body)}
    listings = {one for one in ours if one.__name__.endswith(LISTINGS)}
    assert {one.__name__ for one in ours - listings - {body for body, _, _ in ANSWERED}} == MADE_HERE


def test_moments_of_a_job_are_shown_and_one_that_has_done_nothing_has_worked_at_none() -> None:
    job = wire.Job(name="a", command="archive", state="running", since_us=1_000_000)
    found = dependencies.shown(pipelines.Job, job).model_dump(mode="json")
    assert (found["since"], found["worked"]) == ("1970-01-01T00:00:01Z", None)
    worked = msgspec.structs.replace(job, worked_us=2_000_000)
    assert dependencies.shown(pipelines.Job, worked).model_dump(mode="json")["worked"] == "1970-01-01T00:00:02Z"
