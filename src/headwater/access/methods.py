"""How clients may show who they are, by the setting `auth`: one place for every protocol.

A client chooses among the methods that are on: what it shows decides which one is meant, and it has to hold by that.
"""

from __future__ import annotations

from headwater.access.jwt import looks_like_token
from headwater.access.name import check_name
from headwater.config import Serving
from headwater.errors import Unauthenticated


class Methods:
    """Which methods are on."""

    def __init__(self, serving: Serving) -> None:
        on = self._on = serving.methods
        self._gatekeepers = serving.gatekeepers
        self.takes_gatekeepers = "gatekeeper" in on
        self.is_open = not on
        """Whether everybody is let in."""
        self.takes_secrets = "scram" in on or self.takes_gatekeepers
        """Of all but gatekeepers, whose word is enough."""
        self.takes_certificates = "scram" in on or "certificate" in on
        self.takes_tokens = "jwt" in on
        self.named = ",".join(on) or "none"
        """As refusals name them."""

    def is_token(self, password: bytes) -> bool:
        """Whether a password is meant to be the token of an issuer."""
        return self.takes_tokens and looks_like_token(password)

    def reads_passwords(self, certified: str | None, is_near: bool) -> bool:
        """Whether a password says who a peer is: not a gatekeeper, unless secrets are asked of everybody."""
        return "scram" in self._on or (self.takes_gatekeepers and not self.may_state(certified, is_near))

    def may_state(self, certified: str | None, is_near: bool) -> bool:
        """Whether a peer may say who it comes for: by its certificate, or for being on this machine."""
        return self.takes_gatekeepers and (is_near or (certified is not None and certified in self._gatekeepers))

    def trusted(self, stated: str, certified: str | None, is_near: bool) -> str:
        """Who somebody is who shows neither a secret nor a token: Unauthenticated (401) if that is not enough."""
        if self.is_open:
            return check_name(stated) if stated else "anonymous"
        if self.takes_certificates and certified is not None and certified not in self._gatekeepers:
            return check_name(certified)
        if self.may_state(certified, is_near):
            if not stated:
                raise Unauthenticated("a gatekeeper states the user; there is none")
            return check_name(stated)
        if self.takes_certificates and certified is not None:
            return check_name(certified)
        raise self.refusal()

    def refusal(self) -> Unauthenticated:
        """What somebody is told who shows nothing that would do."""
        ways = {
            "scram": "a name and a secret",
            "certificate": "a certificate",
            "jwt": "a token of the issuer",
            "gatekeeper": "a name and a secret, or through a gatekeeper",
        }
        how = ", or ".join(ways[name] for name in self._on)
        return Unauthenticated(f'this server asks who you are; its auth is "{self.named}": come with {how}')
