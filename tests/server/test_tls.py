"""TLS with real certificates and real connections: who is let in, who they are, and new files while it runs."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path
from typing import Any

import pytest

from headwater.config import Serving
from headwater.errors import Malformed
from headwater.server.tls import Tls, open_tls, peer_name
from server.authority import LOCAL, Authority


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path, "authority")


def serving(paths: tuple[str, str], **others: Any) -> Serving:
    return Serving(tls_certificate=paths[0], tls_key=paths[1], **others)


class Seen:
    """What a client and the server saw of each other."""

    def __init__(self) -> None:
        self.server: str | None = None
        self.client: str | None = None
        self.version: str | None = None


def connect(tls: Tls, trusted: Authority, shows: tuple[str, str] | None = None, **how: Any) -> Seen:
    """One connection; ssl.SSLError or ConnectionError if either side refuses."""
    context = ssl.create_default_context(cafile=trusted.path)
    if shows is not None:
        context.load_cert_chain(*shows)
    if "newest" in how:
        context.maximum_version = how["newest"]
    if how.get("oldest"):
        context.set_ciphers("ALL:@SECLEVEL=0")
        context.minimum_version = how["oldest"]
    return asyncio.run(_connect(tls, context))


async def _connect(tls: Tls, context: ssl.SSLContext) -> Seen:
    seen = Seen()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.client = peer_name(writer.get_extra_info("ssl_object"))
        writer.write(await reader.readexactly(1))
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=tls.context)
    async with server:
        port = server.sockets[0].getsockname()[1]
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname="localhost")
        shown = writer.get_extra_info("ssl_object")
        seen.server, seen.version = peer_name(shown), shown.version()
        writer.write(b"x")
        if await reader.read(1) != b"x":
            raise ConnectionResetError
        writer.close()
        await writer.wait_closed()
    return seen


def test_without_a_certificate_there_is_no_tls():
    assert open_tls(Serving()) is None


def test_a_client_speaks_tls_and_needs_no_certificate(authority: Authority):
    tls = open_tls(serving(authority.issue("server", "broker", others=LOCAL)))
    assert tls is not None
    seen = connect(tls, authority)
    assert (seen.server, seen.client, seen.version) == ("broker", None, "TLSv1.3")


def test_tls_1_2_is_the_oldest(authority: Authority):
    tls = Tls(serving(authority.issue("server", "broker", others=LOCAL)))
    assert connect(tls, authority, newest=ssl.TLSVersion.TLSv1_2).version == "TLSv1.2"
    assert tls.context.minimum_version == ssl.TLSVersion.TLSv1_2


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion.TLSv1_1 is deprecated:DeprecationWarning")  # that is the point of it
def test_a_client_that_speaks_nothing_newer_than_tls_1_1_is_refused(authority: Authority):
    tls = Tls(serving(authority.issue("server", "broker", others=LOCAL)))
    with pytest.raises((ssl.SSLError, ConnectionError)):
        connect(tls, authority, newest=ssl.TLSVersion.TLSv1_1, oldest=ssl.TLSVersion.TLSv1_1)


@pytest.mark.parametrize("newest", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_a_client_may_show_a_certificate_and_is_known_by_its_name(authority: Authority, newest: ssl.TLSVersion):
    tls = Tls(serving(authority.issue("server", "broker", others=LOCAL), tls_client_ca=authority.path))
    assert connect(tls, authority, authority.issue("client", "sensor-7"), newest=newest).client == "sensor-7"
    assert connect(tls, authority, newest=newest).client is None


@pytest.mark.parametrize("newest", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_with_auth_certificate_a_client_must_show_one(authority: Authority, newest: ssl.TLSVersion):
    tls = Tls(
        serving(authority.issue("server", "broker", others=LOCAL), tls_client_ca=authority.path, auth="certificate")
    )
    assert connect(tls, authority, authority.issue("client", "sensor-7"), newest=newest).client == "sensor-7"
    with pytest.raises((ssl.SSLError, ConnectionError)):
        connect(tls, authority, newest=newest)


@pytest.mark.parametrize("newest", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize("auth", ["scram", "certificate"])
def test_a_certificate_of_a_stranger_is_refused(
    authority: Authority, tmp_path: Path, auth: str, newest: ssl.TLSVersion
):
    stranger = Authority(tmp_path, "stranger")
    tls = Tls(serving(authority.issue("server", "broker", others=LOCAL), tls_client_ca=authority.path, auth=auth))
    with pytest.raises((ssl.SSLError, ConnectionError)):
        connect(tls, authority, stranger.issue("client", "sensor-7"), newest=newest)


class TestReload:
    def test_new_files_are_used_by_new_connections_of_the_same_listener(self, authority: Authority):
        tls = Tls(serving(authority.issue("server", "before", others=LOCAL)))
        context = tls.context
        assert connect(tls, authority).server == "before"
        authority.issue("server", "after", others=LOCAL)
        assert connect(tls, authority).server == "before"
        assert tls.reload()
        assert tls.context is context
        assert connect(tls, authority).server == "after"

    @pytest.mark.parametrize("damage", ["missing", "garbage", "other key", "empty"])
    def test_bad_files_leave_the_old_ones_in_use_and_it_is_said(
        self, authority: Authority, damage: str, caplog: pytest.LogCaptureFixture
    ):
        paths = authority.issue("server", "before", others=LOCAL)
        tls = Tls(serving(paths))
        if damage == "missing":
            Path(paths[1]).unlink()
        elif damage == "other key":
            Path(paths[1]).write_bytes(Path(authority.issue("other", "x")[1]).read_bytes())
        else:
            Path(paths[0]).write_bytes(b"" if damage == "empty" else b"garbage")
        assert not tls.reload()
        assert "certificates-kept" in caplog.text
        assert connect(tls, authority).server == "before"

    @pytest.mark.parametrize("newest", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
    def test_an_authority_that_was_taken_away_is_believed_no_more(
        self, authority: Authority, tmp_path: Path, newest: ssl.TLSVersion
    ):
        old, new = Authority(tmp_path, "old"), Authority(tmp_path, "new")
        clients = tmp_path / "clients.pem"
        clients.write_bytes(Path(old.path).read_bytes())
        tls = Tls(
            serving(authority.issue("server", "broker", others=LOCAL), tls_client_ca=str(clients), auth="certificate")
        )
        theirs, ours = old.issue("theirs", "sensor-1"), new.issue("ours", "sensor-2")
        assert connect(tls, authority, theirs, newest=newest).client == "sensor-1"
        clients.write_bytes(Path(new.path).read_bytes())
        assert tls.reload()
        assert connect(tls, authority, ours, newest=newest).client == "sensor-2"
        with pytest.raises((ssl.SSLError, ConnectionError)):
            connect(tls, authority, theirs, newest=newest)


def handshake(tls: Tls, client: ssl.SSLContext, session: Any = None) -> tuple[ssl.SSLObject, ssl.SSLObject]:
    """Both ends of a connection in memory, where a session can be handed to the client's."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = tls.context.wrap_bio(to_server, to_client, server_side=True)
    ours = client.wrap_bio(to_client, to_server, server_hostname="localhost", session=session)
    waiting = [ours, server]
    while waiting:
        for end in list(waiting):
            try:
                end.do_handshake()
                waiting.remove(end)
            except ssl.SSLWantReadError:
                pass
    server.write(b"x")
    assert ours.read(1) == b"x"
    return ours, server


