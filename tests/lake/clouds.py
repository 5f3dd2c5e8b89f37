"""An object store, and catalogs, on this machine: real servers on loopback, as pyiceberg is configured for them."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from urllib.request import Request, urlopen

import pytest

KEY, SECRET, BUCKET = "AKIALAKE", "hush-hush", "lakes"


@contextmanager
def s3() -> Iterator[str]:
    """An S3 API, with a bucket."""
    boto3 = pytest.importorskip("boto3", reason="moto and boto3 serve S3 here: pip install 'headwater[dev]'")
    server = pytest.importorskip("moto.server", reason="moto serves S3 here: pip install 'headwater[dev]'")
    running = server.ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    running.start()
    try:
        host, port = running.get_host_and_port()
        url = f"http://{host}:{port}"
        urlopen(Request(f"{url}/moto-api/reset", method="POST")).close()  # it has one memory for all in this process
        named = {"aws_access_key_id": KEY, "aws_secret_access_key": SECRET, "region_name": "us-east-1"}
        boto3.client("s3", endpoint_url=url, **named).create_bucket(Bucket=BUCKET)
        yield url
    finally:
        running.stop()


def configure(name: str, properties: Mapping[str, str]) -> str:
    """Have pyiceberg know a catalog, in this process and in those that Spark starts; the lake's name."""
    home = Path(os.environ.setdefault("PYICEBERG_HOME", tempfile.mkdtemp(prefix="headwater-pyiceberg-")))
    told = "".join(f"    {key}: {json.dumps(value)}\n" for key, value in properties.items())
    (home / ".pyiceberg.yaml").write_text(f"catalog:\n  {name}:\n{told}")
    return f"catalog:{name}"


def of_s3(url: str, scheme: str = "s3") -> dict[str, str]:
    """What a catalog says about the store."""
    return {
        "warehouse": f"{scheme}://{BUCKET}/warehouse",
        "s3.endpoint": url,
        "s3.region": "us-east-1",
        "s3.access-key-id": KEY,
        "s3.secret-access-key": SECRET,
    }
