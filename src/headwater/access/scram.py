"""Logins by SCRAM-SHA-256 (RFC 5802, 7677): both sides show that they know the secret, and neither sends it.

    client                                              server
    first    n,,n=USER,r=NONCE                    →
                                                  ←     r=NONCE+MORE,s=SALT,i=ITERATIONS            first
    respond  c=biws,r=NONCE+MORE,p=PROOF          →
                                                  ←     v=SIGNATURE                                 final
    verify

    salted    = PBKDF2(secret, SALT, ITERATIONS)        what only the client can make
    stored    = SHA-256(HMAC(salted, "Client Key"))     what the server keeps
    server    = HMAC(salted, "Server Key")              the same
    said      = first without "n,," , server's first , response without ",p=…"
    PROOF     = HMAC(salted, "Client Key") xor HMAC(stored, said)
    SIGNATURE = HMAC(server, said)

Invariants:

- A login is used once, in order; after any error it is over.
- An unknown user and a wrong secret take the same steps and get the same answer: a decoy is made for every login.
- Everything that was said goes into the proof, so whatever is altered on the way makes it fail.

There is no channel binding: TLS protects the channel. No I/O, no time; chance comes from `secrets` unless handed in.
"""

from __future__ import annotations

import base64
import binascii
import enum
import hashlib
import hmac
import secrets
import unicodedata
from collections.abc import Callable

import msgspec

from headwater.access.name import check_name, quoted
from headwater.errors import Malformed, Unauthenticated

ITERATIONS_MIN = 4096
"""What RFC 7677 asks for; a server that asks a client for fewer is not answered."""
ITERATIONS_MAX = 1_000_000
"""A server that asks a client for more is not answered: it would burn the client's time."""
ITERATIONS = 15_000
"""About 6 ms of the client's time here. Drawn secrets need no more; secrets that people think up do."""

MESSAGE_BYTES_MAX = 2048
"""A longer message of a login: Malformed (422)."""
NONCE_CHARS_MAX = 256
"""A longer nonce of the client: Malformed (422)."""
SECRET_BYTES_MAX = 1024
"""A longer secret: Malformed (422)."""
SALT_BYTES = 16
NONCE_BYTES = 24
KEY_BYTES = 32

REFUSED = "the name or the secret is wrong; check both, or draw a new secret with: headwater clients rotate NAME"
OVER = "this login is over or was used out of order; begin a new one"

_UNPRINTED = frozenset(("Cc", "Cs"))


class Credential(msgspec.Struct, frozen=True):
    """What the server keeps of a secret: enough to check a proof, not enough to make one."""

    salt: bytes
    iterations: int
    stored_key: bytes
    server_key: bytes

    def __repr__(self) -> str:
        return f"Credential(iterations={self.iterations}, …)"  # keys do not belong in logs


def derive(secret: str, salt: bytes | None = None, iterations: int = ITERATIONS) -> Credential:
    """The credential of a secret; with a salt of its own unless one is given."""
    if not ITERATIONS_MIN <= iterations <= ITERATIONS_MAX:
        raise Malformed(f"{iterations} iterations; use {ITERATIONS_MIN} to {ITERATIONS_MAX}")
    salt = secrets.token_bytes(SALT_BYTES) if salt is None else salt
    _, stored_key, server_key = _keys(_prepared(secret), salt, iterations)
    return Credential(salt, iterations, stored_key, server_key)


def is_secret_of(credential: Credential, secret: str) -> bool:
    """Whether a secret that was sent as it is (MQTT, HTTP) is that of a credential; as slow as its iterations."""
    _, stored_key, _ = _keys(_prepared(secret), credential.salt, credential.iterations)
    return hmac.compare_digest(stored_key, credential.stored_key)


class Decoy:
    """Makes credentials for names that nobody has: the same for a name each time, and like any other to look at."""

    def __init__(self, secret: bytes, iterations: int = ITERATIONS) -> None:
        self._secret = secret
        self._iterations = iterations

    def credential_of(self, name: str) -> Credential:
        """What an unknown user is asked to prove; no secret fits it."""
        said = name.encode()
        return Credential(
            _hmac(self._secret, b"salt\0" + said)[:SALT_BYTES],
            self._iterations,
            _hmac(self._secret, b"stored\0" + said),
            _hmac(self._secret, b"server\0" + said),
        )

    def __repr__(self) -> str:
        return f"Decoy(iterations={self._iterations}, …)"


class Stage(enum.Enum):
    """How far a login is."""

    NEW = enum.auto()
    ASKED = enum.auto()
    ANSWERED = enum.auto()
    DONE = enum.auto()
    OVER = enum.auto()


class _Login:
    """Steps that are taken once, in order; one that fails ends it."""

    def __init__(self) -> None:
        self._stage = Stage.NEW

    def _enter(self, stage: Stage) -> None:
        """Begin the step that belongs to a stage; unless the step says otherwise, the login is over."""
        is_in_order = self._stage is stage
        self._stage = Stage.OVER
        if not is_in_order:
            raise Unauthenticated(OVER)


