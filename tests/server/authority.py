"""An authority for tests, which signs certificates."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

NOW = datetime.datetime.now(datetime.UTC)
DAY = datetime.timedelta(days=1)
LOCAL = (x509.DNSName("localhost"),)


class Authority:
    """Signs certificates."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        certificate = self._sign(self._name, self._key, [], is_authority=True)
        self.path = str(folder / f"{name}.pem")
        Path(self.path).write_bytes(certificate.public_bytes(serialization.Encoding.PEM))

    def _sign(
        self, subject: x509.Name, key: Any, others: list[x509.GeneralName], is_authority: bool
    ) -> x509.Certificate:
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(NOW - DAY)
            .not_valid_after(NOW + DAY)
            .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
        )
        if others:
            builder = builder.add_extension(x509.SubjectAlternativeName(others), critical=False)
        return builder.sign(self._key, hashes.SHA256())

    def issue(
        self, file: str, *names: str, others: tuple[x509.GeneralName, ...] = (), passphrase: bytes = b""
    ) -> tuple[str, str]:
        """The paths of a certificate and its key."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name) for name in names])
        certificate = self._sign(subject, key, list(others), is_authority=False)
        paths = str(self.folder / f"{file}.crt"), str(self.folder / f"{file}.key")
        Path(paths[0]).write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        how = serialization.BestAvailableEncryption(passphrase) if passphrase else serialization.NoEncryption()
        pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, how)
        Path(paths[1]).write_bytes(pem)
        return paths
