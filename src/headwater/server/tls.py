"""TLS for the server: its certificate, whose clients it believes, and new files without a restart."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from headwater.clock import SECOND_US, Clock, SystemClock
from headwater.config import Serving
from headwater.errors import Malformed
from headwater.server.log import Log

CIPHERS = "ECDHE+AESGCM:ECDHE+CHACHA20"
"""Of TLS 1.2; those of 1.3 are all right as they are."""


class Tls:
    """The server's certificates; `context` stays the same object while `reload` changes what it uses."""

    def __init__(self, serving: Serving, log: Log | None = None, clock: Clock | None = None) -> None:
        """Malformed, with the file in the sentence, if a file is missing or wrong."""
        self._serving = serving
        self._clock = clock or SystemClock()
        self._loaded_s = -1
        self._log = log or Log("headwater.server.tls")
        self._fresh = make_context(serving)
        self.context = make_context(serving)
        """What a listener takes."""
        # Each connection asks here, so that one context, which the listener keeps, can use the newest files.
        self.context.sni_callback = self._choose

    def _choose(self, connection: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> int | None:
        if self._is_stale(connection):
            return ssl.ALERT_DESCRIPTION_HANDSHAKE_FAILURE
        connection.context = self._fresh
        return None

    def _is_stale(self, connection: ssl.SSLObject) -> bool:
        """Whether a connection resumes one whose client was checked against an authority of before a reload.

        TLS 1.2 resumes by session id, which cannot be turned off, without looking at the client's certificate again.
        A client that is refused forgets the session, and its next attempt is checked.
        """
        if not self._serving.tls_client_ca or self._loaded_s < 0 or not connection.session_reused:
            return False
        session = connection.session
        return session is None or session.time <= self._loaded_s

    def reload(self) -> bool:
        """Use the files as they are now, for new connections; False, and the old ones stay, if they are bad."""
        try:
            self._fresh = make_context(self._serving)
        except Malformed as error:
            self._log.error("certificates-kept", reason=error.args[0], certificate=self._serving.tls_certificate)
            return False
        self._loaded_s = self._clock.now_us() // SECOND_US
        self._log.info("certificates-loaded", certificate=self._serving.tls_certificate)
        return True


def open_tls(serving: Serving) -> Tls | None:
    """The certificates that the settings name; None if they name none."""
    return Tls(serving) if serving.tls_certificate else None


def make_context(serving: Serving) -> ssl.SSLContext:
    """TLS 1.2 or newer; clients may, and with auth="certificate" alone must, show a certificate of `tls_client_ca`."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers(CIPHERS)
    # A resumed connection skips the check of the client's certificate, also after its authority was taken away (see
    # Tls._is_stale for the kind that remains); connections here are long, so that nothing is lost without resumption.
    context.options |= ssl.OP_NO_TICKET | ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
    context.num_tickets = 0
    files = f'certificate "{serving.tls_certificate}" and key "{serving.tls_key}"'
    _load(files, lambda: context.load_cert_chain(serving.tls_certificate, serving.tls_key, _no_passphrase))
    if serving.tls_client_ca:
        _load(
            f'client authority "{serving.tls_client_ca}"', lambda: context.load_verify_locations(serving.tls_client_ca)
        )
        context.verify_mode = ssl.CERT_REQUIRED if serving.methods == ("certificate",) else ssl.CERT_OPTIONAL
    return context


def own_authority(certificate: str) -> str:
    """A certificate's file, if it ends in an authority that is its own, so that clients have to be told of it."""
    if not certificate:
        return ""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        context.load_verify_locations(certificate)
    except (OSError, ssl.SSLError):
        return ""
    is_own = any(found["subject"] == found["issuer"] for found in context.get_ca_certs())
    return str(Path(certificate).absolute()) if is_own else ""


def _no_passphrase() -> str:
    raise Malformed("it has a passphrase, for which a server has nobody to ask; use a key without one")


def _load(what: str, load: Callable[[], None]) -> None:
    try:
        load()
    except Malformed as error:
        raise Malformed(f"TLS {what}: {error.args[0]}") from None
    except ssl.SSLError as error:
        raise Malformed(f"TLS {what}: not PEM, or they do not belong together ({error.reason or error})") from None
    except OSError as error:
        raise Malformed(
            f"TLS {what}: a file cannot be read ({error.strerror}); check the paths and who may read them"
        ) from None


class Shows(Protocol):
    """Something that has a peer with a certificate: an ssl.SSLObject, or an ssl.SSLSocket."""

    def getpeercert(self) -> Any:
        """The peer's certificate, once it was found to be good."""


def peer_name(connection: Shows | None) -> str | None:
    """Whom a client's certificate names: its common name, else the first of its other names; None without one.

    Two common names are none: whoever signed the one may not have looked at the other.
    """
    certificate: dict[str, Any] | None = connection.getpeercert() if connection is not None else None
    if not certificate:
        return None
    names = [value for part in certificate.get("subject", ()) for key, value in part if key == "commonName"]
    names = names or [value for _, value in certificate.get("subjectAltName", ())][:1]
    return str(names[0]) if len(names) == 1 and names[0] else None
