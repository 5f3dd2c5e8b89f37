r"""SASL OAUTHBEARER (RFC 7628): how a client brings the token of an issuer, natively and in MQTT 5.

    n,,\x01auth=Bearer TOKEN\x01\x01                  with a name: n,a=NAME,\x01auth=Bearer TOKEN\x01\x01

One message does it. The answer that the RFC has for a refusal is not sent: natively an ERROR frame tells, in MQTT the
reason of a CONNACK.
"""

from __future__ import annotations

from typing import NamedTuple

from headwater.access.name import check_name
from headwater.errors import Malformed, Unauthenticated

END = "\x01"
SCHEME = "bearer"
EXAMPLE = r"write it as n,,\x01auth=Bearer TOKEN\x01\x01"


class Said(NamedTuple):
    """What a client brings."""

    token: str
    user: str
    """Who it says it is; empty if it leaves that to the token."""

    def __repr__(self) -> str:
        return f"Said(…, {self.user!r})"  # tokens do not belong in logs


def message(token: str, user: str = "") -> bytes:
    """What a client says."""
    name = f"a={user.replace('=', '=3D').replace(',', '=2C')}" if user else ""
    return f"n,{name},{END}auth=Bearer {token}{END}{END}".encode()


def read(said: bytes) -> Said:
    """What a client has said; Malformed (422) if that is not as the RFC has it."""
    try:
        text = said.decode()
    except UnicodeDecodeError:
        raise Malformed(f"an OAUTHBEARER message is not UTF-8; {EXAMPLE}") from None
    header, begun, rest = text.partition(END)
    flag, comma, name = header.partition(",")
    if not begun or not comma or not name.endswith(",") or not rest.endswith(END + END):
        raise Malformed(f"an OAUTHBEARER message begins with n,, and ends with two \\x01; {EXAMPLE}")
    if flag.startswith("p="):
        raise Unauthenticated("channel binding is not offered; log in without it, through TLS")
    pairs = [part.partition("=") for part in rest[:-2].split(END)]
    tokens = [value for key, equals, value in pairs if key == "auth" and equals]
    if flag not in ("n", "y") or len(tokens) != 1:
        raise Malformed(f"an OAUTHBEARER message has one auth=; {EXAMPLE}")
    scheme, _, token = tokens[0].partition(" ")
    if scheme.lower() != SCHEME or not token.strip():
        raise Malformed(f"an OAUTHBEARER message has a token of the scheme Bearer; {EXAMPLE}")
    return Said(token.strip(), _user(name[:-1]))


def _user(field: str) -> str:
    if not field:
        return ""
    if not field.startswith("a="):
        raise Malformed(f"an OAUTHBEARER message names its user as n,a=NAME,; {EXAMPLE}")
    return check_name(field[2:].replace("=2C", ",").replace("=3D", "="))
