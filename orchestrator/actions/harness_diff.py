"""How the harness here and the one on a host differ, file by file, for showing."""

from __future__ import annotations

import difflib
import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from orchestrator.model import Drift, FileChange, HarnessFile
from orchestrator.taken import local_text

DIFF_LINES = 10_000
"""lines of both versions past which a diff takes seconds, and then minutes"""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileDiff:
    """How one file differs: unified diff lines, a sentence for a binary file, nothing for one that is new."""

    change: FileChange
    lines: tuple[str, ...]
    size: int
    """bytes of the local file"""


def diffs(found: Drift, root: Path, theirs: Mapping[str, bytes | None]) -> Iterator[FileDiff]:
    """Each difference, whole files, host's version first. Pure but for reading the local files."""
    here = {file.path: file for file in found.local.files}
    there = {file.path: file for file in found.remote.files} if found.remote else {}
    for change in found.files:
        ours = local_text(root, change.path)
        mode = _mode(there.get(change.path), here.get(change.path))
        if change.change == "extra" or change.renamed_from or (change.change == "added" and change.side == "local"):
            lines: tuple[str, ...] = ()
        elif change.change == "mode":
            lines = mode
        else:
            lines = (*mode, *_content(change, ours, theirs.get(change.path), there.get(change.path)))
        yield FileDiff(change=change, lines=lines, size=len(ours))


def _mode(there: HarnessFile | None, here: HarnessFile | None) -> tuple[str, ...]:
    if there is None or here is None or there.mode in (0, here.mode):
        return ()
    return (f"mode {there.mode:o} there, {here.mode:o} here",)


def _content(change: FileChange, ours: bytes, old: bytes | None, there: HarnessFile | None) -> Iterator[str]:
    if there is not None and there.sha256 in ("link", "folder", "special"):
        what = {"link": "a link out of the harness", "folder": "a folder", "special": "a device, pipe or socket"}
        yield f"on the host it is {what[there.sha256]}; {len(ours)} bytes here"
    elif old is None and (there is not None or change.change == "modified"):
        digest = f"sha256 {there.sha256}, {there.size} bytes" if there is not None else "not read"
        yield f"the host's version is too large to show, or a link: {digest} there; {_digest(ours)} here"
    else:
        yield from unified(change.path, old or b"", ours)


def unified(name: str, old: bytes, new: bytes, sides: tuple[str, str] = ("host", "local")) -> Iterator[str]:
    """Lines of the unified diff of one file; one sentence for what has no lines, or too many."""
    try:
        before, after = (text.decode("utf-8").splitlines(keepends=True) for text in (old, new))
    except UnicodeDecodeError:
        yield f"binary files differ: {_digest(old)} there; {_digest(new)} here"
        return
    if b"\0" in old or b"\0" in new:
        yield f"binary files differ: {_digest(old)} there; {_digest(new)} here"
        return
    if min(len(before), len(after)) > DIFF_LINES:
        yield f"too long to compare line by line: {len(before)} lines there, {len(after)} here"
        return
    for line in difflib.unified_diff(before, after, f"{sides[0]}/{name}", f"{sides[1]}/{name}"):
        yield line.rstrip("\n")


def _digest(data: bytes) -> str:
    return f"sha256 {hashlib.sha256(data).hexdigest()}, {len(data)} bytes" if data else "nothing"
