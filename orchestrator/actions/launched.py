"""The laptop's memory of runs that it started or followed: so one that its host has lost is told as lost."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from orchestrator import records
from orchestrator.answers import read_run
from orchestrator.errors import OrchError
from orchestrator.keeping import is_plain, keep
from orchestrator.model import Run

SCHEMA = 1
NAME = "launched.json"
ENDED = "exit.json"
RUNS = "runs"
GONE = "its folder is no longer on {host}: the host came back empty, or somebody removed it"


def remember(state: Path, run: Run) -> None:
    """Keep a run's row beside its small files (runs/HOST/ID). Never fails: a full disk only shortens the memory."""
    folder = place(state, run)
    if folder is None:
        return
    with suppress(OSError):
        keep(folder / NAME, json.dumps({"schema": SCHEMA, **asdict(run)}).encode())


def remembered(state: Path, host: str) -> tuple[Run, ...]:
    """Runs of a host that this computer knows of, the last one that it started or joined last.

    One whose end was collected is as it ended; any other is `lost`, for who asks knows that its folder is gone.
    """
    found = sorted(_read(state / RUNS / host), key=lambda pair: pair[0])
    return tuple(run for _, run in found)


def ids(state: Path, host: str) -> frozenset[str]:
    """Ids that runs of this host have, or had."""
    try:
        return frozenset(path.name for path in (state / RUNS / host).iterdir())
    except OSError:
        return frozenset()


def when(state: Path, run: Run) -> int:
    """When this computer started or joined the run last (ns, by its own clock); 0 where it never did."""
    folder = place(state, run)
    try:
        return (folder / NAME).stat().st_mtime_ns if folder else 0
    except OSError:
        return 0


def place(state: Path, run: Run) -> Path | None:
    """Where this computer keeps what it has of a run; None for an id, told by a host, that would lead elsewhere."""
    return state / RUNS / run.host / run.id if is_plain(run.id) else None


def came_without_result(state: Path, run: Run) -> bool:
    """Whether the files of a run that succeeded are here, and held no result that could be read."""
    folder = place(state, run)
    return folder is not None and (folder / ENDED).exists() and not (folder / records.FILE).exists()


def gone(run: Run) -> Run:
    """The same run once its host no longer has it."""
    reason = GONE.format(host=run.host)
    if run.goes_on:
        return replace(run, state="lost", reason=reason, folder="")
    return replace(run, folder="")


def _read(folder: Path) -> Iterator[tuple[int, Run]]:
    for path in folder.glob(f"*/{NAME}"):
        row = _json(path)
        if row is not None and row.get("schema") == SCHEMA:
            ended = _json(path.parent / ENDED) or {}
            row.update(
                {key: ended[key] for key in ("state", "exit_code", "signal", "reason", "ended_at") if key in ended}
            )
            try:
                yield path.stat().st_mtime_ns, gone(read_run(folder.name, row))
            except (KeyError, TypeError, OSError, OrchError):
                continue  # not one of ours


def _json(path: Path) -> dict[str, Any] | None:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
