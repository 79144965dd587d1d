"""Nouns from what the agent says, and back: the only place that knows the keys of its answers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from orchestrator.errors import TransferError
from orchestrator.model import Candidate, Checkpoint, Harness, HarnessFacts, HarnessFile, Run, Scan
from orchestrator.records import digests_of
from remote_payload.agent import folder, manifest
from remote_payload.agent.errors import AgentError

Json = Mapping[str, Any]
CONTENT = re.compile(r"[0-9a-f]{64}|link|folder|special")
"""what stands for a file's content in a host's manifest"""
MODES = (0, 0o644, 0o755)


def read_scan(host: str, answer: Json) -> Scan:
    """The nouns in a scan's answer."""
    found = answer["latest"]
    return Scan(
        host=host,
        root=answer["root"],
        layout=answer["layout"],
        latest=_checkpoint(host, answer["root"], found) if found else None,
        latest_age=found.get("age_s") if found else None,
        candidates=tuple(
            Candidate(
                path=row["path"],
                step=row["step"],
                state=row["state"],
                reason=row["reason"] or "",
                unseen=bool(row.get("unseen")),
                stamp=row.get("stamp") or "",
                checkpoint=_checkpoint(host, answer["root"], row["checkpoint"]) if row.get("checkpoint") else None,
            )
            for row in answer["candidates"]
        ),
        warnings=tuple(answer["warnings"]),
        tensors=found.get("tensors") if found else None,
    )


def _checkpoint(host: str, root: str, row: Json) -> Checkpoint:
    return Checkpoint(
        host=host,
        root=root,
        path=row["path"],
        step=row["step"],
        bytes=row["bytes"],
        ship_bytes=row["ship_bytes"],
        identity=row["identity"],
        stamp=row["stamp"],
    )


def file_entry(file: HarnessFile) -> dict[str, Any]:
    """A manifest row as it crosses the wire."""
    return {"path": file.path, "mode": file.mode, "sha256": file.sha256, "size": file.size}


def read_file_entry(row: Json) -> HarnessFile:
    """A manifest row as a noun."""
    return HarnessFile(path=row["path"], mode=row["mode"], sha256=row["sha256"], size=row["size"])


def read_harness(host: str, found: Json) -> HarnessFacts:
    """The harness folder in an agent's answer. Raises TransferError for a row that no honest agent sends."""
    base = found["base"]
    return HarnessFacts(
        harness=_host_harness(host, found["files"]) if found["exists"] else None,
        base=_host_harness(host, base) if base is not None else None,
        extras=tuple(str(extra["path"]) for extra in found["extras"]),
        renames=tuple((str(row["from"]), _host_file(host, row["entry"])) for row in found["renames"]),
        notes=tuple(f"{host}: {note}" for note in found["notes"]),
    )


def _host_harness(host: str, rows: Iterable[Json]) -> Harness:
    files = tuple(_host_file(host, row) for row in rows)
    return Harness(digest=manifest.digest(map(file_entry, files)), files=files)


def _host_file(host: str, row: Json) -> HarnessFile:
    """A row of a host's manifest: its path will be joined to a local folder, so nothing about it is taken on trust."""
    path, mode, size = row.get("path"), row.get("mode"), row.get("size")
    try:
        folder.steps(path)
    except AgentError as error:
        raise TransferError(f"{host}: {error.message}", host=host) from None
    fits = isinstance(size, int) and size >= 0 and mode in MODES and CONTENT.fullmatch(str(row.get("sha256")))
    if not fits or manifest.odd(str(path)):
        raise TransferError(f"{host}: a row of its harness that makes no sense: {ascii(dict(row))[:300]}", host=host)
    return HarnessFile(path=str(path), mode=int(row["mode"]), sha256=str(row["sha256"]), size=int(row["size"]))


def read_run(host: str, row: Json) -> Run:
    """A row of the host's list of runs as a noun."""
    return Run(
        id=row["id"],
        job=row["job"],
        host=host,
        run=row.get("run"),
        step=row["step"],
        state=row["state"],
        digests=digests_of(row.get("digests") or {}),
        exit_code=row.get("exit_code"),
        signal=row.get("signal"),
        reason=row.get("reason") or "",
        started_at=row.get("started_at"),
        ended_at=row.get("ended_at"),
        key=row.get("key") or "",
        folder=row.get("folder") or "",
        rung=row.get("rung") or "",
    )


def harness_of(entries: Iterable[Json]) -> Harness:
    """A manifest as a noun, named by its digest."""
    rows = [dict(entry) for entry in entries]
    return Harness(digest=manifest.digest(rows), files=tuple(read_file_entry(row) for row in rows))


def entries_of(harness: Harness) -> list[dict[str, Any]]:
    """A harness as the manifest that crosses the wire."""
    return [file_entry(file) for file in harness.files]
