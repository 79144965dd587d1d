"""Checkpoints that turned out torn while they were shipped: a proof from structure can't see that, so it is remembered.

One small file in the state folder, by identity: a file that is written anew is another checkpoint.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from orchestrator.clock import utc_now
from orchestrator.errors import OrchError
from orchestrator.keeping import keep
from orchestrator.model import Checkpoint

FILE = "torn.json"
SCHEMA = 1
KEPT = 1000
"""the newest ones"""


def known(folder: Path) -> tuple[str, ...]:
    """Their identities, the oldest first."""
    return tuple(_read(folder))


def remember(folder: Path, checkpoint: Checkpoint, reason: str) -> None:
    """Add one. Safe beside another process, of which one may win: then the other's is found out again."""
    entry = {
        "host": checkpoint.host,
        "path": f"{checkpoint.root}/{checkpoint.path}",
        "step": checkpoint.step,
        "reason": reason,
        "found_at": utc_now(),
    }
    entries = {**_read(folder), checkpoint.identity: entry}
    newest = dict(list(entries.items())[-KEPT:])
    keep(folder / FILE, json.dumps({"schema": SCHEMA, "checkpoints": newest}, indent=1).encode())


def _read(folder: Path) -> Mapping[str, Any]:
    path = folder / FILE
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        newer = document["schema"] > SCHEMA
        found = {} if newer else dict(document["checkpoints"])
    except FileNotFoundError:
        return {}
    except (ValueError, KeyError, TypeError, RecursionError):
        hint = "remove it: what it remembers is found out again"
        raise OrchError(f"{path} can't be read", hint=hint) from None
    if newer:
        raise OrchError(f"{path} was written by a newer orch (schema {document['schema']})", hint="update orch")
    return found
