"""Tokens of an issuer over HTTP: whose they are, the role that they have, and their end."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from admin.served import Served, serving
from server.issuing import AUDIENCE, ISSUER, Issuing, SigningKey


@pytest.fixture(scope="module")
def key() -> SigningKey:
    return SigningKey("one", "RS256")


@pytest.fixture(scope="module")
def issuing(key: SigningKey) -> Iterator[Issuing]:
    with Issuing(key) as issuing:
        yield issuing


@pytest.fixture(scope="module")
def served(issuing: Issuing, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    settings = {
        "HEADWATER_AUTH": "scram,jwt",
        "HEADWATER_JWT_ISSUER": ISSUER,
        "HEADWATER_JWT_AUDIENCE": AUDIENCE,
        "HEADWATER_JWT_KEYS": issuing.url,
        "HEADWATER_JWT_LEEWAY_S": "0",
    }
    with serving(tmp_path_factory.mktemp("served") / "data", "--no-mqtt", **settings) as served:
        served.read_http()
        yield served


def role(name: str) -> dict[str, str]:
    return {"role": name}


def test_a_token_opens_what_its_role_says(served: Served, key: SigningKey):
    for token, may_read, may_write, may_administer in (
        (key.token(headwater=role("reader")), 200, 403, 403),
        (key.token(headwater=role("operator")), 200, 201, 403),
        (key.token(headwater=role("admin")), 200, 201, 200),
        (key.token(headwater={"subscribe": ["#"]}), 403, 403, 403),
        (key.token(), 403, 403, 403),
        (key.token(exp=1, headwater=role("admin")), 401, 401, 401),
        (key.token(aud="others", headwater=role("admin")), 401, 401, 401),
        (SigningKey("one", "RS256").token(headwater=role("admin")), 401, 401, 401),
        ("a.b.c", 401, 401, 401),
        ("", 401, 401, 401),
    ):
        with served.client(token) as http:
            assert http.get("/v1/topics").status_code == may_read, token
            message = {"topic": "home/x", "payload": "1"}
            assert http.post("/v1/messages", json=message).status_code == may_write, token
            assert http.get("/v1/clients").status_code == may_administer, token


def test_what_is_wrong_with_a_token_is_told(served: Served, key: SigningKey):
    with served.client(key.token(exp=1)) as http:
        assert "has expired" in http.get("/v1/topics").json()["detail"]
    with served.client(key.token()) as http:
        assert "has no role" in http.get("/v1/topics").json()["detail"]


def test_the_audit_has_the_name_of_the_token(served: Served, key: SigningKey):
    with served.client(key.token("root", headwater=role("admin"))) as http:
        assert http.post("/v1/clients", json={"name": "made-by-root"}).status_code == 201
        audit = http.get("/v1/messages", params={"filter": "$sys/audit"}).json()["messages"]
    assert any('"who":"root"' in entry["payload"] for entry in audit), audit


def test_a_token_opens_nothing_once_it_has_expired(served: Served, key: SigningKey):
    with served.client(key.token(exp=time.time() + 1.0, headwater=role("reader"))) as http:
        assert http.get("/v1/topics").status_code == 200
        while http.get("/v1/topics").status_code == 200:
            time.sleep(0.1)
        assert http.get("/v1/topics").status_code == 401


def test_the_dashboard_takes_a_token_of_the_issuer(served: Served, key: SigningKey):
    token = key.token(headwater=role("reader"), filler="x" * 4000)
    with served.client(follow_redirects=False) as http:
        answer = http.post("/login", data={"token": token, "next": "/"})
        assert answer.status_code == 303, answer.text
        assert token not in str(answer.headers)


def test_settings_show_what_is_taken(served: Served, key: SigningKey, issuing: Issuing):
    with served.client(key.token(headwater=role("admin"))) as http:
        shown = {one["name"]: one["value"] for one in http.get("/v1/config").json()["settings"]}
    assert shown["auth"] == "scram,jwt"
    assert shown["jwt_keys"] == issuing.url
    assert shown["jwt_audience"] == [AUDIENCE]
