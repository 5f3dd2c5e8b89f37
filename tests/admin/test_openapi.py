"""What nobody would ask, asked of every route: schemathesis reads the OpenAPI document and sends what it thinks of."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import hypothesis
import pytest
import schemathesis
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.core.result import Ok
from schemathesis.specs.openapi.checks import response_schema_conformance

from admin.routes import OPENAPI, table
from admin.served import Served, serving
from headwater.admin.gate import ROLES

EXAMPLES = 5
EXAMPLES_OF_A_SOAK = 500
ENDLESS = "/v1/messages/follow"  # it has tests of its own
CHECKS = (not_a_server_error, response_schema_conformance)


schema = schemathesis.openapi.from_dict(OPENAPI).exclude(path=ENDLESS)
operations = {one.ok().label: one.ok() for one in schema.get_all_operations() if isinstance(one, Ok)}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """One of its own, as nobody knows what becomes of it."""
    with serving(tmp_path_factory.mktemp("asked") / "data") as served:
        served.read_http()
        yield served


def ask(operation: Any, served: Served, examples: int) -> None:
    @hypothesis.settings(
        max_examples=examples,
        deadline=None,
        database=None,
        derandomize=True,
        suppress_health_check=tuple(hypothesis.HealthCheck),
    )
    @hypothesis.given(case=operation.as_strategy() | operation.as_strategy(generation_mode=GenerationMode.NEGATIVE))
    def check(case: Any) -> None:
        case.call_and_validate(base_url=served.http, checks=CHECKS, timeout=30)

    check()


def test_every_route_says_what_it_is_which_role_it_takes_and_how_it_fails():
    for path, methods in OPENAPI["paths"].items():
        for method, said in methods.items():
            assert said["summary"], (method, path)
            assert said["tags"], (method, path)
            assert "application/problem+json" in said["responses"]["default"]["content"]
            if path not in {"/healthz", "/readyz"}:
                assert said["x-role"] in ROLES, (method, path)
                assert said["security"] == [{"HTTPBearer": []}], (method, path)


def test_every_body_has_an_example_to_try_it_with():
    for path, methods in OPENAPI["paths"].items():
        for method, said in methods.items():
            body = said.get("requestBody", {}).get("content", {}).get("application/json")
            if body:
                named = [one for one in (body["schema"], *body["schema"].get("anyOf", ())) if "$ref" in one]
                assert OPENAPI["components"]["schemas"][named[0]["$ref"].rpartition("/")[2]]["examples"], (method, path)


def test_the_document_lists_every_route():
    document = Path(__file__).parents[2] / "docs" / "reference" / "http.md"
    assert table() in document.read_text(encoding="utf-8"), f"its table is:\n{table()}"


def test_the_page_that_shows_it_needs_nothing_from_elsewhere(http: httpx.Client):
    page = http.get("/docs").text
    links = re.findall(r'(?:src|href)="([^"]+)"', page)
    assert links
    for link in links:
        assert link.startswith("/"), link
        assert http.get(link).status_code == 200, link


@pytest.mark.parametrize("label", operations)
def test_no_request_makes_it_fail(label: str, served: Served):
    ask(operations[label], served, EXAMPLES)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("label", operations)
def test_no_request_makes_it_fail_for_long(label: str, served: Served):
    ask(operations[label], served, EXAMPLES_OF_A_SOAK)
