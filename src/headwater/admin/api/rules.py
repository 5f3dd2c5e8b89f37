"""/v1/rules: who may do what."""

from __future__ import annotations

from fastapi import APIRouter
from pydantic import BaseModel, Field

from headwater.access.acl import Action
from headwater.admin.api.dependencies import Body, Broker, example, needs, shown

router = APIRouter(prefix="/v1/rules", tags=["rules"])


class NewRule(Body):
    """A rule."""

    model_config = example(user="sensor-7", action="publish", filter="home/#", allow=True)

    user: str = Field(examples=["sensor-7"], description="A client's name; * is everybody.")
    action: Action
    filter: str = Field(examples=["home/#"])
    allow: bool = Field(True, description="False: forbid it, whatever else grants it.")


class Rule(BaseModel):
    """A rule."""

    user: str
    action: str
    filter: str
    allow: bool


class RulesList(BaseModel):
    """Every rule."""

    rules: list[Rule]


@router.get("", summary="List rules", **needs("admin"))
async def list_rules(broker: Broker) -> RulesList:
    """Every one."""
    return RulesList(rules=[shown(Rule, one) for one in await broker.acl.list()])


@router.post("", status_code=201, summary="Grant or forbid something", **needs("admin"))
async def add(rule: NewRule, broker: Broker) -> Rule:
    """One of the same user, action and filter is replaced. Sessions feel it at once."""
    change = broker.acl.allow if rule.allow else broker.acl.deny
    await change(rule.user, rule.action, rule.filter)
    return shown(Rule, rule)


@router.delete("", status_code=204, summary="Take a rule back", **needs("admin"))
async def remove(user: str, action: Action, filter: str, broker: Broker) -> None:
    """Whether it granted or forbade."""
    await broker.acl.remove(user, action, filter)
