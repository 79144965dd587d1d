"""Receipts in the state folder: a file beside those of each collected run, and one for each guarded command."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Iterator, Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, get_args

from orchestrator import records, windows
from orchestrator.clock import utc_now
from orchestrator.errors import ConfigError, OrchError
from orchestrator.keeping import write_whole
from orchestrator.measured import TrainingVerdict
from orchestrator.model import Receipt, Run

SCHEMA = 1
NAME = "receipt.json"
LISTED = 10
"""ids that an error names at most"""
MEASURED = ("seconds", "waited", "waited_usually", "major_faults")
"""numbers of a window that are shown"""

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
        if "verdict" in kept and _is_sound(kept):
            yield kept
    for file in state.glob(f"runs/*/*/{records.FILE}"):
        if not file.with_name(NAME).exists() and isinstance((kept := _read(file)).get("receipt"), dict):
            about = {key: kept.get(key) for key in ("id", "run", "job", "host", "step", "ended_at", "file")}
            told = {"schema": SCHEMA, "kind": "evaluation", "program": None, "exit_code": None, "hosts": []}
            if _is_sound(whole := {**told, **about, **kept["receipt"]}):
                yield whole


def _is_sound(kept: Kept) -> bool:
    """Whether it has the form that showing it relies on; of a newer schema that is not ours to tell."""
    if isinstance(kept.get("schema"), int) and kept["schema"] > SCHEMA:
        return True
    texts, found, hosts = (kept.get(name) or [] for name in ("limits", "windows", "hosts"))
    return (
        kept.get("verdict") in get_args(TrainingVerdict)
        and _are(str, kept.get("reasons") or [])
        and _are(str, texts)
        and isinstance(found, list)
        and all(map(_is_sound_window, found))
        and _are(dict, hosts)
        and all(row.get("verdict") in get_args(TrainingVerdict) and _are(str, row.get("reasons")) for row in hosts)
        and all(isinstance(row.get("host"), str) for row in hosts)
    )


def _is_sound_window(window: Any) -> bool:
    if not windows.is_sound(window):
        return False
    measured = window.get("measured") or {}
    rate = measured.get("rate") or {} if isinstance(measured, dict) else None
    if not isinstance(rate, dict):
        return False
    numbers = [measured.get(name) for name in MEASURED] + [rate.get(name) for name in ("during", "usual")]
    return all(number is None or type(number) in (int, float) for number in numbers)


def _are(kind: type, values: Any) -> bool:
    return isinstance(values, list) and all(isinstance(value, kind) for value in values)


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
