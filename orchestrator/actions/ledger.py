"""The laptop's memory: each finished run's small files in a folder, and an SQLite index that they can rebuild."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator import migrations, records
from orchestrator.errors import OrchError, Refused
from orchestrator.keeping import is_plain, keep, state_folder
from orchestrator.measured import Entry, Result

if TYPE_CHECKING:
    from orchestrator.model import Host, TrainingRun

SCHEMA = migrations.SCHEMA
FILE = "ledger.sqlite3"
_COLUMNS = ", ".join(migrations.COLUMNS)
_KEYS = ("run", "origin", "job", "headline_name")
_SERIES = ", ".join(_KEYS)
_ORDER = f"{_SERIES}, step, ended_at, id"
_NEWEST = (
    f"SELECT {_COLUMNS} FROM results WHERE {' AND '.join(f'{key} = ?' for key in _KEYS)} "
    "ORDER BY step DESC, ended_at DESC, id DESC LIMIT ?"
)


def origin_of(train: Host, run: TrainingRun) -> str:
    """Where a run's checkpoints come from: what tells runs of one name in two projects apart."""
    return f"{train.ssh}:{run.checkpoints}"


def exists() -> bool:
    """Whether anything was ever kept: who only asks need not make a ledger."""
    return (state_folder() / FILE).exists()


