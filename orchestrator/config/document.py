"""A YAML file as nodes that know their line, and the list of what is wrong with it.

Values are read from the text that the user wrote, by the kind that the key wants (kinds.py), never through YAML 1.1's
own guesses: `no`, `0-4`, `010` and `1:30` arrive as written.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import yaml

from orchestrator.errors import ConfigError

try:
    from yaml import CSafeLoader as SafeLoader
except ImportError:  # a PyYAML built without libyaml
    from yaml import SafeLoader  # type: ignore[assignment]

MAX_BYTES = 1_000_000
MAX_NODES = 20_000
"""nodes read after aliases are followed: far above any real file, far below an alias bomb"""
SHOWN_PROBLEMS = 10
MAX_DEPTH = 50
MERGE_KEY = "<<"

Step: TypeAlias = "str | int"
YamlPath: TypeAlias = "tuple[Step, ...]"
Entry: TypeAlias = "tuple[str, yaml.Node, yaml.Node]"


def dotted(path: YamlPath) -> str:
    """`("command", 2)` -> `command[2]`, `("runs", "dflash")` -> `runs.dflash`."""
    text = ""
    for step in path:
        if isinstance(step, int):
            text += f"[{step}]"
        else:
            text += f"{'.' if text else ''}{quoted(step, bare=True)}"
    return text


def quoted(text: str, *, bare: bool = False, limit: int = 60) -> str:
    """Text from a file for a message: control characters escaped, length capped."""
    cut = text if len(text) <= limit else text[: limit - 3] + "..."
    shown = repr(cut)
    return shown[1:-1] if bare else shown


def line_of(node: yaml.Node) -> int:
    """Line of a node, counted from 1."""
    return int(node.start_mark.line) + 1


def is_plain(node: yaml.ScalarNode) -> bool:
    """Written without quotes (libyaml says "" here, the pure Python parser None)."""
    return not node.style


class Wrong(Exception):
    """One thing that is wrong at one place of a document; caught by the container that reads on."""

    def __init__(self, path: YamlPath, line: int, text: str) -> None:
        super().__init__(text)
        self.path = path
        self.line = line
        self.text = text


class Reader(Protocol):
    """Reads a node as a value, or raises Wrong: the kinds of kinds.py."""

    def read(self, document: Document, node: yaml.Node, path: YamlPath) -> Any: ...


class Document:
    """One file being read. `lines` remembers where each value stood, for the checks that need the whole."""

    def __init__(self, path: Path, hint: str) -> None:
        self.path = path
        self.hint = hint
        self.shown_path = displayed(path)
        self.lines: dict[YamlPath, int] = {}
        self.problems: list[Wrong] = []
        self._visited = 0

    def read(self, kind: Reader) -> Any:
        """The whole file as one value; problems inside are noted. Raises ConfigError for what isn't YAML."""
        try:
            return kind.read(self, self._root(), ())
        except Wrong as wrong:
            self.problems.append(wrong)
            self.finish()
            raise

    def _root(self) -> yaml.Node:
        """The top node. Raises ConfigError for what is not one YAML document of reasonable size."""
        text = self._text()
        try:
            node = yaml.compose(text, Loader=SafeLoader)
        except RecursionError:  # libyaml has its own limit, the pure Python parser this one
            raise self._error(f"{self.shown_path}: not YAML: nesting without end") from None
        except yaml.MarkedYAMLError as error:
            raise self._syntax_error(error, text) from None
        except yaml.YAMLError as error:
            line = text.encode().count(b"\n", 0, getattr(error, "position", 0)) + 1
            raise self._error(f"{self.shown_path}:{line}: not YAML: a control character that YAML forbids") from None
        if node is None:
            raise self._error(f"{self.shown_path}: the file is empty")
        return node

    def visit(self, node: yaml.Node, path: YamlPath) -> None:
        """Note where a value stands. Raises ConfigError once aliases have multiplied past MAX_NODES."""
        self._count(1, node, path)
        self.lines[path] = line_of(node)

    def entries(self, node: yaml.MappingNode, path: YamlPath) -> list[Entry]:
        """(key, key node, value node) of a mapping, merge keys (`<<: *anchor`) followed. Doubled keys are problems."""
        self._count(len(node.value), node, path)
        seen: dict[str, int] = {}
        merged: list[Entry] = []
        own: list[Entry] = []
        for key_node, value in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                self.problem(path, line_of(key_node), "expected a name as key, found a list or mapping")
            elif key_node.value == MERGE_KEY and is_plain(key_node):
                merged.extend(self._merged(value, path))
            elif key_node.value in seen:
                first = seen[key_node.value]
                self.problem((*path, key_node.value), line_of(key_node), f"given twice, first in line {first}")
            else:
                seen[key_node.value] = line_of(key_node)
                own.append((key_node.value, key_node, value))
        inherited = {key: (key, key_node, value) for key, key_node, value in reversed(merged) if key not in seen}
        return own + list(inherited.values())

    def problem(self, path: YamlPath, line: int, text: str) -> None:
        """Note one thing that is wrong."""
        self.problems.append(Wrong(path, line, text))

    def problem_at(self, path: YamlPath, text: str) -> None:
        """Note one thing that is wrong at a value read before; where it is not there, at the nearest parent."""
        known = path
        while known and known not in self.lines:
            known = known[:-1]
        self.problem(path, self.lines.get(known, 1), text)

    def finish(self) -> None:
        """Raise one ConfigError that lists the problems in the file's order, if there are any."""
        if not self.problems:
            return
        ordered = sorted(self.problems, key=lambda wrong: wrong.line)
        messages = [self._line(wrong) for wrong in ordered[:SHOWN_PROBLEMS]]
        if len(ordered) > SHOWN_PROBLEMS:
            messages.append(f"{self.shown_path}: and {len(ordered) - SHOWN_PROBLEMS} more")
        raise self._error("\n".join(messages))

    def _count(self, nodes: int, node: yaml.Node, path: YamlPath) -> None:
        self._visited += nodes
        if self._visited > MAX_NODES or len(path) > MAX_DEPTH:
            raise self._error(
                f"{self.shown_path}:{line_of(node)}: the file unfolds to more than {MAX_NODES} values "
                f"or {MAX_DEPTH} levels: aliases that multiply or contain themselves"
            )

    def _line(self, wrong: Wrong) -> str:
        where = f"{dotted(wrong.path)}: " if wrong.path else ""
        return f"{self.shown_path}:{wrong.line}: {where}{wrong.text}"

    def _merged(self, value: yaml.Node, path: YamlPath) -> Iterator[Entry]:
        self.visit(value, (*path, MERGE_KEY))
        sources = value.value if isinstance(value, yaml.SequenceNode) else [value]
        for source in sources:
            if isinstance(source, yaml.MappingNode):
                yield from self.entries(source, (*path, MERGE_KEY))
            else:
                self.problem((*path, MERGE_KEY), line_of(source), "expected a mapping to merge, such as *anchor")

    def _text(self) -> str:
        try:
            with self.path.open("rb") as file:
                raw = file.read(MAX_BYTES + 1)
        except OSError as error:
            raise self._error(f"{self.shown_path}: can't be read: {error.strerror}") from None
        if len(raw) > MAX_BYTES:
            raise self._error(f"{self.shown_path}: larger than {MAX_BYTES} bytes: not a file of settings")
        try:
            return raw.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            line = raw.count(b"\n", 0, error.start) + 1
            raise self._error(f"{self.shown_path}:{line}: not UTF-8: byte 0x{raw[error.start]:02x}") from None

    def _syntax_error(self, error: yaml.MarkedYAMLError, text: str) -> ConfigError:
        mark = error.problem_mark or error.context_mark
        line, index = (mark.line, mark.index) if mark else (0, 0)
        what = " ".join(part for part in (error.context, error.problem) if part)
        if text[index : index + 1] == "\t":
            what = "a tab: YAML indents with spaces alone"
        return self._error(f"{self.shown_path}:{line + 1}: not YAML: {what}")

    def _error(self, message: str) -> ConfigError:
        return ConfigError(message, hint=self.hint)


def displayed(path: Path) -> str:
    """The path as short as it can be said from the current folder."""
    try:
        shorter = path.resolve().relative_to(Path.cwd())
    except (ValueError, OSError):
        return quoted(str(path), bare=True, limit=300)
    return quoted(str(shorter), bare=True, limit=300)
