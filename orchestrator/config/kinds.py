"""Kinds of values: each reads a YAML node strictly, and says itself as JSON Schema. One definition serves both.

A kind's `read` returns the value or raises Wrong. Containers catch it, note it and read on, so that all that is wrong
with a file is told at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, Protocol

import yaml

from orchestrator.config.document import Document, Reader, Wrong, YamlPath, is_plain, line_of, quoted

Schema = dict[str, Any]


class Kind(Reader, Protocol):
    """What a key's value must be."""

    def schema(self) -> Schema:
        """JSON Schema (draft 2020-12) of what is accepted."""


class Scalar:
    """One word or number. `parse` gets the text as written, and raises ValueError saying what it expected."""

    def __init__(self, expected: str, parse: Callable[[str], Any], schema: Schema) -> None:
        self.expected = expected
        self.parse = parse
        self._schema = schema

    def read(self, document: Document, node: yaml.Node, path: YamlPath) -> Any:
        document.visit(node, path)
        _refuse_tags(node, path)
        if not isinstance(node, yaml.ScalarNode):
            raise Wrong(path, line_of(node), f"expected {self.expected}, found {_described(node)}")
        if is_plain(node) and node.value in ("", "null", "Null", "NULL"):
            raise Wrong(path, line_of(node), f"expected {self.expected}, found no value; leave the key out instead")
        try:
            return self.parse(node.value)
        except ValueError as error:
            raise Wrong(path, line_of(node), f"expected {error}, found {quoted(node.value)}") from None

    def schema(self) -> Schema:
        return dict(self._schema)


class ListOf:
    """A list, of at least one item. With `or_one`, a single item may stand without brackets."""

    def __init__(self, item: Kind, expected: str, *, or_one: bool = False) -> None:
        self.item = item
        self.expected = expected
        self.or_one = or_one

    def read(self, document: Document, node: yaml.Node, path: YamlPath) -> tuple[Any, ...]:
        if self.or_one and isinstance(node, yaml.ScalarNode):
            return (self.item.read(document, node, path),)
        document.visit(node, path)
        _refuse_tags(node, path)
        if not isinstance(node, yaml.SequenceNode) or not node.value:
            raise Wrong(path, line_of(node), f"expected {self.expected}, found {_described(node)}")
        values: list[Any] = []
        wrongs: list[Wrong] = []
        for index, child in enumerate(node.value):
            try:
                values.append(self.item.read(document, child, (*path, index)))
            except Wrong as wrong:
                wrongs.append(wrong)
        if wrongs:
            document.problems.extend(wrongs[:-1])
            raise wrongs[-1]
        return tuple(values)

    def schema(self) -> Schema:
        several: Schema = {"type": "array", "items": self.item.schema(), "minItems": 1}
        return {"anyOf": [self.item.schema(), several]} if self.or_one else several


class MapOf:
    """Names of the user's own choice -> values of one kind. `name` says what a name may be, or raises ValueError."""

    def __init__(self, name: Callable[[str], str], value: Kind, expected: str, *, pattern: str) -> None:
        self.name = name
        self.value = value
        self.expected = expected
        self.pattern = pattern

    def read(self, document: Document, node: yaml.Node, path: YamlPath) -> dict[str, Any]:
        document.visit(node, path)
        _refuse_tags(node, path)
        if not isinstance(node, yaml.MappingNode):
            raise Wrong(path, line_of(node), f"expected {self.expected}, found {_described(node)}")
        values = {}
        for key, key_node, child in document.entries(node, path):
            document.lines[(*path, key)] = line_of(key_node)
            try:
                values[self.name(key)] = self.value.read(document, child, (*path, key))
            except ValueError as error:
                document.problem((*path, key), line_of(key_node), f"expected {error}, found {quoted(key)}")
            except Wrong as wrong:
                document.problems.append(wrong)
        return values

    def schema(self) -> Schema:
        return {
            "type": "object",
            "additionalProperties": self.value.schema(),
            "propertyNames": {"pattern": self.pattern},
        }


