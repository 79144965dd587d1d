"""What was last synced to a harness folder, kept there in .orch: the manifest (synced.json), the contents that a merge
needs (base/SHA256), and, while a sync is at work, what it is about to do (syncing.json), so that the next look tells
what a killed sync had put in place from what somebody else did.
"""

import hashlib
import os
import re
import shutil
from typing import Any, Dict, Iterable, List, Mapping, Optional, Sequence

from remote_payload.agent import manifest, scratch
from remote_payload.agent.errors import AgentError
from remote_payload.agent.folder import Folder, steps
from remote_payload.agent.identity import utc
from remote_payload.agent.manifest import Entry

CONTENT_LIMIT = 1 << 20
"""bytes of a file whose content is kept for a merge"""
_SYNCED, _INTENT, _CONTENTS = "synced.json", "syncing.json", "base"
_SHA256 = re.compile(r"[0-9a-f]{64}")
Found = Mapping[str, Optional[Entry]]


def base_of(root: str) -> Optional[List[Entry]]:
    """The manifest that was last synced to `root`; None where there is none, or something else there."""
    return _rows(os.path.join(root, ".orch", _SYNCED))


def intent_of(root: str) -> Optional[List[Entry]]:
    """The manifest that a sync which never ended was making `root` equal to; None where there was none."""
    return _rows(os.path.join(root, ".orch", _INTENT))


def _rows(path: str) -> Optional[List[Entry]]:
    record = scratch.read_record(path)
    files = record.get("files") if record else None
    return files if isinstance(files, list) and all(map(_is_entry, files)) else None


def _is_entry(one: Any) -> bool:
    """Whether a row of a file on the host is a manifest's: its path leads nowhere else."""
    if not isinstance(one, dict) or not isinstance(one.get("path"), str) or manifest.odd(one["path"]):
        return False
    try:
        steps(one["path"])
    except AgentError:
        return False
    fits = one.get("mode") in (0o644, 0o755) and isinstance(one.get("size"), int) and one["size"] >= 0
    return fits and isinstance(one.get("sha256"), str) and bool(_SHA256.fullmatch(one["sha256"]))


def settled(base: Optional[List[Entry]], intent: Optional[List[Entry]], found: Found) -> Optional[List[Entry]]:
    """The last sync, with what a sync that was cut after it had brought where it is still so."""
    if intent is None:
        return base
    rows = {one["path"]: one for one in base or ()}
    aim = {one["path"]: one for one in intent}
    for path, there in found.items():
        goal = aim.get(path)
        if goal is None and there is None:
            rows.pop(path, None)
        elif goal is not None and there is not None and _same(goal, there):
            rows[path] = goal
    return [rows[path] for path in sorted(rows)]


def _same(one: Entry, other: Entry) -> bool:
    return (one["mode"], one["sha256"]) == (other["mode"], other["sha256"])


def announce(root: str, entries: Iterable[Entry]) -> None:
    """Say what a sync is about to do. Raises OSError."""
    _write(os.path.join(root, ".orch", _INTENT), entries)


def remember(root: str, entries: Iterable[Entry]) -> None:
    """Say what this folder was made equal to: the last file written. Raises OSError."""
    _write(os.path.join(root, ".orch", _SYNCED), entries)


def withdraw(root: str) -> None:
    """The sync that was announced is over."""
    scratch.unlink(os.path.join(root, ".orch", _INTENT))  # else what it says is true all the same


def _write(path: str, entries: Iterable[Entry]) -> None:
    files = sorted(entries, key=lambda one: str(one["path"]))
    scratch.write_json(path, {"schema": 1, "digest": manifest.digest(files), "files": files, "synced_at": utc()})


# -- contents ---------------------------------------------------------------------------------------------------


def keep_contents(root: str, entries: Sequence[Entry], arrived: Mapping[str, str], incoming: str) -> None:
    """Copy every content that the next merge may need: from what `arrived`, else from the folder. Raises OSError."""
    store = os.path.join(root, ".orch", _CONTENTS)
    os.makedirs(store, exist_ok=True)
    there = set(os.listdir(store))
    folder = Folder(root)
    for one in entries:
        name = str(one["sha256"])
        if name in there or one["size"] > CONTENT_LIMIT or not _SHA256.fullmatch(name):
            continue
        place = arrived.get(one["path"])
        descriptor = os.open(place, os.O_RDONLY | os.O_CLOEXEC) if place else _open(folder, one["path"])
        if descriptor is not None:
            _copy(descriptor, os.path.join(incoming, "base"), os.path.join(store, name))
            there.add(name)


def _open(folder: Folder, path: str) -> Optional[int]:
    try:
        return folder.open(path)
    except (OSError, AgentError):  # gone meanwhile: then there is nothing to merge with
        return None


def _copy(descriptor: int, beside: str, place: str) -> None:
    with os.fdopen(descriptor, "rb") as source, open(beside, "wb") as copy:
        shutil.copyfileobj(source, copy)
    os.replace(beside, place)


def drop_contents(root: str, entries: Iterable[Entry]) -> None:
    """Remove the contents that no file of the last sync has any more."""
    store = os.path.join(root, ".orch", _CONTENTS)
    needed = {str(one["sha256"]) for one in entries}
    for name in scratch.listed(store):
        if name not in needed:
            scratch.unlink(os.path.join(store, name))


def content_of(root: str, sha256: str) -> Optional[bytes]:
    """A content of the last sync; None where it was not kept, or is no longer what it was."""
    if not _SHA256.fullmatch(sha256):
        return None
    try:
        descriptor = os.open(os.path.join(root, ".orch", _CONTENTS, sha256), os.O_RDONLY | os.O_NOFOLLOW)
        with os.fdopen(descriptor, "rb") as file:
            data = file.read(CONTENT_LIMIT + 1)
    except OSError:
        return None
    return data if hashlib.sha256(data).hexdigest() == sha256 else None


def contents(root: str, wanted: Sequence[str]) -> Dict[str, Optional[bytes]]:
    """Contents of the last sync by their sha256."""
    return {sha256: content_of(root, sha256) for sha256 in wanted}
