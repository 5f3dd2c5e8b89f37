"""Logging in as an attacker would: guesses, replays, altered proofs, stolen places; certificates and gatekeepers."""

from __future__ import annotations

import base64
import datetime
import ipaddress
import ssl
import time
from pathlib import Path
from typing import Any

import pytest

from headwater.access.scram import ClientLogin
from headwater.config import Serving
from headwater.errors import HeadwaterError, Malformed, Unauthenticated
from headwater.serving.composition import server_of
from headwater.wire.frame import Kind, pack
from headwater.wire.requests import encode
from server.harness import SECRET, Ended, Running, code


def guess(running: Running, user: str, secret: str) -> HeadwaterError:
    peer = running.connect()
    try:
        peer.shake(user, secret)
    except HeadwaterError as error:
        peer.ends()
        return error
    raise AssertionError("the guess was right")


def test_a_client_that_knows_its_secret_comes_in_and_the_server_shows_that_it_knows_it_too():
    with Running(auth="scram") as running:
        running.client("ann", allow=["publish a", "create a"])
        peer = running.connect()
        welcome = peer.shake("ann", SECRET)
        assert (welcome.user, welcome.client_id) == ("ann", running.bus.clients.list()[0].id)
        peer.register()
        assert peer.publish("a") == 1


def test_an_unknown_user_and_a_wrong_secret_get_the_same_answers():
    with Running(auth="scram", guess_delay_s_max=0.3) as running:
        running.client("ann")
        seen = []
        for user in ("ann", "nobody"):
            peer = running.connect()
            login = ClientLogin(user, "wrong", nonce="n")
            challenge = peer.hello(mechanism="scram-sha-256", first=login.first())
            nonce, salt, iterations = challenge.first.split(b",")
            with pytest.raises(Unauthenticated) as refused:
                peer.respond(login.respond(challenge.first))
            peer.ends()
            seen.append((len(nonce), len(salt), iterations, str(refused.value)))
        assert seen[0] == seen[1]


def test_the_salt_of_an_unknown_user_is_the_same_each_time():
    with Running(auth="scram") as running:
        salts = set()
        for _ in range(3):
            login = ClientLogin("nobody", "x")
            salts.add(running.connect().hello(mechanism="scram-sha-256", first=login.first()).first.split(b",")[1])
        assert len(salts) == 1