class Ledger:
    """Finished results under a state folder. Safe to open from several processes at once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.file = folder / FILE
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._index = sqlite3.connect(self.file, timeout=10)
        except (OSError, sqlite3.OperationalError) as error:
            raise _keeps_nothing(folder, error) from None
        try:
            with self._told():
                self._prepare()
        except OrchError:
            self._index.close()
            raise

    @contextmanager
    def _told(self) -> Iterator[None]:
        """SQLite's errors as those that say what to do: of a disk or a lock (Refused), or of the file itself."""
        try:
            yield
        except sqlite3.DatabaseError as error:
            of_the_file = str(error).startswith(("no such", "Could not decode"))
            if isinstance(error, sqlite3.OperationalError) and not of_the_file:
                raise _keeps_nothing(self._folder, error) from None
            raise self._unreadable(str(error)) from None

    def _unreadable(self, why: str) -> OrchError:
        return OrchError(f"{self.file} can't be read: {why}", hint="orch ledger rebuild makes it anew")

    def check(self) -> None:
        """Look at the whole index. Raises OrchError where it is damaged, be it in the middle."""
        said = [row[0] for row in self._rows("PRAGMA quick_check(1)")]
        if said != ["ok"]:
            raise self._unreadable("; ".join(map(str, said)))
        self._rows("SELECT count(*) FROM results")

    def _prepare(self) -> None:
        version = migrations.version_of(self._index)
        if version < 0:
            raise self._unreadable(f"schema {version}")
        if version > SCHEMA:
            hint = "update orch"
            raise Refused(f"{self.file} was written by a newer orch (schema {version}, not {SCHEMA})", hint=hint)
        if version < SCHEMA:
            migrations.migrate(self._index, version)

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

    # -- run folders ------------------------------------------------------------------------------------------------

    def folder_of(self, host: str, run_id: str) -> Path:
        """Where the small files of a run are kept."""
        return self._folder / "runs" / _plain(host) / _plain(run_id)

    def keep_files(self, host: str, run_id: str, files: Mapping[str, bytes]) -> Path:
        """Write a run's collected files, each beside its place and then renamed over an earlier copy."""
        folder = self.folder_of(host, run_id)
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        for name, content in files.items():
            keep(folder.joinpath(*map(_plain, name.split("/"))), content)
        return folder

    def run_folders(self) -> Iterator[Path]:
        """The folders of all runs that were brought home."""
        for host in sorted(_folders(self._folder / "runs")):
            yield from sorted(_folders(host))

    def has_script(self, sha256: str) -> bool:
        """Whether a harness file is kept under its digest."""
        return self._script(sha256).exists()

    def keep_script(self, sha256: str, content: bytes) -> None:
        """Keep one file of a harness under its digest, so that two versions can be told apart line by line later."""
        keep(self._script(sha256), content)

    def script(self, sha256: str) -> bytes | None:
        """A harness file by its digest; None for one that was never here."""
        try:
            return self._script(sha256).read_bytes()
        except FileNotFoundError:
            return None

    def _script(self, sha256: str) -> Path:
        return self._folder / "harness" / _plain(sha256)

    # -- results ----------------------------------------------------------------------------------------------------

    def add(self, result: Result) -> None:
        """Record a result; the same run again replaces its row. The last file written says so in the run's folder."""
        document = json.dumps(records.to_document(result), indent=1).encode()
        self.keep_files(result.host, result.id, {records.FILE: document})
        with self._told(), self._index:
            self._index.execute(migrations.INSERT, migrations.row_of(records.entry_of(result)))

    def replace_all(self, entries: Iterable[Entry]) -> None:
        """Make the index anew, whole or not at all."""
        with self._told(), self._index:
            self._index.execute("DELETE FROM results")
            self._index.executemany(migrations.INSERT, map(migrations.row_of, entries))

    def entries(
        self, run: str | None = None, origin: str | None = None, job: str | None = None, *, last: int | None = None
    ) -> list[Entry]:
        """All lines, or those of one training run, place of checkpoints or job: curve by curve, by step, then time.

        With `last`, the newest so many of each curve.
        """
        which, given = _which(run=run, origin=origin, job=job)
        if last is None:
            rows = self._rows(f"SELECT {_COLUMNS} FROM results {which} ORDER BY {_ORDER}", given)
        else:
            series = self._rows(f"SELECT DISTINCT {_SERIES} FROM results {which} ORDER BY {_SERIES}", given)
            rows = [row for one in series for row in reversed(self._rows(_NEWEST, (*one, last)))]
        return list(map(Entry._make, rows))

    def curves(self, run: str | None = None) -> dict[tuple[str, ...], list[tuple[int, float | None]]]:
        """Series (as Entry.series) -> (step, headline) of all its results, in the order of `entries`."""
        which, given = _which(run=run)
        found: dict[tuple[str, ...], list[tuple[int, float | None]]] = {}
        for *series, step, value in self._rows(
            f"SELECT {_SERIES}, step, value FROM results {which} ORDER BY {_ORDER}", given
        ):
            found.setdefault(tuple(series), []).append((step, value))
        return found

    def with_prefix(self, prefix: str) -> list[Entry]:
        """Lines whose run id begins so; the whole id finds that one alone. At most 10."""
        query = f"SELECT {_COLUMNS} FROM results WHERE substr(id, 1, ?2) = ?1 ORDER BY id != ?1, id LIMIT 10"
        found = list(map(Entry._make, self._rows(query, (prefix, len(prefix)))))
        return [entry for entry in found if entry.id == prefix] or found

    def runs(self) -> list[str]:
        """Names of the training runs that have results."""
        return [row[0] for row in self._rows("SELECT DISTINCT run FROM results ORDER BY run")]

    def _rows(self, query: str, arguments: tuple[object, ...] = ()) -> list[tuple[Any, ...]]:
        with self._told():
            return self._index.execute(query, arguments).fetchall()

    def find(self, host: str, run_id: str) -> Result | None:
        """The result of this run, from its folder; None where there is none. Raises OrchError."""
        try:
            return records.read(self.folder_of(host, run_id))
        except FileNotFoundError:
            return None

    def open(self, host: str, run_id: str) -> Result:
        """The whole result of a line. Raises OrchError where its folder has gone."""
        found = self.find(host, run_id)
        if found is None:
            folder = self.folder_of(host, run_id)
            raise OrchError(f"{folder} has no result any more", hint="orch ledger rebuild lists what is left")
        return found


def _which(**wanted: str | None) -> tuple[str, tuple[str, ...]]:
    """Column -> value as SQL, with its arguments; a value of None leaves its column open."""
    given = {column: value for column, value in wanted.items() if value is not None}
    return ("WHERE " if given else "") + " AND ".join(f"{column} = ?" for column in given), tuple(given.values())


def _keeps_nothing(folder: Path, error: Exception) -> Refused:
    hint = "make room there, or set ORCH_HOME to a folder of your own that can be written"
    return Refused(f"{folder} can't keep what orch finds: {error}", hint=hint)


def set_aside(folder: Path) -> Path | None:
    """Move an index out of the way that can't be read, under a name of its own; None where none lies there."""
    file = folder / FILE
    aside = file.with_name(f"{file.name}.unreadable")
    try:
        return file.replace(aside)
    except FileNotFoundError:
        return None


def _folders(parent: Path) -> list[Path]:
    return [entry for entry in parent.iterdir() if entry.is_dir()] if parent.is_dir() else []


def _plain(name: str) -> str:
    """A name from a host that is to become one here. Raises OrchError for what would lead elsewhere."""
    if not is_plain(name):
        raise OrchError(f"not a file name: {name!r}")
    return name
