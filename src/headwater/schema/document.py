"""Schemas as they are given and as they are stored: a JSON Schema of a small part of the vocabulary, in one form.

What is given is a Python type or a JSON Schema (draft 2020-12). What is stored says the same with these words alone:

    {}                                               anything that is JSON
    {"enum": […]}                                    one of these: strings, whole numbers, true, false, null
    {"anyOf": [{…}, {…}]}                            one of these, which can be told apart as they are read
    {"type": "object", "properties": …}              with required, additionalProperties
    {"type": "object", "additionalProperties": …}    a map, with minProperties, maxProperties
    {"type": "array", "items": …}                    with minItems, maxItems
    {"type": "array", "prefixItems": […]}            a value for each place, with minItems
    {"type": "string"}                               with minLength, maxLength, or a format
    {"type": "number"}, {"type": "integer"}          with minimum, maximum, exclusiveMinimum, …, multipleOf
    {"type": "boolean"}, {"type": "null"}

and "title" and "description" beside them. Promises: a word that is not known, and one that has no meaning where it
stands, is refused and never passed over; what is stored is bounded in bytes, depth and parts, whatever refers to what.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, NoReturn

import msgspec

from headwater.config import Config
from headwater.errors import Malformed, TooLarge

Node = dict[str, Any]
"""A schema, or a part of one."""

PARTS_MAX = 10_000
"""Parts that a schema has once what it refers to stands in its place."""
TYPES = ("null", "boolean", "integer", "number", "string", "array", "object")
NUMBERS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
COUNTS = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")
WORDS: Mapping[str, tuple[str, ...]] = {
    "null": (),
    "boolean": (),
    "integer": NUMBERS,
    "number": NUMBERS,
    "string": ("minLength", "maxLength", "format", "contentEncoding"),
    "array": ("items", "prefixItems", "minItems", "maxItems"),
    "object": ("properties", "required", "additionalProperties", "minProperties", "maxProperties"),
}
"""What may be said of each type."""
FORMATS = ("date-time", "date", "time", "duration", "uuid", "decimal")
TOLD = ("title", "description")
"""Said to people, and kept."""
UNTOLD = frozenset(
    ("default", "examples", "deprecated", "readOnly", "writeOnly", "discriminator", "$comment", "$schema", "$id")
)
"""Words that check nothing, and are left out."""
DEFINITIONS = ("$defs", "definitions")
ELSEWHERE = frozenset(word for words in WORDS.values() for word in words)
PATTERN = "patterns take as long as a payload likes; leave it out, or use enum, format or lengths"
WHY_NOT = {"pattern": PATTERN, "patternProperties": PATTERN, "uniqueItems": "leave it out, or list what may be: enum"}
SHOWN_CHARS = 80


class Document(NamedTuple):
    """A schema in its stored form, and as text."""

    node: Node
    text: str


def read(given: object, config: Config) -> Document:
    """The stored form of a Python type or of a JSON Schema; Malformed (422) says what is wrong with it."""
    if isinstance(given, str | bytes):
        text = given.encode() if isinstance(given, str) else given
    elif given is True or given == {}:
        text = b"{}"
    else:
        text = _encoded(given if isinstance(given, Mapping) else _of_type(given))
    _check_size(len(text), config)
    try:
        node = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Malformed(f"the schema cannot be read as JSON: {error}") from None
    found = _Reading(node, config.schema_depth_max).stored()
    stored = _encoded(found)
    _check_size(len(stored), config)
    return Document(found, stored.decode())


def _encoded(given: object) -> bytes:
    try:
        return msgspec.json.encode(given)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise Malformed(f"the schema cannot be written as JSON: {str(error)[:SHOWN_CHARS]}") from None


def _check_size(size: int, config: Config) -> None:
    if size > config.schema_bytes_max:
        raise TooLarge(
            f"a schema of {size} bytes is over schema_bytes_max ({config.schema_bytes_max}); say less, or raise the "
            "setting"
        )


def _of_type(given: object) -> object:
    """The JSON Schema of a Python type."""
    dump = getattr(given, "model_json_schema", None)
    try:
        if dump is not None:  # pydantic: as its models are written, when they are published
            config: Mapping[str, Any] = getattr(given, "model_config", {})
            return dump(by_alias=bool(config.get("serialize_by_alias", False)))
        if given is None or isinstance(given, int | float | list | tuple):
            raise TypeError("it is no type")
        return _without_unique(msgspec.json.schema(given))
    except RecursionError:
        raise Malformed(f"{given!r} has no end: it refers to itself") from None
    except Exception as error:  # what a model's own code raises is of any type
        raise Malformed(
            f"there is no schema of {str(given)[:SHOWN_CHARS]}: {str(error)[:200]}; give a dataclass, a "
            "msgspec.Struct, a TypedDict, a pydantic model, or a JSON Schema as a dict"
        ) from None


def _without_unique(node: Any) -> Any:
    """The same without what a set says of its items: it takes those that come twice."""
    if isinstance(node, list):
        return [_without_unique(one) for one in node]
    if isinstance(node, dict):
        return {name: _without_unique(one) for name, one in node.items() if (name, one) != ("uniqueItems", True)}
    return node


class _Reading:
    """One schema on its way to its stored form."""

    def __init__(self, root: object, depth_max: int) -> None:
        self._root = root
        self._depth_max = depth_max
        self._parts = 0
        self._referred: list[str] = []
        """What refers to what we are in."""

    def stored(self) -> Node:
        return self._node(self._root, "$", 0)

    def _node(self, given: object, where: str, depth: int) -> Node:
        self._parts += 1
        if self._parts > PARTS_MAX:
            raise TooLarge(f"the schema has more than {PARTS_MAX} parts, with what it refers to; say less")
        if depth > self._depth_max:
            _refuse(where, f"is nested deeper than schema_depth_max ({self._depth_max})")
        if given is True:
            return {}
        if given is False or not isinstance(given, dict):
            _refuse(where, f"is {_shown(given)}; a schema is an object, or true")
        said = {word: value for word, value in given.items() if word not in UNTOLD}
        told = {word: _text(said.pop(word), where) for word in TOLD if word in said}
        if where == "$":
            said = {word: value for word, value in said.items() if word not in DEFINITIONS}
        return {**self._meant(said, where, depth), **told}

    def _meant(self, said: Node, where: str, depth: int) -> Node:
        if not said:
            return {}
        if "$ref" in said:
            return self._referred_to(said, where, depth)
        if "enum" in said or "const" in said:
            return self._enum(said, where)
        for word in ("anyOf", "oneOf"):
            if word in said:
                return self._alternatives(word, said, where, depth)
        types = said.pop("type", None)
        if types is None:
            self._check_words(said, (), where)
        names = types if isinstance(types, list) else [types]
        if not names:
            _refuse(where, f"has no type in its list of types; use some of {', '.join(TYPES)}")
        for name in names:
            if name not in TYPES:
                _refuse(where, f"has the type {_shown(name)}; use one of {', '.join(TYPES)}")
        self._check_words(said, names, where)
        if len(names) > 1 and "number" in names and "integer" in names:
            names.remove("integer")
        alternatives = [self._typed(name, said, where, depth) for name in dict.fromkeys(names)]
        return alternatives[0] if len(alternatives) == 1 else {"anyOf": alternatives}

    @staticmethod
    def _check_words(said: Node, types: list[Any] | tuple[()], where: str) -> None:
        """Each word means something here."""
        for word in said:
            if any(word in WORDS[name] for name in types):
                continue
            if word in WHY_NOT:
                _refuse(where, f"has {_shown(word)}, which is not checked: {WHY_NOT[word]}")
            if word not in ELSEWHERE:
                _refuse(where, f"has {_shown(word)}, which is not known: docs/guide/schemas.md lists what is")
            if not types:
                _refuse(where, f"has {_shown(word)} and no type; say which type it is about")
            _refuse(where, f"has {_shown(word)}, which says nothing about a {' or '.join(types)}")

    # References

    def _referred_to(self, said: Node, where: str, depth: int) -> Node:
        name = said.pop("$ref")
        if said:
            _refuse(where, f"has {_shown(next(iter(said)))} beside $ref; put it where that points")
        if not isinstance(name, str) or not name.startswith("#/"):
            _refuse(where, f"refers to {_shown(name)}; a schema refers to what stands in itself: #/$defs/NAME")
        if name in self._referred:
            _refuse(where, f"refers to {_shown(name)}, which it is a part of; what refers to itself has no end")
        found: Any = self._root
        for step in name.removeprefix("#/").split("/"):
            step = step.replace("~1", "/").replace("~0", "~")
            found = found.get(step) if isinstance(found, dict) else None
        if found is None:
            _refuse(where, f"refers to {_shown(name)}, which is not there")
        self._referred.append(name)
        try:
            return self._node(found, where, depth + 1)
        finally:
            self._referred.pop()

    # Alternatives

    @staticmethod
    def _enum(said: Node, where: str) -> Node:
        values = said.pop("enum") if "enum" in said else [said["const"]]
        constant = said.pop("const", values[0] if isinstance(values, list) and values else None)
        types = said.pop("type", None)
        if said:
            _refuse(where, f"has {_shown(next(iter(said)))} beside enum, which says it all; leave it out")
        if not isinstance(values, list) or not values:
            _refuse(where, f"has an enum of {_shown(values)}; list what it may be")
        names = types if isinstance(types, list) else TYPES if types is None else [types]
        for value in (*values, constant):
            if not isinstance(value, str | int | None) or (type(value) is int and not -(2**63) <= value < 2**63):
                _refuse(where, f"has {_shown(value)} in its enum; use strings, whole numbers, true, false or null")
            if _type_of(value) not in names and not (type(value) is int and "number" in names):
                _refuse(where, f"has {_shown(value)} in its enum, and is of type {_shown(types)}")
        if constant not in values:
            _refuse(where, f"has the const {_shown(constant)}, which its enum has not")
        return {"enum": list({(type(value), value): value for value in values}.values())}

    def _alternatives(self, word: str, said: Node, where: str, depth: int) -> Node:
        given = said.pop(word)
        if said:
            _refuse(where, f"has {_shown(next(iter(said)))} beside {word}; put it into the alternatives")
        if not isinstance(given, list) or not given:
            _refuse(where, f"has {word} of {_shown(given)}; list the alternatives")
        found: list[Node] = []
        for place, one in enumerate(given):
            node = self._node(one, f"{where}.{word}[{place}]", depth + 1)
            found += node.get("anyOf", [node])
        types = {node.get("type") for node in found}
        if word == "oneOf" and {"integer", "number"} <= types:
            _refuse(where, "has oneOf with integer and number, and a whole number is both; use number")
        if any(not node.keys() - set(TOLD) for node in found):
            return {}
        if {"type": "number"} in found:
            found = [node for node in found if node != {"type": "integer"}]
        distinct = [node for place, node in enumerate(found) if node not in found[:place]]
        return distinct[0] if len(distinct) == 1 else {"anyOf": distinct}

    # Types

    def _typed(self, name: str, said: Node, where: str, depth: int) -> Node:
        said = {word: value for word, value in said.items() if word in WORDS[name]}
        for word, value in said.items():
            if word in COUNTS and (type(value) is not int or not 0 <= value < 2**31):
                _refuse(where, f"has {word} {_shown(value)}; use a whole number from 0 on")
        if name in ("integer", "number"):
            return {"type": name, **self._bounds(name, said, where)}
        if name == "string":
            return self._string(said, where)
        if name == "array":
            return self._array(said, where, depth)
        if name == "object":
            return self._object(said, where, depth)
        return {"type": name}

    @staticmethod
    def _bounds(name: str, said: Node, where: str) -> Node:
        for word, value in said.items():
            if type(value) not in (int, float) or (word == "multipleOf" and value <= 0):
                _refuse(where, f"has {word} {_shown(value)}; use a number")
            if name == "integer":
                if value != int(value) or not -(2**63) <= value < 2**63:
                    _refuse(where, f"has {word} {_shown(value)}; of an integer use a whole number of 64 bits")
                said[word] = int(value)
        for one, other in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
            if one in said and other in said:
                _refuse(where, f"has {one} and {other}; use one of them")
        return said

    @staticmethod
    def _string(said: Node, where: str) -> Node:
        if "format" in said and said["format"] not in FORMATS:
            _refuse(where, f"has the format {_shown(said['format'])}; use one of {', '.join(FORMATS)}, or none")
        if "contentEncoding" in said and said["contentEncoding"] != "base64":
            _refuse(where, f"has contentEncoding {_shown(said['contentEncoding'])}; use base64, or none")
        if ("format" in said or "contentEncoding" in said) and len(said) > 1:
            _refuse(where, "has a format and more; use a format, base64, or lengths")
        return {"type": "string", **said}

    def _array(self, said: Node, where: str, depth: int) -> Node:
        if "prefixItems" not in said:
            if said.get("items") is False:
                said["items"], said["maxItems"] = True, 0
            return {"type": "array", **said, "items": self._node(said.get("items", True), f"{where}[]", depth + 1)}
        given, rest = said["prefixItems"], said.get("items", True)
        if not isinstance(given, list) or not given:
            _refuse(where, f"has prefixItems {_shown(given)}; list a schema for each place")
        if not isinstance(rest, bool):
            _refuse(where, "has prefixItems and items; of what comes after the first places say false, or nothing")
        if said.get("maxItems", len(given)) != len(given) or said.get("minItems", 0) > len(given):
            _refuse(where, f"has {len(given)} prefixItems; use that for maxItems, and no more for minItems")
        items = [self._node(one, f"{where}[{place}]", depth + 1) for place, one in enumerate(given)]
        made = {"type": "array", "prefixItems": items, "minItems": said.get("minItems", 0)}
        if rest is False or "maxItems" in said:
            made["maxItems"] = len(items)
        return made

    def _object(self, said: Node, where: str, depth: int) -> Node:
        given, required, rest = (
            said.get("properties", {}),
            said.get("required", []),
            said.get("additionalProperties", True),
        )
        if not isinstance(given, dict):
            _refuse(where, f"has properties {_shown(given)}; use an object of schemas by name")
        if not isinstance(required, list) or not all(isinstance(name, str) for name in required):
            _refuse(where, f"has required {_shown(required)}; list the names of properties")
        given = given | {name: True for name in required if name not in given}
        if not given and rest is not False:
            counts = {word: value for word, value in said.items() if word in COUNTS}
            return {
                "type": "object",
                "additionalProperties": self._node(rest, f"{where}.*", depth + 1),
                **counts,
            }
        if not isinstance(rest, bool):
            _refuse(where, "has properties and a schema for others; use one of them, or true or false for others")
        if any(word in said for word in ("minProperties", "maxProperties")):
            _refuse(where, "has properties and a number of them; say which are required")
        properties = {name: self._node(one, f"{where}.{name}", depth + 1) for name, one in given.items()}
        made: Node = {"type": "object", "properties": properties}
        if required:
            made["required"] = sorted(set(required))
        if rest is False:
            made["additionalProperties"] = False
        return made


def _text(value: object, where: str) -> str:
    if not isinstance(value, str):
        _refuse(where, f"has a title or description {_shown(value)}; use text")
    return value


def _type_of(value: object) -> str:
    return "null" if value is None else {str: "string", bool: "boolean", int: "integer"}.get(type(value), "")


def _shown(value: object) -> str:
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return f'"{text[:SHOWN_CHARS]}"' if isinstance(value, str) else text[:SHOWN_CHARS]


def _refuse(where: str, what: str) -> NoReturn:
    raise Malformed(f"the schema at {where[:SHOWN_CHARS]} {what}")
