"""The harness versions behind a run's results, and how each differs from the one before."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from orchestrator.actions.harness_diff import unified
from orchestrator.actions.ledger import Ledger
from orchestrator.model import Entry
from orchestrator.workflows import reading

_SHA256 = re.compile(r"[0-9a-f]{64}")
Files = Mapping[str, Mapping[str, Any]]
"""path -> row of a manifest"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangedFile:
    """A file that differs between two versions."""

    path: str
    change: Literal["added", "modified", "deleted", "mode"]
    lines: tuple[str, ...]
    """unified diff, where both contents are known"""
    note: str
    """why there is none"""


@dataclass(frozen=True, slots=True, kw_only=True)
class HarnessVersion:
    """One version of the evaluation scripts: what it measured, and its difference to the version before."""

    digest: str
    results: int
    first_step: int
    last_step: int
    files: int | None
    """None where its manifest was not kept"""
    changes: tuple[ChangedFile, ...] | None
    """None for the first version, and where one of the two manifests is missing"""


def harness_versions(entries: Sequence[Entry], ledger: Ledger) -> tuple[HarnessVersion, ...]:
    """The versions in the order in which they were first used."""
    by_digest: dict[str, list[Entry]] = {}
    for entry in sorted(entries, key=lambda entry: entry.ended_at):
        by_digest.setdefault(entry.digests.harness, []).append(entry)
    found = []
    before: Files | None = None
    for digest, mine in by_digest.items():
        files = _manifest(mine, ledger)
        known = before is not None and files is not None
        found.append(
            HarnessVersion(
                digest=digest,
                results=len(mine),
                first_step=min(entry.step for entry in mine),
                last_step=max(entry.step for entry in mine),
                files=None if files is None else len(files),
                changes=tuple(_changes(before or {}, files or {}, ledger)) if known else None,
            )
        )
        before = files
    return tuple(found)


def _manifest(entries: Sequence[Entry], ledger: Ledger) -> Files | None:
    """The files of a version, from any run folder that holds them."""
    for entry in reversed(entries):
        content = reading.files_in(ledger.folder_of(entry.host, entry.id))("harness.json")
        try:
            document = json.loads(content or b"null")
            return {str(row["path"]): row for row in document["files"] if _SHA256.fullmatch(row["sha256"])}
        except (ValueError, TypeError, KeyError, RecursionError):
            continue
    return None


def _changes(before: Files, after: Files, ledger: Ledger) -> Iterator[ChangedFile]:
    for path in sorted(before.keys() | after.keys()):
        old, new = before.get(path), after.get(path)
        if old is None or new is None:
            yield ChangedFile(path=path, change="added" if old is None else "deleted", lines=(), note="")
        elif old["sha256"] != new["sha256"]:
            yield _modified(path, ledger.script(old["sha256"]), ledger.script(new["sha256"]))
        elif old.get("mode") != new.get("mode"):
            yield ChangedFile(path=path, change="mode", lines=(), note="")


def _modified(path: str, old: bytes | None, new: bytes | None) -> ChangedFile:
    if old is None or new is None:
        note = "its lines are not known here: it was not evaluated from this computer, or is past 1 MiB"
        return ChangedFile(path=path, change="modified", lines=(), note=note)
    lines = tuple(unified(path, old, new, ("before", "after")))
    if not lines or not lines[0].startswith("---"):
        return ChangedFile(path=path, change="modified", lines=(), note="it has no lines to compare, or too many")
    return ChangedFile(path=path, change="modified", lines=lines, note="")
