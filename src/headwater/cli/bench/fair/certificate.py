"""A certificate for one run, which nobody else has to believe."""

from __future__ import annotations

import datetime

from headwater.clock import SystemClock, to_datetime
from headwater.errors import Malformed
from headwater.store.files import DiskFiles

DAY = datetime.timedelta(days=1)


def certificate(folder: str) -> dict[str, object]:
    """The settings of a server that shows one; its files are in a folder."""
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.x509.oid import NameOID
    except ImportError:
        raise Malformed('to measure TLS takes the extra: pip install "headwater[server]"') from None
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = to_datetime(SystemClock().now_us())
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - DAY)
        .not_valid_after(now + DAY)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    secret = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    files = DiskFiles()
    files.write(f"{folder}/server.crt", made.public_bytes(pem))
    files.write(f"{folder}/server.key", secret)
    return {"tls_certificate": f"{folder}/server.crt", "tls_key": f"{folder}/server.key"}
