"""Which local changes bring a host's edits home: theirs as they are, or merged with ours. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from orchestrator.errors import Refused
from orchestrator.merging import is_text, merge
from orchestrator.model import Drift, FileChange, HarnessFile, LocalChange

NO_FILE = {"link": "a link that leads out of it", "folder": "a folder", "special": "a device, pipe or socket"}


def edited_there(found: Drift) -> tuple[FileChange, ...]:
    """What the host's side changed, alone or as well."""
    return tuple(change for change in found.files if change.change != "extra" and change.side in ("remote", "both"))


def wanted_versions(found: Drift) -> list[HarnessFile]:
    """The host's versions whose bytes are needed here. Raises Refused where one is no file."""
    there = _by_path(found.remote.files if found.remote else ())
    here = _by_path(found.local.files)
    wanted = []
    for change in edited_there(found):
        file, ours = there.get(change.path), here.get(change.path)
        if file is None or (ours is not None and ours.sha256 == file.sha256):
            continue
        if file.sha256 in NO_FILE:
            raise Refused(
                f"{change.path} is {NO_FILE[file.sha256]} on the host; nothing was changed",
                hint="put a file there, or --take-local (what is there is saved beside)",
            )
        wanted.append(file)
    return wanted


def in_conflict(found: Drift) -> list[FileChange]:
    """Changes of both sides in which both still have a file with bytes of its own."""
    here, there = _by_path(found.local.files), _by_path(found.remote.files if found.remote else ())
    return [
        change
        for change in edited_there(found)
        if change.side == "both"
        and change.path in here
        and change.path in there
        and here[change.path].sha256 != there[change.path].sha256
    ]


def base_versions(found: Drift) -> list[HarnessFile]:
    """The last synced versions that merging needs."""
    base = _by_path(found.base.files if found.base else ())
    return [base[change.path] for change in in_conflict(found) if change.path in base]


def merged_versions(
    found: Drift, ours: Mapping[str, bytes], theirs: Mapping[str, bytes], base: Mapping[str, bytes], host: str
) -> dict[str, tuple[HarnessFile, bytes, int]]:
    """path -> (merged file, its bytes, conflicts in it) of every file that both sides changed.

    `ours` and `theirs` are contents by path, `base` by sha256. Raises Refused, naming all that can't be merged.
    """
    here, there = _by_path(found.local.files), _by_path(found.remote.files if found.remote else ())
    was = _by_path(found.base.files if found.base else ())
    mergeable = {change.path for change in in_conflict(found)}
    merged: dict[str, tuple[HarnessFile, bytes, int]] = {}
    stuck = []
    for change in edited_there(found):
        path = change.path
        if change.side != "both":
            continue
        if path not in mergeable:
            if path in here and path in there:
                continue  # the same bytes: only modes differ
            stuck.append(f"{path} was deleted on one side and changed on the other")
            continue
        common = base.get(was[path].sha256) if path in was else b""
        if common is None:
            stuck.append(f"{path}: its last synced version was not kept")
        elif not is_text(common, ours[path], theirs[path]):
            stuck.append(f"{path} is no text, or too long to merge")
        else:
            done = merge(common, ours[path], theirs[path], ours_name="local", theirs_name=host)
            mode = _merged_mode(was.get(path), here[path], there[path])
            digest = hashlib.sha256(done.text).hexdigest()
            file = HarnessFile(path=path, mode=mode, sha256=digest, size=len(done.text))
            merged[path] = (file, done.text, done.conflicts)
    if stuck:
        raise Refused(
            f"can't be merged: {'; '.join(stuck)}; nothing was changed",
            hint="--keep-remote takes theirs, --take-local yours; the other version is saved beside",
        )
    return merged


def _merged_mode(was: HarnessFile | None, here: HarnessFile, there: HarnessFile) -> int:
    """The mode that one side changed; of files without a common version, executable if either is."""
    if was is None:
        return max(here.mode, there.mode)
    return there.mode if here.mode == was.mode else here.mode


def local_changes(
    found: Drift, theirs: Mapping[str, bytes], merged: Mapping[str, tuple[HarnessFile, bytes, int]]
) -> list[LocalChange]:
    """What becomes of each local file: the merged version where there is one, else the host's."""
    there = _by_path(found.remote.files if found.remote else ())
    changes = []
    for change in edited_there(found):
        path, file = change.path, there.get(change.path)
        if path in merged:
            new, text, conflicts = merged[path]
            changes.append(LocalChange(path=path, new=new, content=text, theirs=file, conflicts=conflicts))
        else:
            changes.append(LocalChange(path=path, new=file, content=theirs.get(path), theirs=file))
    return changes


def _by_path(files: tuple[HarnessFile, ...]) -> dict[str, HarnessFile]:
    return {file.path: file for file in files}
