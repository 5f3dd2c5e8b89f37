"""Whether this is the compiled build: the same sources, with the modules of the hot path compiled by mypyc.

Which modules those are stands in pyproject.toml; docs/contribute/architecture.md says how to get it.
"""

from __future__ import annotations

from importlib.machinery import EXTENSION_SUFFIXES
from importlib.util import find_spec

ONE_OF_THEM = "headwater.mqtt.reader"


def is_compiled() -> bool:
    """Whether modules were compiled: all of them were, or none."""
    spec = find_spec(ONE_OF_THEM)
    return spec is not None and spec.origin is not None and spec.origin.endswith(tuple(EXTENSION_SUFFIXES))
