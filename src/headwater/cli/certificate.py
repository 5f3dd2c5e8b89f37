"""A certificate authority of a server's own, and its certificate: for clients that are given the authority (`?ca=`)."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from ipaddress import ip_address
from typing import Any

from headwater.clock import SystemClock, to_datetime
from headwater.errors import Malformed
from headwater.store.files import DiskFiles

DAYS = 825
"""How long it is good: the longest that systems believe a certificate for."""
USAGES = (
    *("digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement"),
    *("key_cert_sign", "crl_sign", "encipher_only", "decipher_only"),
)
"""Of a key, as X.509 has them."""
EARLY = datetime.timedelta(days=1)
"""It is good from so long ago: clocks differ."""


def make_certificate(certificate: str, key: str, names: Sequence[str], days: int = DAYS) -> datetime.datetime:
    """Write a certificate for hosts, with the authority that it ends in below it, and its key; until when it is good.

    The authority's key is gone when this returns: it signs nothing else.
    """
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.x509.oid import ExtendedKeyUsageOID
    except ImportError:
        raise Malformed("a certificate takes the extra: pip install 'headwater[server]'") from None
    own, authority = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    issuer, others = _named("Headwater's own authority"), [_host(name) for name in names]
    now = to_datetime(SystemClock().now_us())
    until = now + datetime.timedelta(days=days)
    root = _signed(issuer, issuer, authority.public_key(), authority, (now - EARLY, until), is_authority=True)
    leaf = _signed(
        *(_named(names[0]), issuer, own.public_key(), authority, (now - EARLY, until)),
        is_authority=False,
        others=(
            (x509.SubjectAlternativeName(others), False),
            (x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), False),
        ),
    )
    pem = serialization.Encoding.PEM
    files = DiskFiles()
    files.write(key, own.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()))
    files.write(certificate, leaf.public_bytes(pem) + root.public_bytes(pem))
    return until


def _named(name: str) -> Any:
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _host(name: str) -> Any:
    from cryptography import x509

    try:
        return x509.IPAddress(ip_address(name))
    except ValueError:
        pass
    try:
        return x509.DNSName(name)
    except ValueError:
        raise Malformed(f'"{name}" is no name of a host; write it in ASCII: broker.example.org') from None


def _signed(
    subject: Any,
    issuer: Any,
    key: Any,
    authority: Any,
    good: tuple[datetime.datetime, datetime.datetime],
    *,
    is_authority: bool,
    others: Sequence[tuple[Any, bool]] = (),
) -> Any:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes

    usage = x509.KeyUsage(**dict.fromkeys(USAGES, False) | {"key_cert_sign" if is_authority else USAGES[0]: True})
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(good[0])
        .not_valid_after(good[1])
        .add_extension(x509.BasicConstraints(ca=is_authority, path_length=0 if is_authority else None), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key()), critical=False)
    )
    for extension, is_critical in others:
        builder = builder.add_extension(extension, critical=is_critical)
    return builder.sign(authority, hashes.SHA256())
