"""The laptop's memory: each finished run's small files in a folder, and an SQLite index that they can rebuild."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from orchestrator.errors import OrchError, Refused
from orchestrator.model import Digests, Estimate, Receipt, Result

SCHEMA = 1
TABLE = """
CREATE TABLE IF NOT EXISTS results (
  id TEXT NOT NULL, run TEXT NOT NULL, host TEXT NOT NULL, step INTEGER NOT NULL, ended_at TEXT NOT NULL,
  folder TEXT NOT NULL, document TEXT NOT NULL, PRIMARY KEY (id, host))
"""


def state_folder() -> Path:
    """ORCH_HOME, else XDG_STATE_HOME/orch, else ~/.local/state/orch."""
    if home := os.environ.get("ORCH_HOME"):
        return Path(home)
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state") / "orch"


class Ledger:
    """Finished results under a state folder. Safe to open from several processes at once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        file = folder / "ledger.sqlite3"
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._index = sqlite3.connect(file, timeout=10)
        except (OSError, sqlite3.OperationalError) as error:
            hint = "set ORCH_HOME to a folder of your own that can be written"
            raise Refused(f"{folder} can't keep what orch finds: {error}", hint=hint) from None
        try:
            self._prepare(file)
        except sqlite3.DatabaseError as error:
            self._index.close()
            hint = "move it away: it is an index over the folders in runs/ beside it"
            raise OrchError(f"{file} can't be read: {error}", hint=hint) from None
        except OrchError:
            self._index.close()
            raise

    def _prepare(self, file: Path) -> None:
        version = self._index.execute("PRAGMA user_version").fetchone()[0]
        if version > SCHEMA:
            raise OrchError(f"{file} was written by a newer orch (schema {version})", hint="update orch")
        self._index.execute(TABLE)
        self._index.execute(f"PRAGMA user_version = {SCHEMA}")

    @classmethod
    def at_home(cls) -> Ledger:
        """The user's own ledger."""
        return cls(state_folder())

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the index."""
        self._index.close()

    def folder_of(self, host: str, run_id: str) -> Path:
        """Where the small files of a run are kept."""
        return self._folder / "runs" / _plain(host) / _plain(run_id)

    def keep_files(self, host: str, run_id: str, files: Mapping[str, bytes]) -> Path:
        """Write a run's collected files, each beside its place and then renamed over an earlier copy."""
        folder = self.folder_of(host, run_id)
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        for name, content in files.items():
            place = folder.joinpath(*map(_plain, name.split("/")))
            place.parent.mkdir(parents=True, exist_ok=True)
            temporary = place.with_name(f".{place.name}.{os.getpid()}")
            temporary.write_bytes(content)
            temporary.replace(place)
        return folder

    def add(self, result: Result) -> None:
        """Record a result; the same run again replaces its row. The last file written says so in the run's folder."""
        document = to_document(result)
        self.keep_files(result.host, result.id, {"orch-result.json": json.dumps(document, indent=1).encode()})
        with self._index:
            self._index.execute(
                "INSERT OR REPLACE INTO results VALUES (?,?,?,?,?,?,?)",
                (
                    result.id,
                    result.run,
                    result.host,
                    result.step,
                    result.ended_at,
                    str(result.folder),
                    json.dumps(document),
                ),
            )

    def results(self, run: str | None = None) -> list[Result]:
        """All results, or those of one training run, by step then time."""
        query = "SELECT document FROM results WHERE (?1 IS NULL OR run = ?1) ORDER BY step, ended_at"
        return [from_document(json.loads(row[0])) for row in self._index.execute(query, (run,))]


def _plain(name: str) -> str:
    """A name from a host that is to become one here. Raises OrchError for what would lead elsewhere."""
    if name in ("", ".", "..") or "/" in name or "\0" in name:
        raise OrchError(f"not a file name: {name!r}")
    return name


def to_document(result: Result) -> dict[str, Any]:
    """A result as plain JSON values."""
    document = asdict(result)
    document["folder"] = str(result.folder)
    document["schema"] = SCHEMA
    return document


def from_document(document: Mapping[str, Any]) -> Result:
    """A result from its JSON values."""
    values = {key: value for key, value in document.items() if key != "schema"}
    receipt = values["receipt"]
    values["receipt"] = Receipt(
        verdict=receipt["verdict"],
        reasons=tuple(receipt["reasons"]),
        windows=tuple(receipt["windows"]),
        limits=tuple(receipt["limits"]),
        hosts=tuple(receipt.get("hosts") or ()),
    )
    values["digests"] = Digests(**values["digests"])
    for name in ("headline", "baseline"):
        values[name] = Estimate(**values[name]) if values[name] else None
    values["folder"] = Path(values["folder"])
    return Result(**values)