@pytest.mark.parametrize("newest", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_a_session_is_not_resumed_past_an_authority_that_was_taken_away(
    authority: Authority, tmp_path: Path, newest: ssl.TLSVersion
):
    clients = tmp_path / "clients.pem"
    clients.write_bytes(Path(authority.path).read_bytes())
    tls = Tls(
        serving(authority.issue("server", "broker", others=LOCAL), tls_client_ca=str(clients), auth="certificate")
    )
    context = ssl.create_default_context(cafile=authority.path)
    context.load_cert_chain(*authority.issue("client", "sensor-7"))
    context.maximum_version = newest
    ours, _ = handshake(tls, context)
    clients.write_bytes(Path(Authority(tmp_path, "new").path).read_bytes())
    assert tls.reload()
    with pytest.raises(ssl.SSLError):
        handshake(tls, context, ours.session)
    clients.write_bytes(Path(authority.path).read_bytes())
    assert tls.reload()
    assert peer_name(handshake(tls, context)[1]) == "sensor-7"


@pytest.mark.parametrize("which", ["tls_certificate", "tls_key", "tls_client_ca"])
@pytest.mark.parametrize("damage", ["missing", "garbage", "folder"])
def test_a_bad_file_is_named_in_one_sentence(authority: Authority, tmp_path: Path, which: str, damage: str):
    certificate, key = authority.issue("server", "broker")
    paths: dict[str, Any] = {"tls_certificate": certificate, "tls_key": key, "tls_client_ca": authority.path}
    bad = tmp_path / "bad.pem"
    if damage == "garbage":
        bad.write_text("garbage")
    elif damage == "folder":
        bad.mkdir()
    with pytest.raises(Malformed) as caught:
        Tls(Serving(**{**paths, which: str(bad)}))
    assert str(bad) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_key_with_a_passphrase_is_refused_rather_than_asked_about(authority: Authority):
    with pytest.raises(Malformed, match="passphrase"):
        Tls(serving(authority.issue("server", "broker", passphrase=b"hunter2")))


class Shown:
    def __init__(self, certificate: Any) -> None:
        self._certificate = certificate

    def getpeercert(self) -> Any:
        return self._certificate


@pytest.mark.parametrize(
    ("certificate", "name"),
    [
        (None, None),
        ({}, None),
        ({"subject": ((("countryName", "XX"),), (("commonName", "a"),)), "subjectAltName": (("DNS", "b"),)}, "a"),
        ({"subject": ((("countryName", "XX"), ("commonName", "a")),)}, "a"),
        ({"subject": (), "subjectAltName": (("DNS", "b"), ("DNS", "c"))}, "b"),
        ({"subject": (), "subjectAltName": (("URI", "spiffe://x/y"),)}, "spiffe://x/y"),
        ({"subject": ((("commonName", "a"),), (("commonName", "admin"),))}, None),
        ({"subject": ((("commonName", ""),),)}, None),
        ({"subject": ()}, None),
    ],
)
def test_a_peer_is_named_by_its_common_name_else_by_its_first_other_name(certificate: Any, name: str | None):
    assert peer_name(Shown(certificate)) == name


def test_a_connection_without_tls_names_nobody():
    assert peer_name(None) is None
