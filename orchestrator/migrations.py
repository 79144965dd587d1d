"""The ledger's index, one migration after the other: SQLite's user_version says how many of them it has seen.

It is an index: everything in it is in the run folders beside it, and `orch ledger rebuild` makes it anew.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable

from orchestrator.errors import OrchError
from orchestrator.measured import Entry
from orchestrator.records import entry_of, from_document

COLUMNS = Entry._fields
INSERT = f"INSERT OR REPLACE INTO results ({', '.join(COLUMNS)}) VALUES ({', '.join('?' * len(COLUMNS))})"


def migrate(index: sqlite3.Connection, version: int) -> None:
    """Bring an index of this version up to date, each step whole or not at all; two at once wait for each other."""
    for number in range(version, len(MIGRATIONS)):
        with index:
            index.execute("BEGIN IMMEDIATE")
            if version_of(index) == number:
                MIGRATIONS[number](index)
                index.execute(f"PRAGMA user_version = {number + 1}")


def version_of(index: sqlite3.Connection) -> int:
    """How many migrations an index has seen."""
    return int(index.execute("PRAGMA user_version").fetchone()[0])


def _whole_documents(index: sqlite3.Connection) -> None:
    index.execute(
        "CREATE TABLE IF NOT EXISTS results (id TEXT NOT NULL, run TEXT NOT NULL, host TEXT NOT NULL, "
        "step INTEGER NOT NULL, ended_at TEXT NOT NULL, folder TEXT NOT NULL, document TEXT NOT NULL, "
        "PRIMARY KEY (id, host))"
    )


def _columns(index: sqlite3.Connection) -> None:
    """What tables need becomes columns; documents stay in the run folders, where they always were too."""
    index.execute("ALTER TABLE results RENAME TO documents")
    index.execute(
        "CREATE TABLE results (id TEXT NOT NULL, host TEXT NOT NULL, run TEXT NOT NULL, job TEXT NOT NULL, "
        "origin TEXT NOT NULL, step INTEGER NOT NULL, ended_at TEXT NOT NULL, headline_name TEXT NOT NULL, "
        "better TEXT NOT NULL, value REAL, low REAL, high REAL, base_value REAL, base_low REAL, base_high REAL, "
        "verdict TEXT, receipt TEXT NOT NULL, checkpoint TEXT NOT NULL, harness TEXT NOT NULL, "
        "job_digest TEXT NOT NULL, data TEXT NOT NULL, PRIMARY KEY (id, host))"
    )
    index.execute("CREATE INDEX by_run ON results (run, step, ended_at)")
    for (text,) in index.execute("SELECT document FROM documents").fetchall():
        try:
            index.execute(INSERT, row_of(entry_of(from_document(json.loads(text)))))
        except (OrchError, ValueError, RecursionError):
            continue  # its folder is still there: `orch ledger rebuild` says what is wrong with it
    index.execute("DROP TABLE documents")


def _by_curve(index: sqlite3.Connection) -> None:
    """Lines lie in the order in which they are asked for: curve by curve, by step, then time."""
    columns = ", ".join(COLUMNS)
    index.execute("ALTER TABLE results RENAME TO unordered")
    index.execute(
        "CREATE TABLE results (id TEXT NOT NULL, host TEXT NOT NULL, run TEXT NOT NULL, job TEXT NOT NULL, "
        "origin TEXT NOT NULL, step INTEGER NOT NULL, ended_at TEXT NOT NULL, headline_name TEXT NOT NULL, "
        "better TEXT NOT NULL, value REAL, low REAL, high REAL, base_value REAL, base_low REAL, base_high REAL, "
        "verdict TEXT, receipt TEXT NOT NULL, checkpoint TEXT NOT NULL, harness TEXT NOT NULL, "
        "job_digest TEXT NOT NULL, data TEXT NOT NULL, UNIQUE (id, host), "
        "PRIMARY KEY (run, origin, job, headline_name, step, ended_at, id, host)) WITHOUT ROWID"
    )
    index.execute(f"INSERT INTO results ({columns}) SELECT {columns} FROM unordered")
    index.execute("DROP TABLE unordered")


MIGRATIONS: tuple[Callable[[sqlite3.Connection], None], ...] = (_whole_documents, _columns, _by_curve)
SCHEMA = len(MIGRATIONS)


def row_of(entry: Entry) -> tuple[object, ...]:
    """An entry as values of COLUMNS, without half characters, which JSON from a host may hold and SQLite may not."""
    return tuple(_storable(value) if isinstance(value, str) else value for value in entry)


def _storable(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode("utf-8")
