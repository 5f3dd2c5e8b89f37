"""What --help shows of a command."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand, TyperGroup


class _Shown:
    """Shows a flag without a type: it takes no value."""

    def get_params(self, ctx: Any) -> list[Any]:
        params: list[Any] = super().get_params(ctx)  # type: ignore[misc]  # of a command of typer's
        for param in params:
            if getattr(param, "is_flag", False) and param.metavar is None:
                param.metavar = ""
        return params


class Command(_Shown, TyperCommand):
    """A command."""


class Group(_Shown, TyperGroup):
    """Several of them."""


def paragraphs(text: str | None) -> str | None:
    """A docstring whose paragraphs are as wide as the terminal, rather than as the source; what is indented stays."""
    if text is None:
        return None
    found = []
    for part in text.strip().split("\n\n"):
        lines = [line.removeprefix("    ") for line in part.splitlines()]
        is_prose = not any(line.startswith((" ", "- ")) for line in lines)
        found.append((" " if is_prose else "\n").join(lines))
    return "\n\n".join(found)
