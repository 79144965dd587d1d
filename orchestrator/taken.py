"""What the local harness has taken in of a host's edits since the last sync: `.orch/taken.json` in its folder.

Going on from there by hand needs no consent again; going back to the old file makes the edit there an edit again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from orchestrator.answers import file_entry, read_file_entry
from orchestrator.errors import OrchError
from orchestrator.keeping import write_whole
from orchestrator.model import HarnessFile, Host, Job, LocalChange, Taken, TakenFile
from remote_payload.agent.errors import AgentError
from remote_payload.agent.folder import Folder

RECORD = "taken.json"
NOTHING = Taken(files={}, unresolved=())


def read(job: Job, host: Host) -> Taken:
    """The host's versions that the local harness has taken in, and where conflicts stand, from whichever host."""
    places = _read(job)
    if not places:
        return NOTHING
    marked = {path for rows in places.values() for path, row in rows.items() if row.get("conflicts")}
    return Taken(files=_files(places.get(_place(job, host), {})), unresolved=_with_markers(job, sorted(marked)))


def _files(rows: Mapping[str, Any]) -> dict[str, TakenFile]:
    found = {}
    for path, row in rows.items():
        with suppress(KeyError, TypeError):
            files = {key: read_file_entry(row[key]) if row[key] else None for key in ("theirs", "replaced", "new")}
            found[path] = TakenFile(**files, pending=bool(row["pending"]))
    return found


def _with_markers(job: Job, paths: Sequence[str]) -> tuple[str, ...]:
    from orchestrator.merging import has_markers

    return tuple(path for path in paths if has_markers(local_text(job.harness_local, path)))


def remember(
    job: Job, host: Host, here: Mapping[str, HarnessFile], changes: Sequence[LocalChange], *, pending: bool
) -> None:
    """Note changes before they are made and again after it: what is killed in between is neither taken for done nor for
    nothing. `here` is the local harness before."""
    record = _read(job)
    rows = record.setdefault(_place(job, host), {})
    for one in changes:
        rows[one.path] = {
            "theirs": _entry(one.theirs),
            "replaced": _entry(here.get(one.path)),
            "new": _entry(one.new),
            "pending": pending,
            "conflicts": one.conflicts,
        }
    _write(job, record)


def forget(job: Job, host: Host) -> None:
    """The local harness is synced: what it had taken in is the host's own now."""
    record = _read(job)
    if record.pop(_place(job, host), None) is not None:
        _write(job, record)


def local_text(root: Path, path: str) -> bytes:
    """A local file of the harness as it is now; empty where there is none."""
    try:
        with open(Folder(str(root)).open(path), "rb") as file:
            return file.read()
    except (OSError, AgentError):
        return b""


def _entry(file: HarnessFile | None) -> dict[str, Any] | None:
    return None if file is None else file_entry(file)


def _place(job: Job, host: Host) -> str:
    return f"{host.ssh}:{job.harness_remote}"


def _record(job: Job) -> Path:
    return job.harness_local / ".orch" / RECORD


def _read(job: Job) -> dict[str, dict[str, Any]]:
    try:
        record = json.loads(_record(job).read_text(encoding="utf-8"))
        places = record["places"]
        whole = all(isinstance(row, dict) for rows in places.values() for row in rows.values())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}
    return places if whole else {}


def _write(job: Job, places: Mapping[str, Any]) -> None:
    path = _record(job)
    try:
        write_whole(path, json.dumps({"schema": 1, "places": places}).encode())
    except OSError as error:
        raise OrchError(f"{path} can't be written: {error.strerror}") from None
