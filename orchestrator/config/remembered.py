"""What a settings file held when it was last read, kept beside the user's caches as Python keeps its bytecode.

Reading a file anew takes pydantic, which takes longer to import than a host to answer. So a reading that found nothing
wrong is kept, and used for the same bytes at the same path by the same code. Anything else is read anew: a wrong file,
a changed one, one that another orch read, one whose folders have gone since. Losing the cache costs time alone.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from orchestrator import __version__
from orchestrator.keeping import cache_folder, keep

KEPT = 64
"""files; the newest ones"""
LARGEST = 4_000_000
"""bytes"""


def settings(
    path: Path, read: Callable[[], dict[str, Any]], still: Callable[[dict[str, Any]], bool] = lambda _: True
) -> dict[str, Any]:
    """What the file holds: as remembered, where `still` finds it true, else by `read`, which may raise ConfigError."""
    place, mark = _place(path), _mark(path)
    if mark and (known := _kept(place, mark)) is not None and still(known):
        return known
    found = read()
    if mark and mark == _mark(path):  # not written to meanwhile
        _keep(place, mark, found)
    return found


def _place(path: Path) -> Path:
    name = hashlib.sha256(os.fsencode(path.absolute())).hexdigest()[:32]
    return cache_folder() / "settings" / f"{name}.json"


def _mark(path: Path) -> str:
    """Digest of the file's bytes and of the code that reads them (size and time of its files); empty without a file."""
    try:
        code = [(entry.name, entry.stat()) for entry in os.scandir(Path(__file__).parent) if entry.is_file()]
        reader = sorted((name, facts.st_size, facts.st_mtime_ns) for name, facts in code)
        content = path.read_bytes() if path.stat().st_size <= LARGEST else None
    except OSError:
        return ""
    if content is None:
        return ""
    return hashlib.sha256(repr((__version__, sys.version, reader)).encode() + b"\0" + content).hexdigest()


def _kept(place: Path, mark: str) -> dict[str, Any] | None:
    """The reading of that mark. Only a file of this user's, that no other may write to, is believed."""
    try:
        with place.open("rb") as file:
            facts = os.fstat(file.fileno())
            if facts.st_uid != os.getuid() or facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
                return None
            document = json.loads(file.read(LARGEST))
        holds = document["holds"]
        return _tuples(holds) if (document["mark"], document["sum"]) == (mark, _sum(mark, holds)) else None
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def _keep(place: Path, mark: str, found: dict[str, Any]) -> None:
    document = {"mark": mark, "sum": _sum(mark, found), "holds": found}
    with suppress(OSError):  # no home, a full disk: the next call reads the file again
        keep(place, json.dumps(document).encode(), 0o600)
        for oldest in sorted(place.parent.iterdir(), key=lambda other: other.stat().st_mtime)[:-KEPT]:
            oldest.unlink()


def _sum(mark: str, found: Any) -> str:
    """A digest of what is kept: damage on the disk, or an edit by hand, makes a reading that is not believed."""
    return hashlib.sha256(f"{mark} {json.dumps(found)}".encode()).hexdigest()


def _tuples(value: Any) -> Any:
    """JSON's lists as the tuples that they were."""
    if isinstance(value, list):
        return tuple(map(_tuples, value))
    return {key: _tuples(item) for key, item in value.items()} if isinstance(value, dict) else value
