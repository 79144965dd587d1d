"""A YAML file as text, tuples and dicts with the line of each, and the list of what is wrong with the file.

Words and numbers stay the text that the user wrote: YAML 1.1 makes nothing else of `no`, `0-4`, `010` or `1:30`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from orchestrator.config.messages import YamlPath, displayed, dotted, quoted
from orchestrator.errors import ConfigError

try:
    from yaml import CSafeLoader as SafeLoader
except ImportError:  # a PyYAML built without libyaml
    from yaml import SafeLoader  # type: ignore[assignment]

MAX_BYTES = 1_000_000
MAX_NODES = 20_000
"""values after aliases are followed: far above any real file, far below an alias bomb"""
MAX_DEPTH = 50
SHOWN_PROBLEMS = 10
MERGE_KEY = "<<"
NULLS = ("", "null", "Null", "NULL")


@dataclass(frozen=True, slots=True)
class NoText:
    """Stands for a value that can't be used; `tag` is its YAML tag, or empty where no value is written."""

    tag: str = ""


class Document:
    """One file. `tree` holds its values, `lines` and `key_lines` where each value and its key stand (from 1).

    Top-level keys that begin with `x-` are left out: room for anchors. Raises ConfigError for what is not one YAML
    document of reasonable size.
    """

    def __init__(self, path: Path, hint: str) -> None:
        self.hint = hint
        self.shown_path = displayed(path)
        self.lines: dict[YamlPath, int] = {}
        self.key_lines: dict[YamlPath, int] = {}
        self.problems: dict[tuple[YamlPath, int], str] = {}
        self._visited = 0
        self.tree = self._value(self._root(self._text(path)), ())

    def problem(self, path: YamlPath, text: str, line: int | None = None) -> None:
        """Note what is wrong at a value, unless that is told already; at its parent's line where it is not there."""
        known = path
        while known and known not in self.lines:
            known = known[:-1]
        line = line or self.lines[known]
        where = f"{dotted(path)}: " if path else ""
        self.problems.setdefault((path, line), f"{self.shown_path}:{line}: {where}{text}")

    def refusal(self) -> ConfigError:
        """One error that lists the problems in the file's order."""
        messages = [text for _, text in sorted(self.problems.items(), key=lambda problem: problem[0][1])]
        if len(messages) > SHOWN_PROBLEMS:
            messages[SHOWN_PROBLEMS:] = [f"{self.shown_path}: and {len(messages) - SHOWN_PROBLEMS} more"]
        return ConfigError("\n".join(messages), hint=self.hint)

    def _value(self, node: yaml.Node, path: YamlPath) -> Any:
        self._count(node, path)
        self.lines[path] = _line(node)
        if not node.tag.startswith("tag:yaml.org,2002:") or "/" in node.tag:
            return NoText(node.tag)
        if isinstance(node, yaml.ScalarNode):
            return NoText() if _is_plain(node) and node.value in NULLS else node.value
        if isinstance(node, yaml.SequenceNode):
            return tuple(self._value(child, (*path, index)) for index, child in enumerate(node.value))
        values = {}
        for key, (key_node, child) in self._entries(node, path).items():
            if path or not key.startswith("x-"):
                values[key] = self._value(child, (*path, key))
                self.key_lines[(*path, key)] = _line(key_node)
        return values

    def _entries(self, node: yaml.Node, path: YamlPath) -> dict[str, tuple[yaml.Node, yaml.Node]]:
        """Key -> key node, value node; merge keys (`<<: *anchor`) followed. Doubled keys are problems."""
        own: dict[str, tuple[yaml.Node, yaml.Node]] = {}
        merged: dict[str, tuple[yaml.Node, yaml.Node]] = {}
        for key_node, value in node.value:
            key = key_node.value
            if not isinstance(key_node, yaml.ScalarNode):
                self.problem(path, "expected a name as key, found a list or mapping", _line(key_node))
            elif key == MERGE_KEY and _is_plain(key_node):
                merged = self._merged(value, (*path, MERGE_KEY)) | merged
            elif key in own:
                text = f"given twice, first in line {_line(own[key][0])}"
                self.problem((*path, key), text, _line(key_node))
            else:
                own[key] = (key_node, value)
        return own | {key: entry for key, entry in merged.items() if key not in own}

    def _merged(self, value: yaml.Node, path: YamlPath) -> dict[str, tuple[yaml.Node, yaml.Node]]:
        entries: dict[str, tuple[yaml.Node, yaml.Node]] = {}
        for source in value.value if isinstance(value, yaml.SequenceNode) else [value]:
            self._count(source, path)
            if isinstance(source, yaml.MappingNode):
                entries = self._entries(source, path) | entries
            else:
                self.problem(path, "expected a mapping to merge, such as *anchor", _line(source))
        return entries

    def _count(self, node: yaml.Node, path: YamlPath) -> None:
        self._visited += 1
        if self._visited > MAX_NODES or len(path) > MAX_DEPTH:
            text = f"the file unfolds to more than {MAX_NODES} values or {MAX_DEPTH} levels"
            raise self._error(f":{_line(node)}: {text}: aliases that multiply or contain themselves")

    def _root(self, text: str) -> yaml.Node:
        try:
            node = yaml.compose(text, Loader=SafeLoader)
        except RecursionError:  # libyaml has its own limit, the pure Python parser this one
            raise self._error(": not YAML: nesting without end") from None
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            line, index = (mark.line, mark.index) if mark else (0, 0)
            what = " ".join(part for part in (error.context, error.problem) if part)
            what = "a tab: YAML indents with spaces alone" if text[index : index + 1] == "\t" else what
            raise self._error(f":{line + 1}: not YAML: {what}") from None
        except yaml.YAMLError as error:
            line = text.encode().count(b"\n", 0, getattr(error, "position", 0)) + 1
            raise self._error(f":{line}: not YAML: a control character that YAML forbids") from None
        if node is None:
            raise self._error(": the file is empty")
        return node

    def _text(self, path: Path) -> str:
        try:
            with path.open("rb") as file:
                raw = file.read(MAX_BYTES + 1)
        except OSError as error:
            raise self._error(f": can't be read: {error.strerror}") from None
        if len(raw) > MAX_BYTES:
            raise self._error(f": larger than {MAX_BYTES} bytes: not a file of settings")
        try:
            return raw.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            line = raw.count(b"\n", 0, error.start) + 1
            raise self._error(f":{line}: not UTF-8: byte 0x{raw[error.start]:02x}") from None

    def _error(self, text: str) -> ConfigError:
        return ConfigError(self.shown_path + text, hint=self.hint)


def described(value: object) -> str:
    """What a value of a tree is, for `expected ..., found ...`."""
    if isinstance(value, (dict, tuple)):
        kind = "mapping" if isinstance(value, dict) else "list"
        return f"a {kind}" if value else f"an empty {kind}"
    return quoted(value) if isinstance(value, str) else "no value; leave the key out instead"


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1


def _is_plain(node: yaml.ScalarNode) -> bool:
    """Written without quotes (libyaml says "" here, the pure Python parser None)."""
    return not node.style
