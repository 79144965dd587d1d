"""The local harness folder as something that is changed: files of the host are brought into it, whole or not at all.

What is replaced is saved beside, in `.orch/saved`. `.orch/taken.json` remembers which versions of the host the local
tree has taken in, until they are synced: a merge that goes on by hand needs no consent again.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import remote_payload
from orchestrator.answers import file_entry, read_file_entry
from orchestrator.errors import OrchError, Refused
from orchestrator.merging import has_markers
from orchestrator.model import Harness, HarnessFile, Host, Inventory, Job, LocalChange, TakenFile
from remote_payload.agent import replace, wire
from remote_payload.agent.errors import AgentError
from remote_payload.agent.folder import Folder

RECORD = "taken.json"
GIT_PATIENCE = 30.0
"""seconds for `git status`"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pulled:
    """What was brought into the local tree."""

    folder: Path
    paths: tuple[str, ...]
    conflicts: tuple[str, ...]
    """those of them in which conflicts stand now"""
    saved: str | None
    """the folder here where replaced files went"""
    git: bool
    """whether the folder is in a git work tree"""


def check_own(job: Job, inventory: Inventory) -> None:
    """Raises Refused where the harness is the one that came with orch: nothing is written into an installed package."""
    installed = Path(remote_payload.__file__).parent.resolve()
    folder = job.harness_local.resolve()
    if installed in (folder, *folder.parents) and inventory.path.parent.resolve() not in folder.parents:
        raise Refused(
            f"{folder} is a part of orch itself; nothing was changed",
            hint=f"copy it beside {inventory.path} and name the copy as harness.local in {job.path.name}",
        )


def uncommitted(root: Path, paths: Sequence[str]) -> tuple[str, ...]:
    """Those of the files that git holds no commit of as they are now; none where the folder is in no git work tree."""
    if not paths:
        return ()
    options = ("--porcelain=v1", "-z", "--untracked-files=all", "--ignored=matching", "--no-renames")
    told, prefix = _git(root, "status", *options, "--", *paths), _git(root, "rev-parse", "--show-prefix")
    if told is None or prefix is None:
        return ()
    above = os.fsdecode(prefix.removesuffix(b"\n"))
    rows = [os.fsdecode(row[3:]).removeprefix(above) for row in told.split(b"\0") if row]
    folders = tuple(row for row in rows if row.endswith("/"))  # ignored as a whole
    return tuple(path for path in paths if path in rows or path.startswith(folders) or "./" in folders or "" in rows)


def in_git(root: Path) -> bool:
    """Whether a folder is in a git work tree."""
    return _git(root, "rev-parse", "--show-prefix") is not None


