"""Tokens of an issuer (JWT, RFC 7519): whose they are, how long they count, and what they grant.

Invariants:

- Nothing of a token counts before its signature holds, by a key of the issuer and an algorithm that is allowed; what
  the token says about where keys are is passed over.
- It is of this issuer, for this audience, has an end, and has begun; time is the clock's that is passed in.
- Its user is well formed (`access.name`). Rules that it brings are checked like any other; one that cannot be is reason
  enough to refuse all of it, as whoever issues it means something else than what would be granted.
"""

from __future__ import annotations

import binascii
from base64 import urlsafe_b64decode
from math import isfinite
from typing import Any, NamedTuple, cast, get_args

import msgspec

from headwater.access.acl import Acl, Action, Rule
from headwater.access.jwks import KeySet, library
from headwater.access.name import check_name, quoted
from headwater.clock import SECOND_US
from headwater.config import Serving
from headwater.errors import HeadwaterError, Malformed, Unauthenticated
from headwater.wire.administration import Role

TOKEN_CHARS_MAX = 16 * 1024
"""A longer token is none."""
RULES_MAX = 1000
"""Filters in the claim of one token; more: it is refused."""
MOMENT_S_MAX = 253_402_300_799
"""The last moment of the year 9999; what expires later does then."""
ROLES: tuple[Role, ...] = get_args(Role)
NOT_ONE = "this is no token of an issuer: a JWT has three parts in base64url, with dots between them"


class UnknownKey(Unauthenticated):
    """A token's signature is by a key that is not among those of the issuer: perhaps a new one."""


class Bearer(NamedTuple):
    """Who brings a token that holds."""

    user: str
    expires_us: int
    """When it does, with the leeway."""
    rules: tuple[Rule, ...] = ()
    role: Role | None = None
    """What it opens of the HTTP API."""


