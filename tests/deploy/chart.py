"""The Helm chart, rendered as Helm does it: values over the chart's own, checked by its schema, then every template."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jsonschema
import yaml
from gotpl.exts.helm import HelmTemplateEngine

CHART = Path(__file__).resolve().parents[2] / "deploy" / "helm" / "headwater"


def about() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    return found


def values(over: dict[str, Any] | None = None) -> dict[str, Any]:
    own: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
    return merged(own, over or {})


def merged(own: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    found = dict(own)
    for name, value in over.items():
        known = own.get(name)
        found[name] = merged(known, value) if isinstance(known, dict) and isinstance(value, dict) else value
    return found


def check(given: dict[str, Any]) -> None:
    """jsonschema.ValidationError if Helm would refuse these values."""
    schema = yaml.safe_load((CHART / "values.schema.json").read_text(encoding="utf-8"))
    jsonschema.Draft7Validator(schema).validate(given)


def rendered(over: dict[str, Any] | None = None, release: str = "mine") -> dict[str, Any]:
    """What is made of the chart, by template; of those that make something."""
    given = values(over)
    check(given)
    chart = about()
    sources = {path.name: path.read_text(encoding="utf-8") for path in sorted((CHART / "templates").iterdir())}
    context = {
        "Values": given,
        "Chart": {"Name": chart["name"], "Version": chart["version"], "AppVersion": chart["appVersion"]},
        "Release": {"Name": release, "Namespace": "here", "Service": "Helm"},
    }
    engine = HelmTemplateEngine.from_sources(sources)
    texts = engine.render({name: context for name in sources if not name.startswith("_")})
    return {
        name: text if name.endswith(".txt") else yaml.safe_load(text) for name, text in texts.items() if text.strip()
    }