class ServerLogin(_Login):
    """The server's side of one login."""

    def __init__(
        self, credential_of: Callable[[str], Credential | None], decoy: Decoy, nonce: str | None = None
    ) -> None:
        """`nonce` is for test vectors: the server's part of it."""
        super().__init__()
        self._credential_of = credential_of
        self._decoy = decoy
        self._more = secrets.token_urlsafe(NONCE_BYTES) if nonce is None else nonce
        self._user = ""
        self._is_known = False
        self._credential: Credential
        self._header = b""
        self._nonce = b""
        self._said = b""

    @property
    def user(self) -> str:
        """Who it is, once that is shown."""
        if self._stage is not Stage.DONE:
            raise Unauthenticated("nobody has logged in here; .user is known after .final")
        return self._user

    @property
    def claimed_user(self) -> str:
        """Who it says it is."""
        return self._user

    @property
    def credential(self) -> Credential:
        """What it was checked against."""
        return self._credential

    def first(self, client_first: bytes) -> bytes:
        """Answer the client's first message with a salt and a nonce."""
        self._enter(Stage.NEW)
        self._header, bare = _split_header(client_first)
        name, nonce, *_ = _attributes(bare, "nr")
        if len(nonce) > NONCE_CHARS_MAX or not _is_nonce(nonce):
            raise Malformed(f"a nonce is up to {NONCE_CHARS_MAX} printable ASCII characters, without commas")
        self._user = check_name(_unescaped(name))
        known, decoy = self._credential_of(self._user), self._decoy.credential_of(self._user)
        self._is_known = known is not None
        self._credential = known or decoy
        self._nonce = (nonce + self._more).encode()
        salt = base64.b64encode(self._credential.salt)
        server_first = b"r=%b,s=%b,i=%d" % (self._nonce, salt, self._credential.iterations)
        self._said = bare + b"," + server_first
        self._stage = Stage.ASKED
        return server_first

    def final(self, client_final: bytes) -> bytes:
        """Check the client's proof and answer with the server's; Unauthenticated (401) if it does not hold."""
        self._enter(Stage.ASKED)
        binding, nonce, *_, proof = _attributes(client_final, "cr", last="p")
        shown = _from_base64(proof)
        if len(shown) != KEY_BYTES:
            raise Malformed(f"a proof has {KEY_BYTES} bytes, not {len(shown)}")
        said = self._said + b"," + client_final.rpartition(b",p=")[0]
        client_key = _xor(shown, _hmac(self._credential.stored_key, said))
        signature = _hmac(self._credential.server_key, said)
        # All of it is looked at before any of it decides, so that the time taken tells nothing.
        holds = hmac.compare_digest(hashlib.sha256(client_key).digest(), self._credential.stored_key)
        holds &= hmac.compare_digest(nonce.encode(), self._nonce)
        holds &= hmac.compare_digest(_from_base64(binding), self._header)
        holds &= self._is_known
        if not holds:
            raise Unauthenticated(REFUSED)
        self._stage = Stage.DONE
        return b"v=" + base64.b64encode(signature)


class ClientLogin(_Login):
    """The client's side of one login."""

    def __init__(self, user: str, secret: str, nonce: str | None = None) -> None:
        """`nonce` is for test vectors."""
        super().__init__()
        self._secret = _prepared(secret)
        self._nonce = secrets.token_urlsafe(NONCE_BYTES) if nonce is None else nonce
        self._bare = f"n={_escaped(check_name(user))},r={self._nonce}".encode()
        self._signature = b""

    def first(self) -> bytes:
        """What the client says first."""
        self._enter(Stage.NEW)
        self._stage = Stage.ASKED
        return b"n,," + self._bare

    def respond(self, server_first: bytes) -> bytes:
        """The proof, for what the server asked; takes as long as the server's iterations do."""
        self._enter(Stage.ASKED)
        nonce, salt, count, *_ = _attributes(server_first, "rsi")
        if not nonce.startswith(self._nonce) or len(nonce) == len(self._nonce) or not _is_nonce(nonce):
            raise Unauthenticated("the server answered another login than this one; somebody may be in between")
        client_key, stored_key, server_key = _keys(self._secret, _from_base64(salt), _iterations(count))
        self._secret = b""
        response = f"c=biws,r={nonce}".encode()
        said = self._bare + b"," + server_first + b"," + response
        self._signature = _hmac(server_key, said)
        self._stage = Stage.ANSWERED
        return response + b",p=" + base64.b64encode(_xor(client_key, _hmac(stored_key, said)))

    def verify(self, server_final: bytes) -> None:
        """Unauthenticated (401) unless the server showed that it knows the secret, too."""
        self._enter(Stage.ANSWERED)
        if server_final.startswith(b"e="):
            (reason, *_) = _attributes(server_final, "e")
            raise Unauthenticated(f"the server refused the login ({quoted(reason)}): {REFUSED}")
        (signature, *_) = _attributes(server_final, "v")
        if not hmac.compare_digest(_from_base64(signature), self._signature):
            raise Unauthenticated("the server does not know this client's secret; it may not be the one you mean")
        self._stage = Stage.DONE


