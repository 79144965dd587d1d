"""Nouns from what the agent says, and back: the only place that knows the keys of its answers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from orchestrator.model import Candidate, Checkpoint, Digests, Harness, HarnessFile, Run, Scan
from remote_payload.agent import manifest

Json = Mapping[str, Any]


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
            Candidate(path=row["path"], step=row["step"], state=row["state"], reason=row["reason"] or "")
            for row in answer["candidates"]
        ),
        warnings=tuple(answer["warnings"]),
    )


def _digests(row: Json) -> Digests:
    return Digests(**{name: str(row.get(name) or "") for name in ("checkpoint", "harness", "job", "data")})


def _checkpoint(host: str, root: str, row: Json) -> Checkpoint:
    return Checkpoint(
        host=host,
        root=root,
        path=row["path"],
        step=row["step"],
        bytes=row["bytes"],
        ship_bytes=row["ship_bytes"],
        identity=row["identity"],
    )


def file_entry(file: HarnessFile) -> dict[str, Any]:
    """A manifest row as it crosses the wire."""
    return {"path": file.path, "mode": file.mode, "sha256": file.sha256, "size": file.size}


def read_file_entry(row: Json) -> HarnessFile:
    """A manifest row as a noun."""
    return HarnessFile(path=row["path"], mode=row["mode"], sha256=row["sha256"], size=row["size"])


def read_run(host: str, row: Json) -> Run:
    """A row of the host's list of runs as a noun."""
    return Run(
        id=row["id"],
        job=row["job"],
        host=host,
        run=row.get("run"),
        step=row["step"],
        state=row["state"],
        digests=_digests(row.get("digests") or {}),
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