@pytest.mark.parametrize("user", ["ann", "nobody"])
def test_each_wrong_guess_waits_longer_for_its_answer(user: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("headwater.server.broker.GUESS_DELAY_S", 0.05)
    with Running(auth="scram", guess_delay_s_max=0.2) as running:
        running.client("ann")
        guesses = running.server.broker.guesses
        delays = []
        for _ in range(3):
            begun = time.monotonic()
            guess(running, user, "wrong")
            delays.append(guesses.delay_s(f"{user}@127.0.0.1"))
            assert time.monotonic() - begun >= delays[-1] * 0.9
        assert delays == [0.05, 0.1, 0.2]


def test_a_guesser_that_hangs_up_early_has_its_next_guess_looked_at_no_sooner():
    with Running(auth="scram", guess_delay_s_max=1.0) as running:
        running.client("ann")
        for _ in range(2):
            guess(running, "ann", "wrong")
        begun = time.monotonic()
        peer = running.connect()
        peer.shake("ann", SECRET)
        assert time.monotonic() - begun >= 0.45
        assert running.server.broker.guesses.delay_s("ann@127.0.0.1") == 0
        peer.register()


def test_the_traffic_of_others_goes_on_while_guesses_wait():
    with Running(auth="scram", guess_delay_s_max=5.0) as running:
        running.client("ann"), running.client("bob", allow=["publish a", "create a", "subscribe a"])
        bob = running.peer("bob")
        bob.subscribe(1, "a")
        for _ in range(2):
            guess(running, "ann", "wrong")
        for _ in range(20):
            peer = running.connect()
            login = ClientLogin("ann", "wrong")
            challenge = peer.hello(mechanism="scram-sha-256", first=login.first())
            peer.send(pack(Kind.RESPONSE, 0, encode({"final": login.respond(challenge.first)})))
        for number in range(10):
            bob.publish("a", b"%d" % number)
        assert len(bob.take(1, 10)) == 10


def test_a_proof_that_was_seen_on_the_wire_is_of_no_use_later():
    with Running(auth="scram", guess_delay_s_max=0.1) as running:
        running.client("ann")
        spied = ClientLogin("ann", SECRET, nonce="same")
        peer = running.connect()
        challenge = peer.hello(mechanism="scram-sha-256", first=spied.first())
        proof = spied.respond(challenge.first)
        peer.respond(proof)
        again = running.connect()
        again.hello(mechanism="scram-sha-256", first=ClientLogin("ann", "x", nonce="same").first())
        with code(401):
            again.respond(proof)
        assert again.ends() is None


def test_a_proof_cannot_be_used_twice_on_one_connection():
    with Running(auth="scram") as running:
        running.client("ann")
        login = ClientLogin("ann", SECRET)
        peer = running.connect()
        challenge = peer.hello(mechanism="scram-sha-256", first=login.first())
        proof = login.respond(challenge.first)
        peer.respond(proof)
        with code(422):
            peer.respond(proof)


ALTERED = {
    "a flipped bit": lambda proof: proof[:-4] + base64.b64encode(bytes(32))[-4:],
    "all zeros": lambda proof: proof.rpartition(b",p=")[0] + b",p=" + base64.b64encode(bytes(32)),
    "another binding": lambda proof: proof.replace(b"c=biws", b"c=eSws"),
    "another nonce": lambda proof: proof.replace(b",r=", b",r=x"),
    "no proof": lambda proof: proof.rpartition(b",p=")[0],
    "a short proof": lambda proof: proof.rpartition(b",p=")[0] + b",p=" + base64.b64encode(b"short"),
    "an extension": lambda proof: proof.replace(b",p=", b",m=x,p="),
    "nothing": lambda _: b"",
    "noise": lambda _: b"\xff\x00" * 50,
    "too long": lambda proof: proof + b"x" * 10_000,
}


@pytest.mark.parametrize("how", ALTERED)
def test_an_altered_proof_is_refused_and_the_connection_closed(how: str):
    with Running(auth="scram", guess_delay_s_max=0.05) as running:
        running.client("ann")
        login = ClientLogin("ann", SECRET)
        peer = running.connect()
        challenge = peer.hello(mechanism="scram-sha-256", first=login.first())
        with pytest.raises(HeadwaterError) as refused:
            peer.respond(ALTERED[how](login.respond(challenge.first)))
        assert refused.value.code in (401, 422)
        peer.ends()
        running.until(lambda: not running.server.listener.connections)


@pytest.mark.parametrize(
    "first",
    [
        b"",
        b"n,,",
        b"n,,n=ann",
        b"y,,n=ann,r=" + b"x" * 400,
        b"p=tls-unique,,n=ann,r=x",
        b"n,a=root,n=ann,r=x",
        b"n,,n=ann,r=a,b",
        b"\xff\xfe",
        b"n,,n=*,r=x",
        b"n,,n=a=b,r=x",
    ],
)
def test_a_first_message_that_is_none_is_refused(first: bytes):
    with Running(auth="scram") as running:
        running.client("ann")
        peer = running.connect()
        with pytest.raises(HeadwaterError) as refused:
            peer.hello(mechanism="scram-sha-256", first=first)
        assert refused.value.code in (401, 422)


@pytest.mark.parametrize("mechanism", ["none", "certificate", "gatekeeper"])
def test_there_is_no_way_around_the_secret(mechanism: str):
    with Running(auth="scram") as running:
        running.client("ann")
        peer = running.connect()
        with code(401):
            peer.hello(user="ann", mechanism=mechanism)
        peer.ends()


def test_steps_of_a_login_cannot_be_left_out():
    with Running(auth="scram") as running:
        running.client("ann")
        for frames in (
            pack(Kind.RESPONSE, 0, encode({})),
            pack(Kind.OK),
            pack(Kind.REQUEST, 1, encode({"do": "Register"})),
        ):
            for says_hello in (False, True):
                if says_hello and frames[4] == Kind.RESPONSE:
                    continue
                peer = running.connect()
                if says_hello:
                    peer.hello(mechanism="scram-sha-256", first=ClientLogin("ann", "x").first())
                peer.send(frames)
                said = peer.ends()
                assert said is not None
                assert said.code == 422
        assert running.call(lambda: len(running.server.sessions)) == 0


def test_a_second_hello_is_refused():
    with Running(auth="scram") as running:
        running.client("ann")
        peer = running.connect()
        peer.hello(mechanism="scram-sha-256", first=ClientLogin("ann", "x").first())
        with code(422):
            peer.hello(mechanism="none", user="ann")


def test_what_a_guesser_sends_after_its_guess_is_not_looked_at():
    with Running(auth="scram", guess_delay_s_max=0.2) as running:
        running.client("ann")
        peer = running.connect()
        login = ClientLogin("ann", "wrong")
        challenge = peer.hello(mechanism="scram-sha-256", first=login.first())
        peer.send(
            pack(Kind.RESPONSE, 0, encode({"final": login.respond(challenge.first)})),
            pack(Kind.OK),
            pack(Kind.REQUEST, 1, encode({"do": "Register"})),
        )
        said = peer.ends()
        assert said is not None
        assert running.call(lambda: len(running.server.sessions)) == 0


# Certificates


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An authority, a server's certificate, clients of it, and a client of another authority."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    folder = tmp_path_factory.mktemp("keys")
    now = datetime.datetime.now(datetime.UTC)

    def name(common: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])

    def make(file: str, common: str, issuer=None, ends=now + datetime.timedelta(days=1)):
        key = ec.generate_private_key(ec.SECP256R1())
        issuer_name, issuer_key = issuer or (name(common), key)
        built = (
            x509.CertificateBuilder()
            .subject_name(name(common))
            .issuer_name(issuer_name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=2))
            .not_valid_after(ends)
            .add_extension(x509.BasicConstraints(ca=issuer is None, path_length=None), critical=True)
            .add_extension(
                x509.SubjectAlternativeName(
                    [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
                ),
                critical=False,
            )
            .sign(issuer_key, hashes.SHA256())
        )
        pem = serialization.Encoding.PEM
        (folder / f"{file}.pem").write_bytes(built.public_bytes(pem))
        (folder / f"{file}.key").write_bytes(
            key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        )
        return name(common), key

    authority = make("ca", "authority")
    other = make("other-ca", "authority")
    make("server", "localhost", authority)
    make("ann", "ann", authority)
    make("gate", "gate", authority)
    make("star", "*", authority)
    make("late", "ann", authority, ends=now - datetime.timedelta(days=1))
    make("forged", "ann", other)
    return folder


