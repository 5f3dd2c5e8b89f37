"""Where files of a lake are: this machine, or an object store; one door for s3://, s3a://, gs://, abfss:// and others.

What opens a store is said once, where the catalog is described, by pyiceberg's names. Arrow opens files with it, on the
driver and in tasks, to which it travels; Spark's own connectors, where there are any, get it by Hadoop's names.

| pyiceberg                              | Hadoop                                                     |
|----------------------------------------|------------------------------------------------------------|
| s3.endpoint                            | fs.s3a.endpoint (path style, and without TLS for http://)  |
| s3.region, client.region               | fs.s3a.endpoint.region                                     |
| s3.access-key-id, s3.secret-access-key | fs.s3a.access.key, fs.s3a.secret.key                       |
| s3.session-token                       | fs.s3a.session.token                                       |
| s3.force-virtual-addressing            | fs.s3a.path.style.access, the other way round              |
| gcs.service.host                       | fs.gs.storage.root.url                                     |
| gcs.oauth2.token                       | fs.gs.auth.access.token                                    |
| adls.account-name, adls.account-key    | fs.azure.account.key.ACCOUNT.dfs.core.windows.net          |
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os.path import commonprefix
from urllib.parse import urlsplit

from pyarrow import fs
from pyiceberg.io.pyarrow import PyArrowFileIO

from headwater import threads
from headwater.lake.columns import Store

LOCAL = "file"
PREFIXES = ("s3.", "client.", "gcs.", "adls.", "hdfs.")
OF_S3 = ("s3", "s3a", "s3n")
HADOOP = {
    "s3.endpoint": "fs.s3a.endpoint",
    "s3.region": "fs.s3a.endpoint.region",
    "client.region": "fs.s3a.endpoint.region",
    "s3.access-key-id": "fs.s3a.access.key",
    "s3.secret-access-key": "fs.s3a.secret.key",
    "s3.session-token": "fs.s3a.session.token",
    "gcs.service.host": "fs.gs.storage.root.url",
    "gcs.oauth2.token": "fs.gs.auth.access.token",
}
STORES_MAX = 10_000
"""Places that are known at one time, tables and what tasks read and write: beyond it, the oldest is forgotten."""


_known: dict[str, Store] = {}
"""By the location that they are for."""
_lock = threads.Lock()


def store_of(properties: Mapping[str, object]) -> Store:
    """What is said about stores among the properties of a catalog or a table."""
    return Store({name: str(value) for name, value in properties.items() if name.startswith(PREFIXES)})


def know(location: str, store: Store) -> None:
    """From now on, open what is at a location, and below it, with this."""
    if local_path(location) is None and _known.get(location) != store:
        with _lock:
            if len(_known) >= STORES_MAX and location not in _known:
                del _known[next(iter(_known))]
            _known[location] = store


def know_all(locations: Sequence[str], store: Store) -> None:
    """The same of many files, by the folder that all of them are in."""
    alike = commonprefix(locations)  # noqa: RUF071  # of paths it would make s3:/ of s3://
    folder = f"{alike.rpartition('/')[0]}/"
    for location in (folder,) if urlsplit(folder).netloc else locations:
        know(location, store)


def local_path(location: str) -> str | None:
    """The path of something on this machine."""
    if location.startswith(f"{LOCAL}://"):
        return location.removeprefix(f"{LOCAL}://")
    return None if urlsplit(location).scheme else location


def located(location: str) -> tuple[fs.FileSystem, str]:
    """The file system that a location is in, and the path there."""
    path = local_path(location)
    if path is not None:
        return fs.LocalFileSystem(), path
    with _lock:
        found = max((known for known in _known if location.startswith(known)), key=len, default="")
        properties = _known[found].properties if found else {}
    scheme, netloc, path = PyArrowFileIO.parse_location(location, properties)
    return PyArrowFileIO(dict(properties)).fs_by_scheme(scheme, netloc), path


def hadoop_of(store: Store) -> dict[str, str]:
    """The same by the names that Hadoop's connectors have."""
    given = store.properties
    found = {HADOOP[name]: value for name, value in given.items() if name in HADOOP}
    if "s3.endpoint" in given:
        is_virtual = given.get("s3.force-virtual-addressing", "false").lower() == "true"
        found["fs.s3a.path.style.access"] = str(not is_virtual).lower()
        found["fs.s3a.connection.ssl.enabled"] = str(given["s3.endpoint"].startswith("https:")).lower()
    if "adls.account-name" in given and "adls.account-key" in given:
        account = f"{given['adls.account-name']}.dfs.core.windows.net"
        found[f"fs.azure.account.key.{account}"] = given["adls.account-key"]
    return found


def for_hadoop(location: str) -> str:
    """A location as Spark's own readers and writers take it: its connector for S3 has the scheme s3a."""
    scheme, _, rest = location.partition("://")
    return f"s3a://{rest}" if scheme in OF_S3 else location
