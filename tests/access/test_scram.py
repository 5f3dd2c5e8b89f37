"""Logins: the vector of RFC 7677, and everything that a client, a server or somebody in between could do wrong."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.access import scram
from headwater.access.scram import (
    ITERATIONS_MAX,
    ITERATIONS_MIN,
    MESSAGE_BYTES_MAX,
    SALT_BYTES,
    ClientLogin,
    Credential,
    Decoy,
    ServerLogin,
    derive,
    is_secret_of,
)
from headwater.errors import HeadwaterError, Malformed, Unauthenticated

# RFC 7677, section 3
NONCE = "rOprNGfwEbeRWgbNEkqO"
MORE = "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
SALT = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
CLIENT_FIRST = b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
SERVER_FIRST = b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
CLIENT_FINAL = (
    b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
)
SERVER_FINAL = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="

USERS = {"user": derive("pencil", SALT, ITERATIONS_MIN), "a,b=c": derive("käse", None, ITERATIONS_MIN)}
DECOY = Decoy(b"folder's own", ITERATIONS_MIN)


def server(nonce: str | None = None) -> ServerLogin:
    return ServerLogin(USERS.get, DECOY, nonce)


def asked(first: bytes = CLIENT_FIRST) -> ServerLogin:
    login = server(MORE)
    login.first(first)
    return login


def answered() -> ClientLogin:
    login = ClientLogin("user", "pencil", NONCE)
    login.first()
    login.respond(SERVER_FIRST)
    return login


def log_in(user: str, secret: str) -> str:
    ours, theirs = ClientLogin(user, secret), server()
    ours.verify(theirs.final(ours.respond(theirs.first(ours.first()))))
    return theirs.user


# How it goes


def test_the_client_says_what_the_rfc_says():
    login = ClientLogin("user", "pencil", NONCE)
    assert login.first() == CLIENT_FIRST
    assert login.respond(SERVER_FIRST) == CLIENT_FINAL
    login.verify(SERVER_FINAL)


def test_the_server_says_what_the_rfc_says():
    login = server(MORE)
    assert login.first(CLIENT_FIRST) == SERVER_FIRST
    assert login.final(CLIENT_FINAL) == SERVER_FINAL
    assert login.user == "user"


def test_both_sides_find_each_other_with_nonces_of_their_own():
    assert log_in("user", "pencil") == "user"
    assert server().first(CLIENT_FIRST) != server().first(CLIENT_FIRST)
    assert ClientLogin("user", "pencil").first() != ClientLogin("user", "pencil").first()


def test_names_with_commas_and_equals_signs_come_through():
    assert log_in("a,b=c", "käse") == "a,b=c"
    assert b"n=a=2Cb=3Dc," in ClientLogin("a,b=c", "käse").first()


def test_secrets_are_compared_in_normal_form():
    assert log_in("a,b=c", "ka\u0308se") == "a,b=c"


def test_a_client_that_thinks_of_channel_binding_is_taken():
    said, theirs = b"y,," + CLIENT_FIRST[3:], server(MORE)
    theirs.first(said)
    with pytest.raises(Unauthenticated):
        theirs.final(CLIENT_FINAL)  # it says n,, now
    theirs = server(MORE)
    response = proven(theirs.first(said), b"c=" + base64.b64encode(b"y,,"))
    assert theirs.final(response).startswith(b"v=")


def test_parts_that_may_be_ignored_are():
    theirs = server(MORE)
    bare = b"n=user,r=" + NONCE.encode() + b",x=future"
    first = theirs.first(b"n,," + bare)
    assert theirs.final(proven(first, b"c=biws", bare, extra=b",y=more")).startswith(b"v=")
    ours = ClientLogin("user", "pencil", NONCE)
    ours.first()
    assert ours.respond(SERVER_FIRST + b",x=future").startswith(b"c=biws")


def proven(
    first: bytes, binding: bytes, bare: bytes = CLIENT_FIRST[3:], extra: bytes = b"", nonce: bytes | None = None
) -> bytes:
    """A response as somebody else's client makes it, who knows the secret."""
    response = binding + b"," + (first.partition(b",")[0] if nonce is None else nonce) + extra
    client_key, stored_key, _ = scram._keys(b"pencil", SALT, ITERATIONS_MIN)
    proof = scram._xor(client_key, scram._hmac(stored_key, bare + b"," + first + b"," + response))
    return response + b",p=" + base64.b64encode(proof)


# Credentials