def tls(keys: Path, client: str | None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(keys / "ca.pem"))
    if client is not None:
        context.load_cert_chain(keys / f"{client}.pem", keys / f"{client}.key")
    return context


def secure(keys: Path, **serving: Any) -> Running:
    return Running(
        tls_certificate=str(keys / "server.pem"),
        tls_key=str(keys / "server.key"),
        tls_client_ca=str(keys / "ca.pem"),
        **serving,
    )


def test_a_certificate_names_its_client(keys: Path):
    with secure(keys, auth="certificate") as running:
        running.rules("ann", allow=["publish a", "create a", "subscribe a"])
        peer = running.connect(tls=tls(keys, "ann"))
        assert peer.shake("root", mechanism="certificate").user == "ann"
        peer.register()
        peer.subscribe(1, "a")
        peer.publish("a", bytes(300_000))
        assert len(peer.payloads(1, 1)[0]) == 300_000
        with code(403):
            peer.publish("b")


@pytest.mark.parametrize("client", [None, "forged", "late"])
def test_without_a_good_certificate_nobody_gets_as_far_as_a_hello(keys: Path, client: str | None):
    with secure(keys, auth="certificate") as running, pytest.raises((ssl.SSLError, OSError, Ended)):
        peer = running.connect(tls=tls(keys, client))
        peer.shake("ann", mechanism="certificate")


