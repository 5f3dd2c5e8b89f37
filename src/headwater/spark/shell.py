"""Spark's own SQL shell, from the pyspark that is installed, with the topics of a bus as its catalog."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

from headwater.errors import Failed
from headwater.spark import jar
from headwater.spark.catalog import OF_ENVIRONMENT
from headwater.spark.session import QUIET_OPTIONS, SETTINGS, check_java

CATALOG = "hw"
CLASS = "headwater.spark.HeadwaterCatalog"


def catalog(lake: str | None = None, name: str = CATALOG) -> dict[str, str]:
    """What makes topics a catalog of a session; where they are, the environment says, as others see settings."""
    found = {f"spark.sql.catalog.{name}": CLASS}
    return found if lake is None else {**found, f"spark.sql.catalog.{name}.lake": lake}


def kept(folder: str) -> dict[str, str]:
    """What makes a session keep its tables in a folder, where the next one finds them."""
    place = Path(folder).absolute()
    return {
        "spark.sql.catalogImplementation": "hive",
        "spark.sql.warehouse.dir": str(place / "warehouse"),
        "spark.hadoop.javax.jdo.option.ConnectionURL": f"jdbc:derby:;databaseName={place / 'metastore'};create=true",
    }


def command(
    place: Mapping[str, str],
    *,
    lake: str | None = None,
    tables: str | None = None,
    master: str | None = None,
    logs: bool = False,
) -> tuple[list[str], dict[str, str]]:
    """The command of a shell, and its environment; Failed if it cannot run."""
    check_java()
    built = jar.find()
    if built is None:
        raise Failed("tables are in the jar of Headwater, and there is none for this Spark; `make jvm` builds it")
    package = find_spec("pyspark")
    assert package is not None
    assert package.origin is not None
    spark = Path(package.origin).parent
    settings = {
        **SETTINGS,
        **catalog(lake),
        **(kept(tables) if tables is not None else {"spark.sql.catalogImplementation": "in-memory"}),
        "spark.sql.defaultCatalog": CATALOG,
        "spark.sql.cli.print.header": "true",
        "spark.master": master or os.environ.get("SPARK_MASTER", "local[*]"),
        "spark.jars": str(built),
    }
    if not logs:
        settings["spark.driver.extraJavaOptions"] = QUIET_OPTIONS
    said = [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
    environment = {name: value for name, value in os.environ.items() if name not in OF_ENVIRONMENT.values()}
    environment |= {OF_ENVIRONMENT[name]: value for name, value in place.items()}
    environment |= {"SPARK_HOME": str(spark)}
    environment.setdefault("PYSPARK_PYTHON", sys.executable)
    return [str(spark / "bin/spark-sql"), *said], environment
