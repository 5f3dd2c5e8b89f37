"""A Spark session that is kept warm: others ask it over Spark Connect, and need not start one.

It listens on loopback alone, and lets in who knows its token. Token and address of the bus come by the environment of
Spark's process, which nobody but its user can read; arguments of a process, everybody can.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from pyspark.errors import PySparkException

from headwater.errors import Malformed
from headwater.spark.catalog import OF_ENVIRONMENT
from headwater.spark.pipelines.troubles import said_by_us
from headwater.spark.session import hush_queries
from headwater.spark.shell import CATALOG, catalog, kept

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql import SparkSession

PORT = 15002
"""As Spark's own server has it."""
SCHEME = "sc://"
TOKEN_VARIABLE = "SPARK_CONNECT_AUTHENTICATE_TOKEN"  # noqa: S105  # it is its name
PLUGIN = "org.apache.spark.sql.connect.SparkConnectPlugin"
SERVICE = "org.apache.spark.sql.connect.service.SparkConnectService$"


def conf_of_sql(place: Mapping[str, str], lake: str | None, tables: str | None) -> dict[str, str]:
    """What makes topics the tables of a session; where they are goes into the environment."""
    for name, variable in OF_ENVIRONMENT.items():
        os.environ.pop(variable, None)
        if name in place:
            os.environ[variable] = place[name]
    found = {**catalog(lake), "spark.sql.defaultCatalog": CATALOG}
    return found if tables is None else {**found, **kept(tables)}


def conf_of_server(port: int) -> dict[str, str]:
    """What makes a session one that others may ask."""
    os.environ.setdefault(TOKEN_VARIABLE, secrets.token_urlsafe(24))
    return {
        "spark.plugins": PLUGIN,
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
    }


def begin(spark: SparkSession) -> str:
    """The address to ask such a session at, once it is warm."""
    _warm_up(spark)
    service: Any = spark._jvm
    for part in (*SERVICE.split("."), "MODULE$"):
        service = getattr(service, part)
    return f"{SCHEME}localhost:{service.localPort()}/;token={quote(os.environ[TOKEN_VARIABLE], safe='')}"


def _warm_up(spark: SparkSession) -> None:
    """Have the first query find what later ones do: classes that are loaded, and Pythons that have begun."""
    with suppress(PySparkException):
        for row in spark.sql(f"SHOW TABLES IN {CATALOG}").take(1):
            root = row.tableName.replace("`", "``")
            spark.sql(f"SELECT topic, count(*) FROM {CATALOG}.`{root}` GROUP BY topic LIMIT 1").collect()  # noqa: S608


def ask(address: str, query: str) -> pyarrow.Table:
    """The rows of a query, of a session that is kept warm."""
    from pyspark.sql.connect.session import SparkSession as Remote

    hush_queries()
    spark = Remote.builder.remote(_checked(address)).getOrCreate()
    try:
        return answer(spark, query)
    finally:
        spark.stop()


def answer(spark: Any, query: str) -> pyarrow.Table:
    """The rows of a query; what Spark says of one that is wrong is told in a sentence."""
    try:
        return spark.sql(query).toArrow()
    except PySparkException as error:
        ours = said_by_us(str(error))
        raise Malformed(ours.sentence if ours is not None else str(error).strip().partition("\n")[0]) from error


def _checked(address: str) -> str:
    if not address.startswith(SCHEME):
        raise Malformed(
            f'"{address[:40]}" is no address of a Spark session; `headwater pipeline serve` prints one: sc://…'
        )
    return address
