"""Receipts in the state folder: a file beside those of each collected run, and one for each guarded command."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Iterator, Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from orchestrator import records
from orchestrator.clock import utc_now
from orchestrator.errors import ConfigError, OrchError
from orchestrator.keeping import write_whole
from orchestrator.model import Receipt, Run

SCHEMA = 1
NAME = "receipt.json"
LISTED = 10
"""ids that an error names at most"""

Kept = Mapping[str, Any]


def of_evaluation(receipt: Receipt, run: Run, training_run: str) -> dict[str, bytes]:
    """The file of an evaluation's receipt, under its name."""
    about: dict[str, Any] = {"kind": "evaluation", "id": run.id, "run": training_run, "job": run.job, "host": run.host}
    about = {**about, "step": run.step, "program": None, "exit_code": run.exit_code}
    return {NAME: _document(about, receipt, run.ended_at)}


def keep_guarded(state: Path, receipt: Receipt, run: str, program: str, exit_code: int | None) -> tuple[str, Path]:
    """Keep the receipt of a guarded command; returns its id and its file.

    Of the command only the program's name is kept: its arguments may hold secrets.
    """
    told = f"guard-{datetime.now(timezone.utc):%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"
    folder = state / "guards" / told
    folder.mkdir(parents=True, mode=0o700)
    about = {"kind": "guard", "id": told, "run": run, "job": None, "host": None, "step": None}
    write_whole(folder / NAME, _document({**about, "program": program, "exit_code": exit_code}, receipt))
    return told, folder / NAME


def find(state: Path, wanted: str) -> Kept:
    """The receipt of a run or guarded command: by its id, a beginning that only it has, HOST/ID, or `latest`.

    The name of a training run means the latest of its receipts. Raises ConfigError for none, or for several.
    """
    known = sorted(_all(state), key=lambda kept: str(kept.get("ended_at")))
    if not known:
        raise ConfigError(f"there are no receipts in {state} yet", hint="orch eval-latest brings one with each result")
    if wanted == "latest":
        return _known_schema(known[-1])
    exact = [kept for kept in known if wanted in (kept["id"], f"{kept.get('host')}/{kept['id']}")]
    if not exact and (of_run := [kept for kept in known if kept.get("run") == wanted]):
        return _known_schema(of_run[-1])
    found = exact or [kept for kept in known if wanted and str(kept["id"]).startswith(wanted)]
    if len(found) == 1:
        return _known_schema(found[0])
    told = ", ".join(
        f"{kept['host']}/{kept['id']}" if exact else str(kept["id"]) for kept in (found or known)[-LISTED:]
    )
    if found:
        raise ConfigError(f"{wanted!r} means several receipts: {told}", hint="give more of the id")
    raise ConfigError(f"no receipt {wanted!r}", hint=f"the latest are: {told}")


def _known_schema(kept: Kept) -> Kept:
    if not isinstance(kept.get("schema"), int) or kept["schema"] > SCHEMA:
        raise OrchError(f"{kept['file']} was written by a newer orch (schema {kept.get('schema')})", hint="update orch")
    return kept


def _all(state: Path) -> Iterator[Kept]:
    """Every receipt that can be read; an unreadable one costs itself only. Results of old have it inside."""
    for file in (*state.glob(f"runs/*/*/{NAME}"), *state.glob(f"guards/*/{NAME}")):
        kept = _read(file)
        if "verdict" in kept:
            yield kept
    for file in state.glob(f"runs/*/*/{records.FILE}"):
        if not file.with_name(NAME).exists() and isinstance((kept := _read(file)).get("receipt"), dict):
            about = {key: kept.get(key) for key in ("id", "run", "job", "host", "step", "ended_at", "file")}
            told = {"schema": SCHEMA, "kind": "evaluation", "program": None, "exit_code": None, "hosts": []}
            yield {**told, **about, **kept["receipt"]}


def _read(file: Path) -> dict[str, Any]:
    try:
        kept = json.loads(file.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return {**kept, "file": os.fspath(file)} if isinstance(kept, dict) and "id" in kept else {}


def _document(about: Mapping[str, Any], receipt: Receipt, ended_at: str | None = None) -> bytes:
    document = {
        "schema": SCHEMA,
        **about,
        "ended_at": ended_at or utc_now(),
        "verdict": receipt.verdict,
        "reasons": list(receipt.reasons),
        "windows": list(receipt.windows),
        "limits": list(receipt.limits),
        "hosts": list(receipt.hosts),
    }
    return json.dumps(document, indent=1).encode("utf-8")