# Keys


def _hmac(key: bytes, said: bytes) -> bytes:
    return hmac.digest(key, said, "sha256")


def _keys(secret: bytes, salt: bytes, iterations: int) -> tuple[bytes, bytes, bytes]:
    """The client's key, the stored key, and the server's."""
    salted = hashlib.pbkdf2_hmac("sha256", secret, salt, iterations)
    client_key = _hmac(salted, b"Client Key")
    return client_key, hashlib.sha256(client_key).digest(), _hmac(salted, b"Server Key")


def _xor(a: bytes, b: bytes) -> bytes:
    return (int.from_bytes(a, "big") ^ int.from_bytes(b, "big")).to_bytes(KEY_BYTES, "big")


def _prepared(secret: str) -> bytes:
    """A secret as it is hashed: UTF-8 in normal form C."""
    if not isinstance(secret, str):
        raise Malformed(f"a secret is a str, not {type(secret).__name__}; decode bytes first")
    if not secret:
        raise Malformed("the secret is empty; leave it out to have one drawn")
    if any(unicodedata.category(char) in _UNPRINTED for char in secret[: SECRET_BYTES_MAX + 1]):
        raise Malformed("the secret contains a control character or broken Unicode; is there a newline at its end?")
    if len(secret) > SECRET_BYTES_MAX or len(said := unicodedata.normalize("NFC", secret).encode()) > SECRET_BYTES_MAX:
        raise Malformed(f"the secret is too long; use at most {SECRET_BYTES_MAX} bytes")
    return said


# Bytes in, values out


def _split_header(client_first: bytes) -> tuple[bytes, bytes]:
    """The header about channel binding, and the rest of a client's first message."""
    flag, comma, rest = client_first.partition(b",")
    authzid, second, bare = rest.partition(b",")
    if not comma or not second:
        raise Malformed("a login begins with n,,n=NAME,r=NONCE")
    if flag.startswith(b"p="):
        raise Unauthenticated("channel binding is not offered; log in without it, through TLS")
    if flag not in (b"n", b"y"):
        raise Malformed("a login begins with n,,n=NAME,r=NONCE")
    if authzid:
        raise Unauthenticated("a client acts for itself alone; log in without an authorization name")
    return client_first[: len(client_first) - len(bare)], bare


def _attributes(message: bytes, first: str, last: str = "") -> list[str]:
    """Values of a message such as r=…,s=…: those that must come first, optional ones, the one that must come last."""
    if len(message) > MESSAGE_BYTES_MAX:
        raise Malformed(f"a message of a login has {len(message)} bytes; the most is {MESSAGE_BYTES_MAX}")
    try:
        text = message.decode()
    except UnicodeDecodeError:
        raise Malformed("a message of a login is not UTF-8") from None
    parts = text.split(",")
    letters = "".join(part[0] if part[1:2] == "=" and part[2:] and part[0].isalpha() else "?" for part in parts)
    optional = letters[len(first) : len(letters) - len(last)]
    if len(letters) < len(first) + len(last) or not letters.startswith(first) or not letters.endswith(last):
        raise Malformed(f"a message of a login lacks {', '.join(first + last)}, in this order")
    if "?" in optional or "m" in letters or "\0" in text:  # m is what must not be ignored, whatever it means
        raise Malformed("a message of a login has a part that is not understood")
    return [part[2:] for part in parts]


def _is_nonce(text: str) -> bool:
    return all("!" <= char <= "~" and char != "," for char in text)


def _iterations(text: str) -> int:
    count = int(text) if text.isascii() and text.isdecimal() and len(text) <= 10 else -1
    if count < 0 or text.startswith("0"):
        raise Malformed(f"{quoted(text)} is no number of iterations")
    if not ITERATIONS_MIN <= count <= ITERATIONS_MAX:
        raise Unauthenticated(
            f"the server asks for {count} iterations; only {ITERATIONS_MIN} to {ITERATIONS_MAX} are safe to answer"
        )
    return count


def _from_base64(text: str) -> bytes:
    """Exactly what base64 made: a text that another one would decode to, too, is refused."""
    try:
        value = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        value = b""
    if not value or base64.b64encode(value).decode() != text:
        raise Malformed("a part of a login that has to be base64 is not, or is not written as base64 writes it")
    return value


def _escaped(name: str) -> str:
    return name.replace("=", "=3D").replace(",", "=2C")


def _unescaped(text: str) -> str:
    pieces = text.split("=")
    for piece in pieces[1:]:
        if piece[:2] not in ("2C", "3D"):
            raise Malformed("in a name, a comma is written =2C and an equals sign =3D")
    return pieces[0] + "".join((("," if piece[:2] == "2C" else "=") + piece[2:]) for piece in pieces[1:])
