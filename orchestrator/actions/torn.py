"""Checkpoints that turned out torn while they were shipped: a proof from structure can't see that, so it is remembered.

One small file in the state folder. A file that is written anew is another checkpoint, and so is a copy elsewhere: what
is remembered is the host, the place, the identity and the stamp of the files there.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.clock import utc_now
from orchestrator.errors import OrchError
from orchestrator.keeping import keep
from orchestrator.model import Checkpoint, Host, TrainingRun

FILE = "torn.json"
SCHEMA = 2
"""1 kept no stamp, so it can't say which file is meant: what it remembers is found out again"""
KEPT = 1000
"""the newest ones"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Torn:
    """Files that do not fit their CRC. `path` is the whole one on the host."""

    host: str
    path: str
    identity: str
    stamp: str


def known(folder: Path) -> tuple[Torn, ...]:
    """All that are remembered, the oldest first."""
    return tuple(Torn(**{key: row[key] for key in Torn.__slots__}) for row in _read(folder))


def below(torn: Sequence[Torn], host: Host, run: TrainingRun) -> list[dict[str, str]]:
    """Those below a run's checkpoint root on one host, as its agent is told: {path, identity, stamp}."""
    root = f"{run.checkpoints}/"
    return [
        {"path": one.path.removeprefix(root), "identity": one.identity, "stamp": one.stamp}
        for one in torn
        if one.host == host.name and one.path.startswith(root)
    ]


def remember(folder: Path, checkpoint: Checkpoint, reason: str) -> None:
    """Add one. Safe beside another process, of which one may win: then the other's is found out again."""
    entry = {
        "host": checkpoint.host,
        "path": f"{checkpoint.root}/{checkpoint.path}",
        "identity": checkpoint.identity,
        "stamp": checkpoint.stamp,
        "step": checkpoint.step,
        "reason": reason,
        "found_at": utc_now(),
    }
    place = (entry["host"], entry["path"])
    others = [row for row in _read(folder) if (row["host"], row["path"]) != place]
    keep(folder / FILE, json.dumps({"schema": SCHEMA, "checkpoints": [*others, entry][-KEPT:]}, indent=1).encode())


def _read(folder: Path) -> list[dict[str, Any]]:
    path = folder / FILE
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        schema, rows = document["schema"], document["checkpoints"]
        newer = schema > SCHEMA
        whole = newer or all(isinstance(row[key], str) for row in rows for key in Torn.__slots__ if schema == SCHEMA)
        found = [dict(row) for row in rows] if schema == SCHEMA else []
    except FileNotFoundError:
        return []
    except (ValueError, KeyError, TypeError, RecursionError):
        whole = newer = False
    if newer:
        raise OrchError(f"{path} was written by a newer orch (schema {schema})", hint="update orch")
    if not whole:
        raise OrchError(f"{path} can't be read", hint="remove it: what it remembers is found out again")
    return found