class Grants(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The claim that says what a token's user may do. A member that is none of these is refused: it is a misspelt one,
    or forbids something."""

    publish: tuple[str, ...] = ()
    create: tuple[str, ...] | None = None
    """Topics that are not there yet; left out: as `publish`."""
    subscribe: tuple[str, ...] = ()
    role: Role | None = None
    """Of the HTTP API; admin also looks after the server natively."""


def looks_like_token(text: bytes) -> bool:
    """Whether it is written as a JWT is: what else it may be is for its signature to tell."""
    head, _, rest = text.partition(b".")
    return head.startswith(b"eyJ") and rest.count(b".") == 1


class Verifier:
    """Checks tokens; has no keys and no clock of its own, and any thread may ask."""

    def __init__(self, serving: Serving, acl: Acl) -> None:
        self._jwt = library()
        self._serving = serving
        self._acl = acl
        self._options = {
            "require": ["exp", "iss", "aud", serving.jwt_user_claim],
            # Time is told by a clock of ours; who it is, by the claim that the settings name.
            **dict.fromkeys(("verify_exp", "verify_nbf", "verify_iat", "verify_sub", "verify_jti"), False),
        }

    def check(self, token: str, keys: KeySet, now_us: int) -> Bearer:
        """Whose token this is; Unauthenticated (401) says what is wrong with it, UnknownKey if other keys may help."""
        algorithm, key_id = self._head(token)
        fitting = keys.fitting(key_id, algorithm)
        if not fitting:
            named = f"key {quoted(key_id)}" if key_id is not None else "one key that it would name"
            raise UnknownKey(f"the token is signed for {algorithm} by {named}, which the issuer does not have")
        claims = self._claims(token, algorithm, [key.public for key in fitting])
        expires_us = self._check_times(claims, now_us)
        user = self._user(claims)
        grants = self._grants(user, claims)
        return Bearer(user, expires_us, self._rules(user, grants), grants.role)

    def _head(self, token: str) -> tuple[str, str | None]:
        """The algorithm and the key that a token names."""
        if len(token) > TOKEN_CHARS_MAX:
            raise Unauthenticated(
                f"the token has more than {TOKEN_CHARS_MAX} characters; ask for one with fewer claims"
            )
        if not token.isascii() or token.count(".") != 2:
            raise Unauthenticated(NOT_ONE)
        part = token.partition(".")[0]
        try:
            head = msgspec.json.decode(urlsafe_b64decode(part + "=" * (-len(part) % 4)))
        except (binascii.Error, ValueError, RecursionError):
            raise Unauthenticated(NOT_ONE) from None
        if not isinstance(head, dict) or "crit" in head:
            raise Unauthenticated("the token has a head that is not understood; ask for one without crit")
        algorithm, key_id = head.get("alg"), head.get("kid")
        if algorithm not in self._serving.jwt_algorithms:
            raise Unauthenticated(
                f"the token is signed for {quoted(str(algorithm))}; "
                f"{', '.join(self._serving.jwt_algorithms)} are taken (jwt_algorithms)"
            )
        if key_id is not None and not isinstance(key_id, str):
            raise Unauthenticated("the token names its key by something that is no text")
        return cast("str", algorithm), key_id

    def _claims(self, token: str, algorithm: str, publics: list[Any]) -> dict[str, Any]:
        jwt, serving = self._jwt, self._serving
        for place, public in enumerate(publics, 1):
            try:
                return cast(
                    "dict[str, Any]",
                    jwt.decode(
                        token,
                        public,
                        algorithms=[algorithm],
                        audience=list(serving.jwt_audience),
                        issuer=serving.jwt_issuer,
                        options=self._options,
                    ),
                )
            except jwt.InvalidSignatureError:
                if place == len(publics):
                    raise Unauthenticated("the token's signature does not hold") from None
            except jwt.InvalidAudienceError:
                expected = ", ".join(map(quoted, serving.jwt_audience))
                raise Unauthenticated(f"the token is for others; its audience has to be {expected}") from None
            except jwt.InvalidIssuerError:
                raise Unauthenticated(f"the token is of another issuer than {quoted(serving.jwt_issuer)}") from None
            except jwt.MissingRequiredClaimError as error:
                raise Unauthenticated(f"the token has no claim {quoted(str(error.claim))}") from None
            except jwt.PyJWTError:
                raise Unauthenticated(NOT_ONE) from None
        raise AssertionError("there is a key")  # pragma: no cover

    def _check_times(self, claims: dict[str, Any], now_us: int) -> int:
        """When a token expires, if it has begun and has not done so yet."""
        leeway_us = round(self._serving.jwt_leeway_s * SECOND_US)
        expires_us = _moment_us(claims, "exp") + leeway_us
        if now_us >= expires_us:
            raise Unauthenticated("the token has expired; ask its issuer for another")
        for name in ("nbf", "iat"):
            if name in claims and now_us < _moment_us(claims, name) - leeway_us:
                raise Unauthenticated(f"the token begins later ({name}); does the clock of its issuer go right?")
        return expires_us

    def _user(self, claims: dict[str, Any]) -> str:
        name = self._serving.jwt_user_claim
        try:
            return check_name(claims[name])
        except Malformed as error:
            raise Unauthenticated(f"the claim {quoted(name)} of the token is no user's name: {error.args[0]}") from None

    def _grants(self, user: str, claims: dict[str, Any]) -> Grants:
        name = self._serving.jwt_rules_claim
        if not name or name not in claims:
            return Grants()
        try:
            return msgspec.convert(claims[name], Grants)
        except msgspec.ValidationError as error:
            raise self._wrong(user, str(error)) from None

    def _rules(self, user: str, grants: Grants) -> tuple[Rule, ...]:
        create = grants.publish if grants.create is None else grants.create
        wanted: list[tuple[Action, str]] = [
            *(("publish", one) for one in grants.publish),
            *(("create", one) for one in create),
            *(("subscribe", one) for one in grants.subscribe),
        ]
        if len(wanted) > RULES_MAX:
            raise self._wrong(user, f"it has more than {RULES_MAX} filters")
        if grants.role == "admin":
            wanted.append(("admin", "#"))
        try:
            return tuple(self._acl.granted(user, action, one) for action, one in wanted)
        except HeadwaterError as error:
            raise self._wrong(user, str(error.args[0])) from None

    def _wrong(self, user: str, why: str) -> Unauthenticated:
        name = quoted(self._serving.jwt_rules_claim)
        return Unauthenticated(f"the claim {name} of the token of {quoted(user)} cannot be: {why}")


def _moment_us(claims: dict[str, Any], name: str) -> int:
    value = claims[name]
    if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value):
        raise Unauthenticated(f"the claim {quoted(name)} of the token is no moment; it is in seconds since 1970")
    return round(max(0, min(value, MOMENT_S_MAX)) * SECOND_US)