def test_a_certificate_whose_name_is_none_is_refused(keys: Path):
    with secure(keys, auth="certificate") as running:
        peer = running.connect(tls=tls(keys, "star"))
        with code(422):
            peer.shake("ann", mechanism="certificate")


@pytest.mark.parametrize("mechanism", ["none", "gatekeeper"])
def test_a_certificate_is_asked_for_by_its_mechanism(keys: Path, mechanism: str):
    with secure(keys, auth="certificate") as running:
        peer = running.connect(tls=tls(keys, "ann"))
        with code(401):
            peer.shake("root", mechanism=mechanism)


def test_secrets_go_through_tls_as_well(keys: Path):
    with secure(keys, auth="scram") as running:
        running.client("ann", allow=["publish a", "create a"])
        peer = running.connect(tls=tls(keys, None))
        peer.shake("ann", SECRET)
        peer.register()
        assert peer.publish("a") == 1


def test_a_plain_peer_at_a_tls_port_and_garbage_are_cut_and_disturb_nobody(keys: Path):
    with secure(keys, auth="certificate") as running:
        there = running.connect(tls=tls(keys, "ann"))
        there.shake(mechanism="certificate")
        there.register()
        for data in (pack(Kind.HELLO, 0, encode({})), b"\x16\x03\x01" + bytes(500), b"GET / HTTP/1.1\r\n\r\n"):
            peer = running.connect()
            peer.send(data)
            try:
                while True:
                    peer.socket.settimeout(10)
                    if not peer.socket.recv(1000):
                        break
            except OSError:
                pass
        there.ping()


# Gatekeepers


def test_a_gatekeeper_on_this_machine_states_the_user():
    with Running(auth="gatekeeper") as running:
        running.rules("ann", allow=["publish a", "create a"])
        peer = running.connect()
        assert peer.shake("ann", mechanism="gatekeeper").user == "ann"
        peer.register()
        assert peer.publish("a") == 1
        with code(403):
            peer.publish("b")


@pytest.mark.parametrize(
    ("user", "mechanism", "expected"), [("", "gatekeeper", 422), ("*", "gatekeeper", 422), ("ann", "none", 401)]
)
def test_a_gatekeeper_states_a_user_that_can_be_one(user: str, mechanism: str, expected: int):
    with Running(auth="gatekeeper") as running, code(expected):
        running.connect().shake(user, mechanism=mechanism)


def test_others_than_gatekeepers_prove_themselves_with_a_secret(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("headwater.native.greeting.is_local", lambda _: False)
    with Running(auth="gatekeeper", guess_delay_s_max=0.01) as running:
        running.client("ann", allow=["publish a", "create a"])
        peer = running.connect()
        assert peer.shake("ann", SECRET).user == "ann"
        peer.register()
        assert peer.publish("a") == 1
        for user, secret, mechanism in (("ann", "wrong", None), ("ann", None, "gatekeeper"), ("ann", None, "none")):
            with code(401):
                running.connect().shake(user, secret, mechanism)


def test_a_server_that_goes_by_certificates_takes_no_secrets(keys: Path):
    with secure(keys, auth="certificate") as running, code(422):
        running.connect(tls=tls(keys, "ann")).shake("ann", SECRET)


def test_a_gatekeeper_from_elsewhere_shows_a_certificate_that_is_listed(keys: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("headwater.native.greeting.is_local", lambda _: False)
    with secure(keys, auth="gatekeeper", gatekeepers=("gate",)) as running:
        assert running.connect(tls=tls(keys, "gate")).shake("ann", mechanism="gatekeeper").user == "ann"
        for client in ("ann", None):
            with code(401):
                running.connect(tls=tls(keys, client)).shake("root", mechanism="gatekeeper")


@pytest.mark.parametrize("host", ["0.0.0.0", "", "::", "192.0.2.1"])
def test_a_server_without_authentication_refuses_to_listen_beyond_loopback(host: str):
    import headwater

    with headwater.open(":memory:") as bus:
        with pytest.raises(Malformed, match="auth"):
            server_of(bus.core, Serving(host=host, port=0))
        server_of(bus.core, Serving(host=host, port=0, auth="scram"))
        server_of(bus.core, Serving(host="127.0.0.1", port=0))