class Key:
    """One key of a Record. `help` is one sentence for editors and for the reference page."""

    def __init__(self, kind: Kind, help: str, *, required: bool = False) -> None:
        self.kind = kind
        self.help = help
        self.required = required


class Record:
    """A mapping with known keys. Unknown and missing ones are problems; absent optional ones stay absent.

    With `exactly_one`, the record must hold one key and no more. Keys that begin with `x-` are left alone where
    `allow_x` is set: room for anchors.
    """

    def __init__(
        self, expected: str, keys: Mapping[str, Key], *, exactly_one: bool = False, allow_x: bool = False
    ) -> None:
        self.expected = expected
        self.keys = keys
        self.exactly_one = exactly_one
        self.allow_x = allow_x

    def read(self, document: Document, node: yaml.Node, path: YamlPath) -> dict[str, Any]:
        document.visit(node, path)
        _refuse_tags(node, path)
        if not isinstance(node, yaml.MappingNode):
            raise Wrong(path, line_of(node), f"expected {self.expected}, found {_described(node)}")
        values: dict[str, Any] = {}
        given = set()
        for key, key_node, child in document.entries(node, path):
            if self.allow_x and key.startswith("x-"):
                continue
            if key not in self.keys:
                document.problem((*path, key), line_of(key_node), f"unknown key; {did_you_mean(key, list(self.keys))}")
                given.add(_nearest(key, self.keys))
                continue
            given.add(key)
            try:
                values[key] = self.keys[key].kind.read(document, child, (*path, key))
            except Wrong as wrong:
                document.problems.append(wrong)
        self._check_presence(document, node, path, given)
        return values

    def _check_presence(self, document: Document, node: yaml.Node, path: YamlPath, given: set[str | None]) -> None:
        if self.exactly_one and len(given) != 1:
            names = sorted(key for key in given if key) or ["none"]
            document.problem(path, line_of(node), f"expected {self.expected}, found {' and '.join(names)}")
        for key, spec in self.keys.items():
            if spec.required and key not in given:
                document.problem((*path, key), line_of(node), f"missing: {spec.help}")

    def schema(self) -> Schema:
        schema: Schema = {
            "type": "object",
            "additionalProperties": False,
            "properties": {name: {"description": key.help, **key.kind.schema()} for name, key in self.keys.items()},
        }
        required = [name for name, key in self.keys.items() if key.required]
        if required:
            schema["required"] = required
        if self.exactly_one:
            schema.update(minProperties=1, maxProperties=1)
        if self.allow_x:
            schema["patternProperties"] = {"^x-": True}
        return schema


class WordOr:
    """A single word, or a mapping that says where to find it."""

    def __init__(self, word: Scalar, record: Record) -> None:
        self.word = word
        self.record = record

    def read(self, document: Document, node: yaml.Node, path: YamlPath) -> Any:
        if isinstance(node, yaml.MappingNode):
            return self.record.read(document, node, path)
        return self.word.read(document, node, path)

    def schema(self) -> Schema:
        return {"anyOf": [self.word.schema(), self.record.schema()]}


def did_you_mean(word: str, known: Sequence[str]) -> str:
    """`did you mean 'checkpoints'?`, else what is known."""
    nearest = _nearest(word, known)
    if nearest is not None:
        return f"did you mean {quoted(nearest)}?"
    return f"known: {', '.join(quoted(name, bare=True) for name in known)}" if known else "none is known"


def _nearest(word: str, known: Sequence[str] | Mapping[str, Any]) -> str | None:
    return next(iter(get_close_matches(word, list(known), n=1, cutoff=0.6)), None)


def _described(node: yaml.Node) -> str:
    if isinstance(node, yaml.ScalarNode):
        return quoted(node.value) if node.value else "no value"
    what = "mapping" if isinstance(node, yaml.MappingNode) else "list"
    return f"a {what}" if node.value else f"an empty {what}"


def _refuse_tags(node: yaml.Node, path: YamlPath) -> None:
    plain = node.tag.startswith("tag:yaml.org,2002:") and "/" not in node.tag
    if not plain:
        raise Wrong(path, line_of(node), f"the YAML tag {quoted(node.tag)} has no meaning here")
