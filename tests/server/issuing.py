"""An issuer of tokens for tests: keys, the tokens that they sign, and a real HTTP server with the public ones."""

from __future__ import annotations

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

AUDIENCE = "headwater"
ISSUER = "https://issuer.test"


class SigningKey:
    """A private key, and its public one as a JWKS has it."""

    def __init__(self, id: str, algorithm: str = "ES256") -> None:
        self.id = id
        self.algorithm = algorithm
        kind: Any
        self.private: Any
        if algorithm.startswith(("RS", "PS")):
            kind, self.private = RSAAlgorithm, rsa.generate_private_key(65_537, 2048)
        elif algorithm == "EdDSA":
            kind, self.private = OKPAlgorithm, ed25519.Ed25519PrivateKey.generate()
        else:
            curve: Any = {"ES256": ec.SECP256R1, "ES384": ec.SECP384R1, "ES512": ec.SECP521R1}[algorithm]
            kind, self.private = ECAlgorithm, ec.generate_private_key(curve())
        self.jwk: dict[str, Any] = {**json.loads(kind.to_jwk(self.private.public_key())), "kid": id, "use": "sig"}

    def token(self, user: str = "ann", **claims: Any) -> str:
        """A token that holds for an hour, unless the claims say otherwise; one that is None is left out."""
        now = int(time.time())
        said = {"iss": ISSUER, "aud": AUDIENCE, "sub": user, "iat": now, "exp": now + 3600, **claims}
        return jwt.encode(
            {name: value for name, value in said.items() if value is not None},
            self.private,
            self.algorithm,
            headers={"kid": self.id},
        )


def key_set(*keys: SigningKey) -> bytes:
    """A JWKS."""
    return json.dumps({"keys": [key.jwk for key in keys]}).encode()


class Issuing:
    """An issuer's HTTP server on loopback, which counts how often it is asked."""

    def __init__(self, *keys: SigningKey) -> None:
        self.body = key_set(*keys)
        self.status = 200
        self.asked = 0
        self.may_answer = threading.Event()
        """Cleared: it takes requests and says nothing."""
        self.may_answer.set()
        issuing = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                issuing.asked += 1
                issuing.may_answer.wait(60)
                self.send_response(issuing.status)
                self.send_header("Content-Length", str(len(issuing.body)))
                self.end_headers()
                try:
                    self.wfile.write(issuing.body)
                except OSError:
                    pass  # who asked has given up

            def log_message(self, *_: Any) -> None:
                """Nobody reads it."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}/keys.json"

    @property
    def settings(self) -> dict[str, Any]:
        """What a server is told of it."""
        return {"auth": "jwt", "jwt_issuer": ISSUER, "jwt_audience": (AUDIENCE,), "jwt_keys": self.url}

    def rotate(self, *keys: SigningKey) -> None:
        """Have other keys from now on."""
        self.body = key_set(*keys)

    def __enter__(self) -> Issuing:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.may_answer.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
