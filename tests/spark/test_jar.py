"""Which jar a session takes: the one of these sources and this Spark, or none."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from headwater.spark import jar
from headwater.spark.session import JARS, _with_jar


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    shutil.copytree(jar.CHECKOUT / "jvm", tmp_path / "jvm", ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(jar, "CHECKOUT", tmp_path)
    return tmp_path


def built(root: Path) -> Path:
    version = jar.spark_version()
    assert version is not None
    path = root / jar.BUILT / jar.key(root / jar.SOURCES) / jar.NAME.format(version)
    path.parent.mkdir(parents=True)
    path.touch()
    return path


def test_a_jar_of_other_sources_is_none(checkout):
    assert jar.find() is None
    path = built(checkout)
    assert jar.find() == path
    source = next((checkout / "jvm").rglob("*.java"))
    source.write_text(source.read_text() + "// changed\n")
    assert jar.find() is None


def test_a_wheel_has_its_jar_beside_its_modules(tmp_path, monkeypatch):
    monkeypatch.setattr(jar, "CHECKOUT", tmp_path)
    monkeypatch.setattr(jar, "HERE", tmp_path)
    assert jar.find() is None
    (tmp_path / "headwater-spark-4.3.jar").touch()
    monkeypatch.setattr(jar, "spark_version", lambda: "4.4")
    assert jar.find() is None, "it was built for another Spark"
    monkeypatch.setattr(jar, "spark_version", lambda: "4.3")
    assert jar.find() == tmp_path / "headwater-spark-4.3.jar"


def test_a_session_takes_it_beside_the_jars_of_its_user(checkout):
    assert _with_jar({JARS: "mine.jar"}) == {JARS: "mine.jar"}
    path = built(checkout)
    assert _with_jar({JARS: "mine.jar"}) == {JARS: f"mine.jar,{path}"}
    assert _with_jar({}) == {JARS: str(path)}
