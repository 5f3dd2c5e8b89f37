"""What of a token is looked at, and what is wrong with those that are refused."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

import headwater
from headwater.access.jwks import read_keys
from headwater.access.jwt import RULES_MAX, TOKEN_CHARS_MAX, Bearer, UnknownKey, Verifier, looks_like_token
from headwater.clock import SECOND_US
from headwater.config import JWT_ALGORITHMS, Serving
from headwater.errors import Malformed, Unauthenticated
from server.issuing import AUDIENCE, ISSUER, SigningKey, key_set

LEEWAY_S = 30


@pytest.fixture(scope="module")
def acl() -> Iterator[Any]:
    with headwater.open(":memory:") as bus:
        yield bus.acl


@pytest.fixture(scope="module")
def key() -> SigningKey:
    return SigningKey("one")


def serving(**settings: Any) -> Serving:
    of_issuer = {"auth": "jwt", "jwt_issuer": ISSUER, "jwt_audience": (AUDIENCE,), "jwt_keys": "keys.json"}
    return Serving(**{**of_issuer, **settings})


Check = Callable[..., Bearer]


@pytest.fixture
def check(acl: Any, key: SigningKey) -> Check:
    def check(token: str, *keys: SigningKey, now_s: float | None = None, **settings: Any) -> Bearer:
        now_us = round((time.time() if now_s is None else now_s) * SECOND_US)
        return Verifier(serving(**settings), acl).check(token, read_keys(key_set(*(keys or (key,)))), now_us)

    return check


@pytest.mark.parametrize("algorithm", JWT_ALGORITHMS)
def test_a_token_of_every_algorithm_holds_by_its_key(check: Check, algorithm: str):
    key = SigningKey("one", algorithm)
    found = check(key.token("ann"), key, jwt_algorithms=(algorithm,))
    assert found.user == "ann"
    assert (found.rules, found.role) == ((), None)


def test_a_token_counts_until_its_end_and_the_leeway(check: Check, key: SigningKey):
    end = 2_000_000_000
    token = key.token(exp=end, iat=end - 60, nbf=end - 60)
    assert check(token, now_s=end).expires_us == (end + LEEWAY_S) * SECOND_US
    check(token, now_s=end + LEEWAY_S - 0.001)
    with pytest.raises(Unauthenticated, match="has expired"):
        check(token, now_s=end + LEEWAY_S)
    check(token, now_s=end - 60 - LEEWAY_S)
    with pytest.raises(Unauthenticated, match="begins later"):
        check(token, now_s=end - 60 - LEEWAY_S - 0.001)
    with pytest.raises(Unauthenticated, match="has expired"):
        check(token, now_s=end, jwt_leeway_s=0.0)


@pytest.mark.parametrize(
    ("claims", "says"),
    [
        ({"iss": "https://other.test"}, "another issuer"),
        ({"iss": None}, '"iss"'),
        ({"aud": "others"}, "for others"),
        ({"aud": ["others", "more"]}, "for others"),
        ({"aud": None}, '"aud"'),
        ({"sub": None}, '"sub"'),
        ({"exp": None}, '"exp"'),
        ({"exp": "tomorrow"}, '"exp"'),
        ({"exp": True}, '"exp"'),
        ({"nbf": "tomorrow"}, '"nbf"'),
        ({"sub": "home/#"}, '"sub"'),
        ({"sub": "$admin"}, '"sub"'),
        ({"sub": ""}, '"sub"'),
        ({"sub": 7}, '"sub"'),
    ],
)
def test_claims_that_are_wrong_or_missing_are_named(check: Check, key: SigningKey, claims: dict[str, Any], says: str):
    with pytest.raises(Unauthenticated, match=says):
        check(key.token(**claims))


def test_one_audience_of_several_is_enough_on_either_side(check: Check, key: SigningKey):
    assert check(key.token(aud=["others", AUDIENCE])).user == "ann"
    assert check(key.token(aud="second"), jwt_audience=("first", "second")).user == "ann"


def test_the_user_may_be_in_another_claim(check: Check, key: SigningKey):
    assert check(key.token("4711", preferred_username="ann"), jwt_user_claim="preferred_username").user == "ann"
    with pytest.raises(Unauthenticated, match='"preferred_username"'):
        check(key.token("4711"), jwt_user_claim="preferred_username")


# Signatures


def part(value: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()


def test_alg_none_is_refused_whatever_it_says(check: Check, key: SigningKey):
    claims = key.token().split(".")[1]
    for algorithm in ("none", "None", "nOnE", "", None):
        with pytest.raises(Unauthenticated, match="are taken"):
            check(f"{part({'alg': algorithm, 'kid': 'one'})}.{claims}.")


@pytest.mark.parametrize("form", [PublicFormat.SubjectPublicKeyInfo, PublicFormat.PKCS1])
def test_hs256_with_the_public_key_as_its_secret_is_refused(check: Check, form: PublicFormat):
    key = SigningKey("one", "RS256")
    secret = key.private.public_key().public_bytes(Encoding.PEM, form)
    said = f"{part({'alg': 'HS256', 'kid': 'one'})}.{key.token().split('.')[1]}"
    mac = hmac.digest(secret, said.encode(), hashlib.sha256)
    token = f"{said}.{base64.urlsafe_b64encode(mac).rstrip(b'=').decode()}"
    with pytest.raises(Unauthenticated, match="HS256"):
        check(token, key)
    with pytest.raises(Malformed, match="jwt_algorithms"):
        serving(jwt_algorithms=("RS256", "HS256"))
    with pytest.raises(Malformed, match="jwt_algorithms"):
        serving(jwt_algorithms=("none",))


def test_an_algorithm_that_is_not_allowed_is_refused(check: Check):
    key = SigningKey("one", "RS512")
    with pytest.raises(Unauthenticated, match="RS512"):
        check(key.token(), key)


def test_another_key_of_the_same_name_does_not_do(check: Check, key: SigningKey):
    with pytest.raises(Unauthenticated, match="signature does not hold"):
        check(SigningKey("one").token())


def test_a_key_of_another_kind_under_the_same_name_does_not_do(check: Check, key: SigningKey):
    with pytest.raises(UnknownKey):
        check(SigningKey("one", "EdDSA").token())


def test_two_keys_of_one_name_are_both_tried(check: Check, key: SigningKey):
    other = SigningKey("one")
    assert check(other.token(), key, other).user == "ann"
    assert check(key.token(), key, other).user == "ann"


def test_an_unknown_key_is_told_apart(check: Check):
    with pytest.raises(UnknownKey, match='"two"'):
        check(SigningKey("two").token())


def test_a_token_that_names_no_key_fits_one_alone(check: Check, key: SigningKey):
    now = int(time.time())
    token = jwt.encode({"iss": ISSUER, "aud": AUDIENCE, "sub": "ann", "exp": now + 60}, key.private, "ES256")
    assert check(token).user == "ann"
    with pytest.raises(UnknownKey):
        check(token, key, SigningKey("two"))


def test_a_changed_token_does_not_hold(check: Check, key: SigningKey):
    head, claims, signature = key.token().split(".")
    others = key.token("bob").split(".")[1]
    with pytest.raises(Unauthenticated, match="signature"):
        check(f"{head}.{others}.{signature}")
    with pytest.raises(Unauthenticated):
        check(f"{head}.{claims}.")
    with pytest.raises(Unauthenticated):
        check(f"{head}.{claims}.!{signature[1:]}")


def test_a_head_that_must_be_understood_and_is_not_is_refused(check: Check, key: SigningKey):
    token = jwt.encode({"sub": "ann"}, key.private, "ES256", headers={"kid": "one", "crit": ["exp"], "exp": 1})
    with pytest.raises(Unauthenticated, match="crit"):
        check(token)


@pytest.mark.parametrize(
    "text",
    [
        "",
        ".",
        "..",
        "a.b.c",
        "eyJ.eyJ.x",
        "hwt_0_0",
        "é.é.é",
        "[]",
        "e30.e30.e30",
        "W10.e30.e30",
        "a" * 70_000,
        "\0.\0.\0",
    ],
)
def test_what_is_no_token_is_refused(check: Check, text: str):
    with pytest.raises(Unauthenticated):
        check(text)


def test_a_token_has_a_longest(check: Check, key: SigningKey):
    with pytest.raises(Unauthenticated, match=str(TOKEN_CHARS_MAX)):
        check(key.token(filler="x" * TOKEN_CHARS_MAX))


def test_what_is_written_like_a_token_is_taken_for_one(key: SigningKey):
    assert looks_like_token(key.token().encode())
    for other in (b"", b"secret", b"eyJ", b"eyJ.a", b"eyJ.a.b.c", b"hwt_1_2"):
        assert not looks_like_token(other)


# Rules


def test_rules_come_with_the_token(check: Check, key: SigningKey):
    found = check(key.token(headwater={"publish": ["home/%u/#"], "subscribe": ["home/#", "$SYS/#"]}))
    assert [str(rule) for rule in found.rules] == [
        "allow ann publish home/%u/#",
        "allow ann create home/%u/#",
        "allow ann subscribe home/#",
        "allow ann subscribe $SYS/#",
    ]
    found = check(key.token(headwater={"publish": ["home/#"], "create": [], "role": "admin"}))
    assert [str(rule) for rule in found.rules] == ["allow ann publish home/#", "allow ann admin #"]
    assert found.role == "admin"
    assert check(key.token(headwater={"role": "reader"})).role == "reader"


def test_the_claim_for_rules_may_be_another_or_none(check: Check, key: SigningKey):
    claims: dict[str, Any] = {"https://example.test/rights": {"subscribe": ["a"]}, "headwater": {"subscribe": ["b"]}}
    token = key.token(**claims)
    assert [rule.filter for rule in check(token, jwt_rules_claim="https://example.test/rights").rules] == ["a"]
    assert check(token, jwt_rules_claim="").rules == ()


@pytest.mark.parametrize(
    "claim",
    [
        "everything",
        ["home/#"],
        {"publish": "home/#"},
        {"publish": [7]},
        {"publish": ["home/#/x"]},
        {"publish": [""]},
        {"subscribe": ["home/x%u"]},
        {"subscribe": ["a" * 5000]},
        {"subscibe": ["home/#"]},
        {"deny": ["home/#"]},
        {"channel": ["home/#"]},
        {"role": "root"},
        {"role": ["admin"]},
        {"subscribe": ["a"] * (RULES_MAX + 1)},
        None,
    ],
    ids=str,
)
def test_a_claim_that_cannot_be_refuses_the_token(check: Check, key: SigningKey, claim: object):
    token = jwt.encode(
        {"iss": ISSUER, "aud": AUDIENCE, "sub": "ann", "exp": int(time.time()) + 60, "headwater": claim},
        key.private,
        "ES256",
        headers={"kid": "one"},
    )
    with pytest.raises(Unauthenticated, match='claim "headwater" of the token of "ann"'):
        check(token)


# Settings, and what is not installed


def test_auth_takes_several_methods():
    assert Serving(auth="none").methods == ()
    assert Serving(auth="scram").methods == ("scram",)
    assert serving(auth="jwt, scram").methods == ("scram", "jwt")
    assert serving(auth=("gatekeeper", "jwt", "scram")).methods == ("scram", "gatekeeper", "jwt")


@pytest.mark.parametrize("auth", ["none,jwt", ("none", "scram"), "", (), "scrum", "scram,,jwt", "scram jwt", "token"])
def test_methods_that_cannot_be_are_refused(auth: Any):
    with pytest.raises(Malformed, match="auth"):
        serving(auth=auth)


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("jwt_issuer", ""),
        ("jwt_audience", ()),
        ("jwt_keys", ""),
        ("jwt_user_claim", ""),
        ("jwt_algorithms", ()),
        ("jwt_algorithms", ("RS256", "HS256")),
        ("jwt_keys", "http://issuer.test/keys"),
        ("jwt_keys", "ftp://127.0.0.1/keys"),
        ("jwt_keys", "https://"),
        ("jwt_keys", "https://[::1/keys"),
        ("jwt_keys", "https://issuer.test:99999/keys"),
    ],
)
def test_settings_that_would_take_no_token_or_any_are_refused(setting: str, value: Any):
    with pytest.raises(Malformed, match=setting):
        serving(**{setting: value})


def test_a_secret_in_the_url_of_the_keys_is_refused_and_not_shown():
    with pytest.raises(Malformed, match="jwt_keys") as refused:
        serving(jwt_keys="https://me:hunter2@issuer.test/keys")
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize("missing", ["jwt", "cryptography"])
def test_without_the_extra_it_is_named(acl: Any, monkeypatch: pytest.MonkeyPatch, missing: str):
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(Malformed, match=r"pip install 'headwater\[jwt\]'"):
        Verifier(serving(), acl)