def _git(root: Path, *words: str) -> bytes | None:
    command = ["git", "--literal-pathspecs", "-C", str(root), *words]
    environment = {**os.environ, "GIT_OPTIONAL_LOCKS": "0"}
    try:
        done = subprocess.run(
            command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, timeout=GIT_PATIENCE
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def change(job: Job, host: Host, ours: Harness, changes: Sequence[LocalChange]) -> Pulled:
    """Make these changes in the local tree, all of them or none. Raises Refused where a file changed meanwhile, or
    where a path leads out of the folder."""
    root = str(job.harness_local)
    here = {file.path: file for file in ours.files}
    after = {**here, **{one.path: one.new for one in changes}}
    sent = [one for one in changes if one.content is not None]
    entries = [file_entry(file) for file in after.values() if file is not None]
    gone = [one.path for one in changes if one.new is None and one.path in here]
    before = {one.path: file_entry(here[one.path]) if one.path in here else None for one in changes}
    try:
        replace.check(entries, [one.path for one in sent], gone)
        _check_unknown(root, [one.path for one in sent if one.path not in here])
        with replace.opened(root, "taking the host's files") as incoming:
            _hide_from_git(root)
            swap = replace.Replacement(root, incoming, entries, [one.path for one in sent], gone, before)
            swap.receive(piece for one in sent for piece in _pieces(one.content or b""))
            swap.verify()
            saved = swap.save(lambda path, entry: True)
            _remember(job, host, here, changes, pending=True)
            changed = swap.swap(lambda: _remember(job, host, here, changes, pending=False))
    except AgentError as error:
        raise Refused(error.message, hint=error.hint) from None
    return Pulled(
        folder=job.harness_local,
        paths=(*changed, *gone),
        conflicts=tuple(one.path for one in changes if one.conflicts),
        saved=saved,
        git=in_git(job.harness_local),
    )


def _pieces(content: bytes) -> Sequence[bytes]:
    return [content[at : at + wire.CHUNK] for at in range(0, len(content), wire.CHUNK)]


def _check_unknown(root: str, paths: Sequence[str]) -> None:
    """A file that is new to the local harness may lie there all the same: ignored, a link, or in other letters."""
    folder = Folder(root)
    for path in paths:
        if folder.entry(path) is not None:
            raise AgentError(
                f"{Path(root, path)} is there already, though no part of the harness: ignored, a link out of it, or a "
                "name that differs in case alone; nothing was changed",
                "move it away, or see .orchignore",
                kind="refused",
            )


def _hide_from_git(root: str) -> None:
    ignore = Path(root, replace.OWN, ".gitignore")
    if not ignore.exists():
        ignore.write_text("*\n", encoding="utf-8")


def texts(job: Job, paths: Sequence[str]) -> dict[str, bytes]:
    """The local files as they are now; an empty one where one is gone."""
    return {path: _text(job, path) for path in paths}


# -- what was taken in ------------------------------------------------------------------------------------------


def taken(job: Job, host: Host) -> dict[str, TakenFile]:
    """The host's versions that the local tree has taken in since the last sync, by path."""
    rows = _read(job).get(_place(job, host))
    found = {}
    for path, row in rows.items() if isinstance(rows, dict) else ():
        with suppress(KeyError, TypeError, AttributeError):
            files = {key: read_file_entry(row[key]) if row[key] else None for key in ("theirs", "replaced", "new")}
            marked = bool(row["conflicts"]) and has_markers(_text(job, path))
            found[path] = TakenFile(**files, pending=bool(row["pending"]), marked=marked)
    return found


def forget(job: Job, host: Host) -> None:
    """The local tree is synced: what it had taken in is the host's own now."""
    record = _read(job)
    if record.pop(_place(job, host), None) is not None:
        _write(job, record)


def _remember(
    job: Job, host: Host, here: Mapping[str, HarnessFile], changes: Sequence[LocalChange], *, pending: bool
) -> None:
    """Before the change and after it: what is killed in between is neither taken for done nor for nothing."""
    record = _read(job)
    rows = record.setdefault(_place(job, host), {})
    for one in changes:
        rows[one.path] = {
            "theirs": file_entry(one.theirs) if one.theirs is not None else None,
            "replaced": file_entry(here[one.path]) if one.path in here else None,
            "new": file_entry(one.new) if one.new is not None else None,
            "pending": pending,
            "conflicts": one.conflicts,
        }
    _write(job, record)


def _text(job: Job, path: str) -> bytes:
    try:
        with open(Folder(str(job.harness_local)).open(path), "rb") as file:
            return file.read()
    except (OSError, AgentError):
        return b""


def _place(job: Job, host: Host) -> str:
    return f"{host.ssh}:{job.harness_remote}"


def _record(job: Job) -> Path:
    return job.harness_local / replace.OWN / RECORD


def _read(job: Job) -> dict[str, Any]:
    try:
        record = json.loads(_record(job).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    places = record.get("places") if isinstance(record, dict) else None
    return places if isinstance(places, dict) else {}


def _write(job: Job, places: Mapping[str, Any]) -> None:
    path = _record(job)
    beside = path.with_name(f"{RECORD}.{os.getpid()}.tmp")
    try:
        beside.write_text(json.dumps({"schema": 1, "places": places}), encoding="utf-8")
        beside.replace(path)
    except OSError as error:
        raise OrchError(f"{path} can't be written: {error.strerror}") from None