def test_a_credential_is_salted_and_shows_no_keys():
    one, other = derive("pencil", iterations=ITERATIONS_MIN), derive("pencil", iterations=ITERATIONS_MIN)
    assert one.salt != other.salt
    assert one.stored_key != other.stored_key
    assert len(one.salt) == SALT_BYTES
    assert repr(one) == "Credential(iterations=4096, …)"


@pytest.mark.parametrize("iterations", [0, 1, ITERATIONS_MIN - 1, ITERATIONS_MAX + 1])
def test_too_few_and_too_many_iterations_are_refused(iterations: int):
    with pytest.raises(Malformed, match="4096 to 1000000"):
        derive("pencil", iterations=iterations)


@pytest.mark.parametrize("secret", ["", "a\n", "a\0", "\x7f", "a\udcff", "x" * 1025, "ä" * 513, b"pencil", None])
def test_a_secret_that_cannot_be_one_is_refused(secret: Any):
    with pytest.raises(Malformed, match="secret"):
        derive(secret, iterations=ITERATIONS_MIN)
    with pytest.raises(Malformed, match="secret"):
        ClientLogin("user", secret)


def test_a_secret_that_was_sent_as_it_is_is_checked_too():
    assert is_secret_of(USERS["user"], "pencil")
    assert not is_secret_of(USERS["user"], "pencils")
    assert not is_secret_of(DECOY.credential_of("user"), "pencil")


# Wrong proofs


@pytest.mark.parametrize(("user", "secret"), [("user", "Pencil"), ("user", "pencil "), ("nobody", "pencil")])
def test_a_wrong_secret_and_an_unknown_user_get_the_same_answer(user: str, secret: str):
    with pytest.raises(Unauthenticated) as refused:
        log_in(user, secret)
    assert refused.value.args == (scram.REFUSED,)


@pytest.mark.parametrize("place", range(len(CLIENT_FINAL)))
def test_any_altered_byte_of_the_response_fails(place: int):
    for flip in (1, 2, 4, 32, 128):
        altered = bytearray(CLIENT_FINAL)
        altered[place] ^= flip
        login = asked()
        with pytest.raises((Unauthenticated, Malformed)):
            login.final(bytes(altered))
        with pytest.raises(Unauthenticated):
            _ = login.user


