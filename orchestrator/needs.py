"""What a harness needs, read from its sources without running them: packages, and whether it parses options."""

from __future__ import annotations

import ast
import difflib
import posixpath
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from orchestrator.model import Job

PARSERS = ("argparse", "click", "typer", "fire", "tyro", "absl", "docopt", "simple_parsing", "jsonargparse", "hydra")
"""libraries whose programs answer --help and end"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """What the program of a job needs of an interpreter."""

    script: str
    """path of the program in the harness; "" where the command is not `{python} SCRIPT ...`"""
    missing: str = ""
    """a program that the command names in the harness, which is not there; with the name that it may mean"""
    packages: tuple[str, ...]
    """imported without a condition, by the program or by what it imports, and not of the standard library"""
    answers_help: bool
    options: tuple[str, ...]
    """that the job's command uses"""
    changes_path: bool
    """whether its sources speak of sys.path: then what it finds can't be told from outside"""


def needs_of(job: Job, sources: Mapping[str, bytes]) -> Needs:
    """Read `sources` (path -> bytes, the .py files of the harness) from the command's program on."""
    words = job.command
    named = posixpath.normpath(words[1]) if len(words) > 1 and words[0] == "{python}" else ""
    script = named if named in sources else ""
    inside = named.endswith(".py") and not named.startswith(("/", "~", "{", "-", ".."))
    options = tuple(word.partition("=")[0] for word in words[2:] if word.startswith("--") and len(word) > 2)
    found: set[str] = set()
    waiting: list[str] = [script] if script else []
    seen: set[str] = set()
    while waiting:
        path = waiting.pop()
        if path in seen:
            continue
        seen.add(path)
        for name in _imported(sources[path]):
            local = _local(name, path, sources)
            waiting += local
            if not local:
                found.add(name.split(".")[0])
    packages = tuple(sorted(name for name in found if name and name not in sys.stdlib_module_names))
    helps = any(name in found for name in PARSERS)
    moves = any(b"sys.path" in sources[path] for path in seen)
    return Needs(
        script=script,
        missing=_missing(named, sources) if inside and not script else "",
        packages=packages,
        answers_help=helps,
        options=options,
        changes_path=moves,
    )


def _missing(named: str, sources: Mapping[str, bytes]) -> str:
    near = difflib.get_close_matches(named, sources, 1)
    return f"{named} is not in the harness" + (f"; did you mean {near[0]}?" if near else "")


def unknown_options(options: Sequence[str], help_text: str) -> list[str]:
    """Those of the options that a program's help does not name, in full or as the beginning of one."""
    known = set(help_text.replace(",", " ").replace("=", " ").replace("[", " ").replace("]", " ").split())
    return [option for option in options if not any(word.startswith(option) for word in known)]


def _imported(source: bytes) -> Iterator[str]:
    """Full names of what a module imports at its top, outside of `try` and `if`: what it can't do without."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):  # its own --help says so
        return
    for node in tree.body:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            yield "." * node.level + module
            yield from (f"{'.' * node.level}{module}{'.' if module else ''}{alias.name}" for alias in node.names)


def _local(name: str, importer: str, sources: Mapping[str, bytes]) -> list[str]:
    """Files of the harness that an import reads: relative to the importer, its folder, or the harness itself."""
    level = len(name) - len(name.lstrip("."))
    parts = [part for part in name.lstrip(".").split(".") if part]
    folder = importer.split("/")[:-1]
    bases = [folder[: len(folder) - level + 1]] if level else [[], folder]
    found = []
    for base in bases:
        for end in range(1, len(parts) + 1):
            place = "/".join([*base, *parts[:end]])
            found += [path for path in (f"{place}.py", f"{place}/__init__.py") if path in sources]
    return found or ([importer] if level else [])
