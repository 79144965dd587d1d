"""The evaluation scripts here and on the host: their manifests, their difference, and the push that ends it."""

from __future__ import annotations

import base64
import difflib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.answers import entries_of, file_entry, harness_of
from orchestrator.errors import ConfigError
from orchestrator.model import Drift, FileChange, Harness, Host, Job, Timeouts
from orchestrator.ssh.agent import ask
from orchestrator.ssh.connection import Connection
from remote_payload.agent import manifest, wire
from remote_payload.agent.errors import AgentError

DIFF_LINES = 10_000
"""lines of both versions past which a diff takes seconds, and then minutes"""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileDiff:
    """How one file differs: unified diff lines, a sentence for a binary file, nothing for one that is new."""

    change: FileChange
    lines: tuple[str, ...]
    size: int
    """bytes of the local file"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pushed:
    """What a sync did."""

    paths: tuple[str, ...]
    saved: str | None
    """the folder on the host where replaced files went"""


def local(job: Job) -> Harness:
    """The local harness as it is now. Raises ConfigError for names and links that can't be synced."""
    try:
        return harness_of(manifest.build(str(job.harness_local)))
    except AgentError as error:
        raise ConfigError(error.message, hint=error.hint) from None


def drift(ours: Harness, theirs: Harness | None, base: Harness | None, extras: Sequence[str]) -> Drift:
    """Three-way comparison: last synced, local, remote."""
    compared = manifest.compare(
        None if base is None else entries_of(base),
        entries_of(ours),
        None if theirs is None else entries_of(theirs),
    )
    files = [FileChange(path=row["path"], change=row["change"], side=row["side"]) for row in compared["files"]]
    known = {change.path for change in files}
    files += [FileChange(path=path, change="extra", side="remote") for path in extras if path not in known]
    return Drift(state=compared["state"], local=ours, remote=theirs, base=base, files=tuple(files))


def contents(
    connection: Connection, host: Host, job: Job, paths: Sequence[str], timeouts: Timeouts
) -> dict[str, bytes | None]:
    """The host's versions of these files; None for one that is missing there or too large to show."""
    args = {"remote": job.harness_remote, "paths": list(paths)}
    answer = ask(connection, host, "harness_read", args, role="eval", timeouts=timeouts)
    return {row["path"]: None if row["data"] is None else base64.b64decode(row["data"]) for row in answer["files"]}


def diffs(found: Drift, root: Path, theirs: Mapping[str, bytes | None]) -> Iterator[FileDiff]:
    """Each difference, whole files, host's version first. Pure but for reading the local files."""
    for change in found.files:
        path = root / change.path
        ours = path.read_bytes() if path.is_file() else b""
        old = theirs.get(change.path)
        if change.change in ("extra", "mode") or (change.change == "added" and change.side == "local"):
            lines: tuple[str, ...] = ()
        elif old is None and change.change == "modified":
            lines = (f"the host's version is too large to show, or a link; {len(ours)} bytes here",)
        else:
            lines = tuple(_unified(change.path, old or b"", ours))
        yield FileDiff(change=change, lines=lines, size=len(ours))


def _unified(name: str, old: bytes, new: bytes) -> Iterator[str]:
    try:
        before, after = (text.decode("utf-8").splitlines(keepends=True) for text in (old, new))
    except UnicodeDecodeError:
        yield f"binary files differ: {len(old)} bytes there, {len(new)} here"
        return
    if min(len(before), len(after)) > DIFF_LINES:
        yield f"too long to compare line by line: {len(before)} lines there, {len(after)} here"
        return
    for line in difflib.unified_diff(before, after, f"host/{name}", f"local/{name}"):
        yield line.rstrip("\n")


def push(connection: Connection, host: Host, job: Job, found: Drift, timeouts: Timeouts) -> Pushed:
    """Make the host's harness equal to the local one. Raises Refused when it changed since it was looked at."""
    theirs = {} if found.remote is None else {file.path: file for file in found.remote.files}
    ours = {file.path for file in found.local.files}
    sent = [file for file in found.local.files if theirs.get(file.path) != file]
    gone = [change.path for change in found.files if change.change == "deleted" and change.path not in ours]
    touched = [*(file.path for file in sent), *gone]
    args: dict[str, Any] = {
        "remote": job.harness_remote,
        "entries": entries_of(found.local),
        "send": [file.path for file in sent],
        "delete": gone,
        "expected": {path: file_entry(theirs[path]) if path in theirs else None for path in touched},
    }
    pieces = [piece for file in sent for piece in _pieces(job.harness_local / file.path, file.size)]
    answer = ask(connection, host, "harness_push", args, role="eval", timeouts=timeouts, pieces=pieces or None)
    return Pushed(paths=(*answer["pushed"], *answer["deleted"]), saved=answer["saved"])


def _pieces(path: Path, size: int) -> Iterator[bytes]:
    with path.open("rb") as file:
        while size:
            piece = file.read(min(size, wire.CHUNK))
            if not piece:
                return  # it shrank meanwhile: the host's hash check says so
            size -= len(piece)
            yield piece