def test_any_altered_bit_of_the_proof_itself_is_unauthenticated():
    start, _, text = CLIENT_FINAL.rpartition(b",p=")
    proof = base64.b64decode(text)
    for bit in range(8 * len(proof)):
        altered = bytearray(proof)
        altered[bit // 8] ^= 1 << bit % 8
        with pytest.raises(Unauthenticated, match="the name or the secret is wrong"):
            asked().final(start + b",p=" + base64.b64encode(altered))


def test_a_recorded_response_is_of_no_use_to_a_later_login():
    assert asked().final(CLIENT_FINAL) == SERVER_FINAL
    later = server()
    later.first(CLIENT_FIRST)
    with pytest.raises(Unauthenticated):
        later.final(CLIENT_FINAL)


def test_a_proof_for_another_nonce_fails_even_if_it_is_right():
    for nonce in (b"r=" + NONCE.encode(), b"r=" + (NONCE + MORE).encode() + b"x", b"r=x"):
        with pytest.raises(Unauthenticated):
            asked().final(proven(SERVER_FIRST, b"c=biws", nonce=nonce))


@pytest.mark.parametrize("header", [b"y,,", b"p=tls-unique,,", b"n,a=admin,", b"n,,x"])
def test_a_right_proof_with_another_header_than_at_first_fails(header: bytes):
    with pytest.raises(Unauthenticated):
        asked().final(proven(SERVER_FIRST, b"c=" + base64.b64encode(header)))
    assert asked().final(proven(SERVER_FIRST, b"c=biws")) == SERVER_FINAL


def test_the_proof_of_one_user_is_none_for_another():
    users = {"user": USERS["user"], "twin": derive("pencil", SALT, ITERATIONS_MIN)}
    login = ServerLogin(users.get, DECOY, MORE)
    login.first(b"n,,n=twin,r=" + NONCE.encode())
    with pytest.raises(Unauthenticated):
        login.final(CLIENT_FINAL)


def test_a_decoy_cannot_be_logged_in_to_even_by_who_knows_its_keys():
    class Leaky(Decoy):
        def credential_of(self, name: str) -> Credential:
            return USERS["user"]

    login = ServerLogin(lambda _: None, Leaky(b""), MORE)
    assert login.first(CLIENT_FIRST) == SERVER_FIRST
    with pytest.raises(Unauthenticated):
        login.final(CLIENT_FINAL)


# Unknown users


def test_an_unknown_user_sees_the_same_salt_each_time_and_another_than_other_names():
    salts = [server(MORE).first(b"n,,n=%b,r=abc" % name).split(b",")[1] for name in (b"x", b"x", b"y")]
    assert salts[0] == salts[1] != salts[2]
    assert Decoy(b"another folder").credential_of("x").salt != DECOY.credential_of("x").salt


def test_an_unknown_user_takes_the_same_steps_as_a_known_one(monkeypatch: pytest.MonkeyPatch):
    real, sizes = scram._hmac, list[tuple[int, int]]()

    def counted(key: bytes, said: bytes) -> bytes:
        sizes.append((len(key), len(said)))
        return real(key, said)

    monkeypatch.setattr(scram, "_hmac", counted)
    seen = []
    for name in (b"user", b"resu"):
        sizes.clear()
        login = server(MORE)
        first = login.first(b"n,,n=%b,r=%b" % (name, NONCE.encode()))
        with pytest.raises(Unauthenticated) as refused:
            login.final(CLIENT_FINAL.replace(b"dHzb", b"aaaa"))
        shape = [(part[:2], len(part)) for part in first.split(b",")]
        seen.append((list(sizes), shape, first.split(b",")[2], str(refused.value)))
    assert seen[0] == seen[1]
    assert len(seen[0][0]) == 5


def test_the_decoy_shows_no_secret():
    assert "folder" not in repr(DECOY)


# Order


STEPS: dict[str, tuple[Callable[[], Any], list[Callable[[Any], object]]]] = {
    "server": (
        lambda: server(MORE),
        [lambda login: login.first(CLIENT_FIRST), lambda login: login.final(CLIENT_FINAL)],
    ),
    "client": (
        lambda: ClientLogin("user", "pencil", NONCE),
        [
            lambda login: login.first(),
            lambda login: login.respond(SERVER_FIRST),
            lambda login: login.verify(SERVER_FINAL),
        ],
    ),
}


@pytest.mark.parametrize("side", STEPS)
def test_a_step_out_of_order_raises_and_ends_the_login(side: str):
    make, steps = STEPS[side]
    for done in range(len(steps) + 1):
        for wrong in range(len(steps)):
            if wrong == done:
                continue
            login = make()
            for step in steps[:done]:
                step(login)
            with pytest.raises(Unauthenticated, match="begin a new one"):
                steps[wrong](login)
            for step in steps:
                with pytest.raises(Unauthenticated, match="begin a new one"):
                    step(login)


def test_nobody_is_logged_in_before_the_end():
    login = server(MORE)
    for step in (lambda: login.first(CLIENT_FIRST), lambda: login.final(CLIENT_FINAL)):
        with pytest.raises(Unauthenticated):
            _ = login.user
        step()
    assert login.user == "user"


def test_a_failed_login_cannot_be_tried_again():
    login = asked()
    with pytest.raises(Unauthenticated):
        login.final(CLIENT_FINAL.replace(b"dHzb", b"aaaa"))
    with pytest.raises(Unauthenticated, match="begin a new one"):
        login.final(CLIENT_FINAL)


# A server that is not what it says


@pytest.mark.parametrize("place", range(2, len(SERVER_FINAL)))
def test_any_altered_byte_of_the_server_s_signature_is_noticed(place: int):
    altered = bytearray(SERVER_FINAL)
    altered[place] ^= 1
    with pytest.raises((Unauthenticated, Malformed)):
        answered().verify(bytes(altered))


def test_a_server_that_does_not_know_the_secret_is_noticed():
    with pytest.raises(Unauthenticated, match="does not know"):
        answered().verify(b"v=" + base64.b64encode(bytes(32)))
    with pytest.raises(Unauthenticated, match="other-error"):
        answered().verify(b"e=other-error")


@pytest.mark.parametrize("nonce", ["", NONCE, NONCE[:-1] + "xmore", "other", NONCE + "ä", NONCE + "a b"])
def test_a_server_that_answers_with_another_nonce_is_not_answered(nonce: str):
    login = ClientLogin("user", "pencil", NONCE)
    login.first()
    with pytest.raises((Unauthenticated, Malformed)):
        login.respond(f"r={nonce},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096".encode())


@pytest.mark.parametrize(
    "count", ["0", "1", "4095", "1000001", "9999999999", "99999999999999", "-4096", "04096", "4096.0", "4_096", "٤٠٩٦"]
)
def test_a_server_that_asks_for_too_little_or_too_much_work_is_not_answered(
    count: str, monkeypatch: pytest.MonkeyPatch
):
    login = ClientLogin("user", "pencil", NONCE)
    login.first()
    monkeypatch.setattr(scram, "_keys", lambda *_: pytest.fail("it did the work"))
    with pytest.raises((Unauthenticated, Malformed)):
        login.respond(SERVER_FIRST.replace(b"4096", count.encode()))


# Garbage


@pytest.mark.parametrize(
    "first",
    [
        b"",
        b"n",
        b"n,",
        b"n,,",
        b"n,,n=user",
        b"n,,r=abc",
        b"n,,r=abc,n=user",
        b"n,,n=,r=abc",
        b"n,,n=user,r=",
        b"x,,n=user,r=abc",
        b",,n=user,r=abc",
        b"N,,n=user,r=abc",
        b"n,,m=must,n=user,r=abc",
        b"n,,n=user,r=abc,m=must",
        b"n,,n=user,r=abc,",
        b"n,,n=user,r=abc,xx",
        b"n,,n=user,r=a bc",
        b"n,,n=user,r=\xc3\xa4",
        b"n,,n=us\0er,r=abc",
        b"n,,n=user,r=abc,x=\0",
        b"n,,n=us=er,r=abc",
        b"n,,n=us=2cer,r=abc",
        b"n,,n=user=,r=abc",
        b"n,,n=%u,r=abc",
        b"n,,n=a/b,r=abc",
        b"n,,n=\xff,r=abc",
        b"n,,n=" + b"x" * 65 + b",r=abc",
        b"n,,n=user,r=" + b"x" * 257,
        b"n,,n=user,r=abc,x=" + b"x" * MESSAGE_BYTES_MAX,
    ],
)
def test_a_malformed_first_message_is_refused(first: bytes):
    login = server()
    with pytest.raises(Malformed):
        login.first(first)
    with pytest.raises(Unauthenticated):
        login.first(CLIENT_FIRST)


@pytest.mark.parametrize("first", [b"p=tls-unique,,n=user,r=abc", b"n,a=admin,n=user,r=abc", b"p=x,a=y,n=user,r=abc"])
def test_channel_binding_and_acting_for_others_are_refused(first: bytes):
    with pytest.raises(Unauthenticated):
        server().first(first)


MESSAGES = [CLIENT_FIRST, SERVER_FIRST, CLIENT_FINAL, SERVER_FINAL]


def mangled() -> st.SearchStrategy[bytes]:
    pieces = st.sampled_from(
        [b"n,,", b"n=user", b"r=", b"c=biws", b"p=", b"v=", b"s=W22Z", b"i=4096", b",", b"=", b"m=x", b"\0", b"\xff"]
    )
    cut = st.builds(
        lambda message, start, end, junk: message[:start] + junk + message[end:],
        st.sampled_from(MESSAGES),
        st.integers(0, 110),
        st.integers(0, 110),
        st.binary(max_size=4),
    )
    return st.binary(max_size=60) | st.lists(pieces, max_size=8).map(b"".join) | cut


def steps_with(message: bytes) -> Iterator[Callable[[], object]]:
    yield lambda: server(MORE).first(message)
    yield lambda: asked().final(message)
    ours = ClientLogin("user", "pencil", NONCE)
    ours.first()
    yield lambda: ours.respond(message)
    yield lambda: answered().verify(message)


@settings(max_examples=150, deadline=None)
@given(mangled())
def test_garbage_raises_nothing_but_our_errors_and_logs_nobody_in(message: bytes):
    for number, step in enumerate(steps_with(message)):
        try:
            step()
        except (Malformed, Unauthenticated):
            continue
        except HeadwaterError as error:  # pragma: no cover
            pytest.fail(f"{error!r}")
        assert number in (0, 2) or message == CLIENT_FINAL or message.startswith(SERVER_FINAL)


@pytest.mark.parametrize("message", MESSAGES)
def test_every_truncation_is_refused(message: bytes):
    place = MESSAGES.index(message)
    for end in range(len(message)):
        step = list(steps_with(message[:end]))[place]
        try:
            step()
        except (Malformed, Unauthenticated):
            continue
        # A shorter nonce is a nonce, and a server may ask for what looks like fewer digits only if that is too few.
        assert message is CLIENT_FIRST
        assert message[:end].startswith(b"n,,n=user,r=r")
