"""Catalogs on this machine: PostgreSQL's own server, one that speaks Iceberg's REST protocol, and Glue as moto has it.

The second keeps its tables in a `SqlCatalog` of pyiceberg, lets in who knows its token, and hands out with each table
what opens the store: the clients' configuration has no keys then.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
import pytest
from pyiceberg.catalog.rest import CreateTableRequest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import (
    CommitFailedException,
    NamespaceAlreadyExistsError,
    NoSuchNamespaceError,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from pyiceberg.table import CommitTableRequest, Table

TOKEN = "hush"
MISSING = (NoSuchNamespaceError, NoSuchTableError)
CONFLICTS = (CommitFailedException, NamespaceAlreadyExistsError, TableAlreadyExistsError)


@contextmanager
def postgresql() -> Iterator[str]:
    """A server of PostgreSQL that listens on a socket in a folder; how SQLAlchemy names it."""
    programs = [
        shutil.which("initdb"),
        *sorted(map(str, Path("/usr/lib/postgresql").glob("*/bin/initdb")), reverse=True),
    ]
    found = next((Path(one).parent for one in programs if one), None)
    if found is None:
        pytest.skip("there is no PostgreSQL; on Debian and Ubuntu: apt-get install postgresql")
    with tempfile.TemporaryDirectory(prefix="headwater-pg-") as folder:
        user = "postgres" if os.geteuid() == 0 else None  # it refuses to be root
        if user is not None:
            shutil.chown(folder, user)
        run = partial(subprocess.run, check=True, cwd=folder, user=user, stdout=subprocess.DEVNULL)
        data = f"{folder}/data"
        run([found / "initdb", "--no-sync", "--auth=trust", "-U", "lake", "-D", data])
        settings = f"-c listen_addresses= -c unix_socket_directories={folder} -c fsync=off"
        run([found / "pg_ctl", "start", "--wait", "-D", data, "-l", f"{folder}/log", "-o", settings])
        try:
            yield f"postgresql+psycopg2://lake@/postgres?host={folder}"
        finally:
            run([found / "pg_ctl", "stop", "--wait", "--mode=immediate", "-D", data])


class _Rest(BaseHTTPRequestHandler):
    """What a lake asks of a catalog, by https://iceberg.apache.org/rest-catalog-spec/."""

    protocol_version = "HTTP/1.1"
    catalog: SqlCatalog
    store: Mapping[str, str]
    turn: threading.Lock

    def log_message(self, *_: object) -> None:
        """Nothing."""

    def do_GET(self) -> None:
        self._answer("GET")

    def do_POST(self) -> None:
        self._answer("POST")

    def do_DELETE(self) -> None:
        self._answer("DELETE")

    def _answer(self, method: str) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        try:
            if self.headers.get("Authorization") != f"Bearer {TOKEN}":
                raise PermissionError("say the token")
            with self.turn:
                status, told = 200, self._ask(method, urlsplit(self.path).path.split("/")[2:], body)
        except Exception as error:
            known = (401, PermissionError), (404, MISSING), (409, CONFLICTS)
            status = next((code for code, kinds in known if isinstance(error, kinds)), 500)
            told = {"error": {"message": str(error), "type": type(error).__name__, "code": status}}
        data = told if isinstance(told, bytes) else msgspec.json.encode(told)
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _ask(self, method: str, path: list[str], body: bytes) -> Any:
        catalog = self.catalog
        match method, path:
            case "GET", ["config"]:
                return {"defaults": {}, "overrides": {}}
            case "POST", ["namespaces"]:
                asked = msgspec.json.decode(body)
                catalog.create_namespace(tuple(asked["namespace"]), asked["properties"])
                return asked
            case "GET", ["namespaces", name]:
                return {"namespace": [name], "properties": catalog.load_namespace_properties(name)}
            case "POST", ["namespaces", name, "properties"]:
                asked = msgspec.json.decode(body)
                done = catalog.update_namespace_properties(name, set(asked["removals"]), asked["updates"])
                return {"updated": done.updated, "removed": done.removed, "missing": done.missing}
            case "GET", ["namespaces", name, "tables"]:
                return {"identifiers": [{"namespace": [name], "name": one[-1]} for one in catalog.list_tables(name)]}
            case "POST", ["namespaces", name, "tables"]:
                made = CreateTableRequest.model_validate({"location": None, **msgspec.json.decode(body)})
                spec, order = made.partition_spec, made.write_order
                assert spec is not None
                assert order is not None
                named, schema = (name, made.name), made.table_schema
                return self._table(catalog.create_table(named, schema, made.location, spec, order, made.properties))
            case "GET", ["namespaces", name, "tables", table]:
                return self._table(catalog.load_table((name, table)))
            case "POST", ["namespaces", name, "tables", table]:
                change = CommitTableRequest.model_validate_json(body)
                found = catalog.load_table((name, table))
                answer = catalog.commit_table(found, change.requirements, change.updates)
                return answer.model_dump_json().encode()
        raise NoSuchTableError(f"{method} {'/'.join(path)}")

    def _table(self, table: Table) -> Any:
        metadata = msgspec.Raw(table.metadata.model_dump_json().encode())
        return {"metadata-location": table.metadata_location, "metadata": metadata, "config": self.store}


@contextmanager
def rest(folder: Path, store: Mapping[str, str]) -> Iterator[str]:
    """A REST catalog, whose tables are in this store; its address."""
    opened = {name: value for name, value in store.items() if name != "warehouse"}
    catalog = SqlCatalog("served", uri=f"sqlite:///{folder}/served.sqlite", **store)
    kind = type("Rest", (_Rest,), {"catalog": catalog, "store": opened, "turn": threading.Lock()})
    with ThreadingHTTPServer(("127.0.0.1", 0), kind) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
            catalog.close()


@contextmanager
def catalog(kind: str, folder: Path, store: Mapping[str, str]) -> Iterator[dict[str, str]]:
    """How pyiceberg is told of a catalog whose tables are in a store."""
    match kind:
        case "sqlite":
            yield {"type": "sql", "uri": f"sqlite:///{folder}/catalog.sqlite", **store}
        case "postgresql":
            with postgresql() as uri:
                yield {"type": "sql", "uri": uri, **store}
        case "glue":
            names = ("endpoint", "region", "access-key-id", "secret-access-key")
            yield {"type": "glue", **store, **{f"glue.{name}": store[f"s3.{name}"] for name in names}}
        case "rest":
            with rest(folder, store) as uri:
                yield {"type": "rest", "uri": uri, "token": TOKEN}
