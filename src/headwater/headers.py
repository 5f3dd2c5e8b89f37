"""Headers of a message as a mapping, in order and with repeats."""

from __future__ import annotations

from collections.abc import ItemsView, Iterator, KeysView, Mapping, ValuesView

Headers = tuple[tuple[str, str], ...]
"""As they are stored: names and values in order; a name may occur more than once."""


class HeaderMap(Mapping[str, str]):
    """Headers by name, as `message.headers`.

    A name may occur more than once: `headers["unit"]` and `.get("unit")` are its last value, `.get_all("unit")` all of
    them. Iteration, `keys()`, `values()` and `items()` go through all headers in order, repeats included, and `len()`
    counts them; `dict(headers)` keeps the last of a name. Published again, as `headers=message.headers`, they are the
    same.
    """

    __slots__ = ("_pairs",)

    def __init__(self, pairs: Headers = ()) -> None:
        self._pairs = pairs

    def __getitem__(self, name: str) -> str:
        for known, value in reversed(self._pairs):
            if known == name:
                return value
        raise KeyError(name)

    def get_all(self, name: str) -> list[str]:
        """Every value of a name, in order; none if there is no such header."""
        return [value for known, value in self._pairs if known == name]

    def __iter__(self) -> Iterator[str]:
        return iter([name for name, _ in self._pairs])

    def __len__(self) -> int:
        return len(self._pairs)

    def keys(self) -> KeysView[str]:
        return _Names(self)

    def items(self) -> ItemsView[str, str]:
        return _Items(self)

    def values(self) -> ValuesView[str]:
        return _Values(self)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, HeaderMap):
            return self._pairs == other._pairs
        if isinstance(other, Mapping):
            return len(self) == len(other) and dict(self) == dict(other)
        return NotImplemented

    def __hash__(self) -> int:
        return hash(self._pairs)

    def __repr__(self) -> str:
        if len(dict(self._pairs)) == len(self._pairs):
            return f"HeaderMap({dict(self._pairs)!r})"
        return f"HeaderMap({self._pairs!r})"


class _Names(KeysView[str]):
    _mapping: HeaderMap

    def __iter__(self) -> Iterator[str]:
        return iter(self._mapping)


class _Items(ItemsView[str, str]):
    _mapping: HeaderMap

    def __iter__(self) -> Iterator[tuple[str, str]]:
        return iter(self._mapping._pairs)

    def __contains__(self, item: object) -> bool:
        return item in self._mapping._pairs


class _Values(ValuesView[str]):
    _mapping: HeaderMap

    def __iter__(self) -> Iterator[str]:
        return iter([value for _, value in self._mapping._pairs])

    def __contains__(self, value: object) -> bool:
        return any(value == known for _, known in self._mapping._pairs)
