"""A certificate for one run, which nobody else has to believe."""

from __future__ import annotations

from headwater.cli.certificate import make_certificate


def certificate(folder: str) -> dict[str, object]:
    """The settings of a server that shows one; its files are in a folder."""
    files = f"{folder}/server.crt", f"{folder}/server.key"
    make_certificate(*files, ["localhost"], days=1)
    return dict(zip(("tls_certificate", "tls_key"), files, strict=True))
