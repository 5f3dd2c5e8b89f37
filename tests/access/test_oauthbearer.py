"""The message of OAUTHBEARER, both ways."""

from __future__ import annotations

import pytest

from headwater.access.oauthbearer import Said, message, read
from headwater.errors import HeadwaterError, Malformed


@pytest.mark.parametrize("user", ["", "ann", "a=b,c"])
def test_what_is_said_is_read(user: str):
    assert read(message("a.b.c", user)) == Said("a.b.c", user)


def test_the_example_of_the_rfc_is_read():
    said = (
        b"n,a=ann,\x01host=server.example.com\x01port=143\x01auth=Bearer vF9dft4qmTc2Nvb3RlckBhbHRhdmlzdGEuY29t\x01\x01"
    )
    assert read(said) == Said("vF9dft4qmTc2Nvb3RlckBhbHRhdmlzdGEuY29t", "ann")
    assert read(b"y,,\x01auth=bearer x\x01\x01").token == "x"


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"\x01",
        b"n,,",
        b"n,,\x01\x01",
        b"n,,\x01auth=Bearer x\x01",
        b"n,\x01auth=Bearer x\x01\x01",
        b"x,,\x01auth=Bearer x\x01\x01",
        b"p=tls-unique,,\x01auth=Bearer x\x01\x01",
        b"n,u=ann,\x01auth=Bearer x\x01\x01",
        b"n,a=$admin,\x01auth=Bearer x\x01\x01",
        b"n,,\x01auth=Basic x\x01\x01",
        b"n,,\x01auth=Bearer \x01\x01",
        b"n,,\x01auth=Bearer x\x01auth=Bearer y\x01\x01",
        b"n,,\x01token=x\x01\x01",
        b"\xff,,\x01auth=Bearer x\x01\x01",
    ],
)
def test_what_is_not_as_the_rfc_has_it_is_refused(said: bytes):
    with pytest.raises(HeadwaterError):
        read(said)


def test_a_token_shows_in_no_repr():
    assert "a.b.c" not in repr(Said("a.b.c", "ann"))
    with pytest.raises(Malformed) as refused:
        read(b"n,,\x01auth=Basic hunter2\x01\x01")
    assert "hunter2" not in str(refused.value)
